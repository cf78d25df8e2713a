"""What may be written in the place of an operand, what then shares memory, and which temporaries are in the arena."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch

from smelt.codegen.plan_loading import load
from smelt.errors import VerificationError
from smelt.loops.kernel_ir import Buffer, Kernel, MapStage, Store, Value
from smelt.plan.arena_allocation import SLACK, allowed, with_arena
from smelt.plan.buffer_reuse import reusable_operands
from smelt.plan.plan_device import Memory
from smelt.plan.steps import Alloc, Aten, Free, Launch, Plan, Reg, Step
from smelt.plan.verify_plan import verify
from smelt.shapes.expr import Size
from tests.harness.kernels import hand_written, loop
from tests.harness.kernels import load as read

aten = torch.ops.aten
CPU = torch.device("cpu")
F32 = torch.float32
KIB = 1 << 10


# ---------------------------------------------------------------------------------------------------------- kernels


def kernel(value: Value, at: Size, dtypes: Iterable[torch.dtype] = (F32, F32, F32)) -> Kernel:
    """Stores `value`, of elements of the first two buffers, to the third."""
    _, outer = loop("i", 16)
    roles = ("in", "in", "out")
    buffers = tuple(Buffer(f"b{k}", dtype, role) for k, (dtype, role) in enumerate(zip(dtypes, roles)))  # type: ignore[arg-type]
    return Kernel("k", buffers, (outer,), (MapStage((), (Store(2, at, value),)),))


def test_elements_are_read_where_they_are_written() -> None:
    i, _ = loop("i", 16)
    assert reusable_operands(kernel(read(0, i) + read(1, i), i)) == ((2, 0), (2, 1))
    assert reusable_operands(kernel(read(0, i) + read(1, 15 - i), i)) == ((2, 0),)
    assert reusable_operands(kernel(read(0, i) + read(0, 15 - i), i)) == ()
    assert reusable_operands(kernel(read(0, 0) + read(1, i), i)) == ((2, 1),)
    assert reusable_operands(kernel(read(0, i) + read(1, i), 2 * i)) == ()


def test_elements_have_as_many_bytes() -> None:
    i, _ = loop("i", 16)
    for dtype, pairs in ((torch.int32, ((2, 0),)), (torch.float16, ()), (torch.float64, ())):
        value = Value("cast", (Value("load", (0, i, None), F32),), dtype)
        assert reusable_operands(kernel(value, i, (F32, F32, dtype))) == pairs


def test_not_what_is_written_at_several_places_or_by_rows() -> None:
    i, outer = loop("i", 16)
    j, inner = loop("j", 4)
    buffers = (Buffer("a", F32, "in"), Buffer("b", F32, "out"))
    twice = (Store(1, i, read(0, i)), Store(1, 16 + i, read(0, i)))
    assert reusable_operands(Kernel("k", buffers, (outer,), (MapStage((), twice),))) == ()
    rows = MapStage((inner,), (Store(1, 4 * i + j, read(0, 4 * i + j)),))
    assert reusable_operands(Kernel("k", buffers, (outer,), (rows,))) == ()


def test_not_what_the_kernel_adds_to() -> None:
    i, outer = loop("i", 16)
    buffers = (Buffer("a", F32, "in"), Buffer("b", F32, "inout"))
    stage = MapStage((), (Store(1, i, read(0, i) + read(1, i)),))
    assert reusable_operands(Kernel("k", buffers, (outer,), (stage,))) == ()


# ------------------------------------------------------------------------------------------------------------- plans


def alloc(out: int, n: int = 8, over: int | None = None, arena: int | None = None) -> Alloc:
    return Alloc(out, (n,), (1,), F32, CPU, arena, over)


def increment(a: int, out: int, n: int = 8) -> Launch:
    return Launch("increment", (a, out), n, 1024)


def run(plan: Plan, *inputs: torch.Tensor) -> torch.Tensor:
    verify(plan)
    (result,) = load(Plan(**{**vars(plan), "kernels": hand_written()}))(inputs)
    return result


def test_what_an_operator_gave_is_written() -> None:
    x = torch.randn(8)
    steps = (Aten(aten.neg.default, (Reg(0),), {}, (1,)), alloc(2, over=1), increment(1, 2), Free((1,)))
    assert torch.equal(run(Plan(1, (), 3, steps, (2,)), x), 1 - x)


def test_what_the_caller_holds_is_not() -> None:
    x = torch.randn(8)
    before = x.clone()
    result = run(Plan(1, (), 2, (alloc(1, over=0), increment(0, 1)), (1,)), x)
    assert torch.equal(result, before + 1) and torch.equal(x, before)


def test_nor_what_is_returned_or_seen_by_another_tensor() -> None:
    x = torch.randn(8)
    detached = Aten(aten.alias.default, (Reg(0),), {}, (1,))  # shares the memory of the input
    before = x.clone()
    assert torch.equal(
        run(Plan(1, (), 3, (detached, alloc(2, over=1), increment(1, 2)), (2,)), x), before + 1
    )
    assert torch.equal(x, before)


def test_nor_where_there_is_less_memory() -> None:
    x = torch.randn(8)
    steps = (
        Aten(aten.slice.Tensor, (Reg(0), 0, 0, 4), {}, (1,)),
        Aten(aten.neg.default, (Reg(1),), {}, (2,)),
        alloc(3, over=2),
        increment(0, 3),
    )
    assert torch.equal(run(Plan(1, (), 4, steps, (3,)), x), x + 1)


def test_in_the_arena_two_share_a_place_only_if_one_is_in_the_place_of_the_other() -> None:
    def plan(over: int | None, *between: Step) -> Plan:
        steps = (alloc(1, arena=0), increment(0, 1), alloc(2, over=over, arena=0), increment(1, 2), *between)
        return Plan(1, (), 4, (*steps, alloc(3), increment(2, 3), Free((1, 2))), (3,), arena_bytes=64)

    x = torch.randn(8)
    assert torch.equal(run(plan(1), x), x + 3)
    for wrong in (plan(None), plan(1, increment(1, 2))):
        with pytest.raises(VerificationError, match="overlap in the arena"):
            verify(wrong)


def test_memory_of_the_arena_is_not_given_on() -> None:
    steps = (alloc(1, arena=0), increment(0, 1), alloc(2, over=1), increment(1, 2))
    plan = Plan(1, (), 3, steps, (2,), arena_bytes=64)
    with pytest.raises(VerificationError, match="r1 has no memory of its own"):
        verify(plan)
    with pytest.raises(RuntimeError, match="memory that is not its own"):
        load(Plan(**{**vars(plan), "kernels": hand_written()}))


# ------------------------------------------------------------------------------------------------------- large ones


def chain(sizes: list[int], given: int = 0) -> list[Step]:
    """Each temporary is made from the one before, by kernels and operators in turn."""
    steps: list[Step] = []
    for k, n in enumerate(sizes, 1):
        if k % 3 == 0:
            steps.append(Aten(aten.neg.default, (Reg(k - 1),), {}, (k,)))
        else:
            steps += [alloc(k, n), Launch("k", (k - 1, k), n, 1)]
        if k > 1 or given:
            steps.append(Free((k - 1,)))
    return steps


def planned(sizes: list[int], single: bool) -> tuple[tuple[Step, ...], int]:
    """Operators' results and the last one are outside of the arena."""
    inside = {k for k in range(1, len(sizes)) if k % 3}
    memory = Memory(CPU, 64, single)
    return with_arena(chain(sizes), lambda r: r in inside, lambda r: 4 * ([0, *sizes][r]), memory)


