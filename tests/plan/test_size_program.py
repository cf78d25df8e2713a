"""Sizes as an integer program give what `evaluate` gives; the native side refuses what is no program."""

from __future__ import annotations

import random

import pytest
import torch

from smelt import _native
from smelt.plan.size_program import ADD, CONSTANT, DIVIDE, MODULO, MULTIPLY, SizeProgram
from smelt.shapes.expr import Size, Sym, evaluate

S, T = Sym("s0", 2), Sym("s1", 2)
CPU = torch.device("cpu")


def computed(program, values):
    """As native/plan/plan_template.cpp does it."""
    slots = list(values)
    operations = {
        ADD: lambda a, b: a + b,
        MULTIPLY: lambda a, b: a * b,
        DIVIDE: lambda a, b: a // b,
        MODULO: lambda a, b: a % b,
    }
    for operation, a, b in program.instructions:
        slots.append(a if operation == CONSTANT else operations[operation](slots[a], slots[b]))
    return slots


def native(program, slots):
    """What gives an empty tensor per slot, whose size is what the slot holds."""
    steps = tuple(
        ("alloc", i, (0, (slot,)), (1, 1), torch.float32, CPU, -1, -1) for i, slot in enumerate(slots)
    )
    spec = (0, len(slots), steps, tuple(range(len(slots))), 0, False, (), CPU, "")
    return _native.PlanTemplate(spec, (program.n_syms, program.instructions, (), (), 64), (), ())


def drawn(draw: random.Random, depth: int) -> Size:
    if depth == 0:
        return draw.choice([S, T, draw.randint(1, 9)])
    a, b = drawn(draw, depth - 1), drawn(draw, depth - 1)
    return draw.choice([a + b, a * b, a * b + 3, a // 4, a % 5 + 1, (a + b) // (S + 1), a * 7 + T - 1])


@pytest.mark.parametrize("seed", range(20))
def test_programs_compute_what_sizes_are(seed):
    draw = random.Random(seed)
    sizes = [drawn(draw, 3) for _ in range(12)]
    program = SizeProgram((S, T))
    slots = [program.slot(size) for size in sizes]
    template = native(program, slots)
    for s, t in ((2, 2), (3, 7), (64, 5), (1000, 999)):
        want = [evaluate(size, {S: s, T: t}) for size in sizes]
        assert [computed(program, (s, t))[slot] for slot in slots] == want
        assert [out.shape[1] for out in template.at((s, t))(())] == want


def test_equal_sizes_are_computed_once():
    program = SizeProgram((S, T))
    assert program.slot(S * T) == program.slot(T * S) and program.slot(S) == 0 and program.slot(T) == 1
    count = len(program.instructions)
    program.slot(S * T)
    assert len(program.instructions) == count


def test_symbols_of_others_are_refused():
    with pytest.raises(KeyError):
        SizeProgram((S,)).slot(S * T)


def test_numbers_of_more_than_64_bits_are_errors():
    program = SizeProgram((S, T))
    template = native(program, [program.slot(S * T)])
    with pytest.raises(RuntimeError, match="64 bits"):
        template.at((1 << 40, 1 << 40))


def test_a_template_takes_as_many_numbers_as_it_has_sizes():
    program = SizeProgram((S, T))
    with pytest.raises(TypeError, match="2 sizes expected, got 1"):
        native(program, [0]).at((3,))


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((1, ((ADD, 0, 1),), (), (), 64), "not known yet"),
        ((1, ((9, 0, 0),), (), (), 64), "no such operation"),
        ((1, (), ((4, True),), (), 64), "no such slot"),
        ((1, (), (), ((4, 0, 1),), 64), "no such slot"),
        ((1, (), (), (), 0), "alignment"),
    ],
)
def test_what_is_no_program_is_refused(sizes, message):
    spec = (0, 0, (), (), 0, False, (), CPU, "")
    with pytest.raises(RuntimeError, match=message):
        _native.PlanTemplate(spec, sizes, (), ())
