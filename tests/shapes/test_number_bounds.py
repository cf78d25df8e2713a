"""Bounds of expressions: whatever the leaves are within theirs, the value lies between, and what is decided holds."""

from __future__ import annotations

import random

import pytest

from smelt.shapes.expr import Table, evaluate_with
from smelt.shapes.number_bounds import always, bounds
from smelt.shapes.number_operations import OPERATIONS

LEAVES = {"u": (0.0, 1.0), "v": (-2.5, 0.5), "i": (-3, 4), "p": (1, 6), "w": None}
UNARY = ("neg", "abs", "int", "float", "float32", "round", "floor", "ceil", "trunc", "sqrt")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "min", "max")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


def drawn(rng):
    return {
        "u": rng.choice([0.0, 1.0, rng.random()]),
        "v": rng.uniform(-2.5, 0.5),
        "i": rng.randint(-3, 4),
        "p": rng.randint(1, 6),
        "w": rng.choice([float("inf"), float("nan"), 0.0]),
    }


def expression(table, rng, depth):
    if not depth:
        constant = rng.choice([0, 1, -2, 0.5, -1.25, float("inf")])
        return table.leaf(rng.choice(list(LEAVES))) if rng.random() < 0.7 else table.const(constant)
    op = rng.choice(UNARY + BINARY)
    arity = 1 if op in UNARY else 2
    return table.call(op, *(expression(table, rng, depth - 1) for _ in range(arity)))


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions(seed):
    rng = random.Random(seed)
    names = {name: name for name in LEAVES}
    for _ in range(25):
        table = Table()
        made = expression(table, rng, rng.randint(1, 3))
        compared = table.call(rng.choice(COMPARED), made, table.const(rng.choice([0, 1, 0.25, -3])))
        found = bounds(made, LEAVES)
        held = [expected for expected in (True, False) if always(compared, expected, LEAVES)]
        for _ in range(20 if found or held else 0):
            values = drawn(rng)
            if found is not None:
                value = evaluate_with(made, lambda key: values[names[key]])
                assert type(value) is type(found[0])
                assert found[0] <= value <= found[1]
            for expected in held:
                assert evaluate_with(compared, lambda key: values[names[key]]) is expected


def test_decisions():
    table = Table()
    u = table.leaf("u")
    below = table.call("lt", u, table.const(0.0))
    assert always(below, False, LEAVES)
    assert not always(below, True, LEAVES)
    half = table.call("lt", u, table.const(0.5))
    assert not always(half, True, LEAVES) and not always(half, False, LEAVES)
    halved = table.call("truediv", u, table.const(2))
    assert always(halved, float, LEAVES)
    assert not always(table.call("truediv", table.const(2), u), float, LEAVES)
    assert set(OPERATIONS) >= {*UNARY, *BINARY, *COMPARED}