def taken(steps: tuple[Step, ...], sizes: list[int], arena: int) -> int:
    """Bytes at most: the arena is there from the first temporary in it on, under -1."""
    live: dict[int, int] = {}
    most = 0
    for step in steps:
        if isinstance(step, Alloc) and step.arena is None:
            live[step.out] = 4 * sizes[step.out - 1]
        elif isinstance(step, Alloc):
            live[-1] = arena
        elif isinstance(step, Aten):
            live[step.outs[0]] = 4 * sizes[step.outs[0] - 1]  # type: ignore[index]
        elif isinstance(step, Free):
            for r in step.regs:
                live.pop(r, None)
        most = max(most, sum(live.values()))
    return most


def test_large_temporaries_have_memory_of_their_own_where_that_is_less() -> None:
    sizes = [6400 * KIB, 6400 * KIB, 100 * KIB, 100 * KIB, 100 * KIB, 25600 * KIB]
    least = 4 * (25600 * KIB + 100 * KIB)
    steps, arena = planned(sizes, False)
    assert arena == 4 * 12800 * KIB and taken(steps, sizes, arena) > least + 40000 * KIB
    steps, arena = planned(sizes, True)
    assert taken(steps, sizes, arena) <= least + SLACK
    steps, arena = planned([KIB, KIB, KIB], True)
    assert arena == 8 * KIB  # both temporaries
    steps, arena = planned([KIB, KIB], True)
    assert arena == 0  # one alone is allocated anyway


def test_what_begins_behind_the_most_is_in_an_arena_that_is_taken_there() -> None:
    sizes = [100 * KIB, 12800 * KIB, 12800 * KIB, *[100 * KIB] * 5]
    steps, arena = planned(sizes, True)
    assert taken(steps, sizes, arena) == 4 * 25600 * KIB
    assert [s.arena is None for s in steps if isinstance(s, Alloc)] == [True, True, False, False, False, True]


def test_calls_take_about_as_much_as_is_in_use_at_once() -> None:
    draw = random.Random(0)
    for _ in range(200):
        sizes = [draw.choice((1, 16, 64, 200, 1000, 20000)) * KIB for _ in range(draw.randint(1, 12))]
        steps, arena = planned(sizes, True)
        used = 4 * max(a + b for a, b in zip([0, *sizes], sizes))
        assert taken(steps, sizes, arena) <= allowed(used, SLACK), sizes
