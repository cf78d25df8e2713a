"""Guards on numbers and on what arithmetic gives: the native tree, the Python evaluation and the text agree."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import _native
from smelt.guards import tree_layout
from smelt.guards.changed_numbers import changed_numbers
from smelt.guards.guard import Guard, first_failing
from smelt.guards.guard_failures import explain
from smelt.guards.source import Source
from smelt.shapes.expr import Expression, Table, evaluate, leaves, postfix, text
from smelt.shapes.number_operations import OPERATIONS

A, B = (Source("arg", name, index=i) for i, name in enumerate("ab"))
TABLE = Table()
LEAF_A, LEAF_B = TABLE.leaf(A), TABLE.leaf(B)


def call(op: str, *args: Any) -> Expression:
    return TABLE.call(op, *(a if isinstance(a, Expression) else TABLE.const(a) for a in args))


def accepts(guard: Guard, *slots: Any) -> bool:
    spec = tree_layout.build([guard], ())
    natively = _native.GuardTree(spec.native).check(*slots) is not None
    assert natively == (first_failing([guard], slots) is None)
    return natively


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        (int, 3, True), (int, -(1 << 63), True), (int, (1 << 63) - 1, True), (int, 1 << 63, False), (int, 3.0, False),
        (int, True, False), (int, None, False), (float, 3.0, True), (float, math.nan, True), (float, math.inf, True),
        (float, 3, False), (float, "3", False),
    ],
)  # fmt: skip
def test_a_number_of_a_type(kind: type, value: Any, held: bool) -> None:
    assert accepts(Guard("number", A, kind), value) is held


class Loud(int):
    def __lt__(self, other: object) -> bool:
        raise AssertionError("a guard ran user code")

    __add__ = __gt__ = __lt__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("expression", "expected", "slots", "held"),
    [
        (call("lt", LEAF_A, 5), True, (4,), True),
        (call("lt", LEAF_A, 5), True, (5,), False),
        (call("lt", LEAF_A, 5), False, (5,), True),
        (call("eq", call("mod", LEAF_A, 3), 0), True, (9,), True),
        (call("gt", LEAF_A, LEAF_B), True, (2, 1.5), True),
        (call("gt", LEAF_A, LEAF_B), True, (2, math.nan), False),
        (call("truediv", 1, LEAF_A), float, (4,), True),
        (call("truediv", 1, LEAF_A), float, (0,), False),
        (call("pow", 2, LEAF_A), int, (4,), True),
        (call("pow", 2, LEAF_A), int, (-4,), False),
        (call("sqrt", LEAF_A), float, (-1.0,), False),
        (call("lt", LEAF_A, 5), True, ("x",), False),
        (call("lt", LEAF_A, 5), True, (Loud(3),), False),
        (call("lt", call("add", LEAF_A, 1), 5), True, (Loud(3),), False),
        (call("gt", call("mul", LEAF_A, LEAF_A), 0), True, (1 << 62,), True),
    ],
)
def test_what_arithmetic_gives(expression: Expression, expected: Any, slots: Any, held: bool) -> None:
    slots = slots if len(slots) == 2 else (*slots, 0)
    assert accepts(Guard("expression", A, (expression, expected)), *slots) is held


numbers = st.one_of(
    st.integers(-20, 20), st.floats(allow_nan=True), st.sampled_from([0, 1, -1, 1 << 62, 0.0, -0.0])
)
exponents = st.one_of(st.integers(-20, 20), st.floats(allow_nan=True))
BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "min",
    "max",
    "lt",
    "le",
    "eq",
    "ne",
    "atan2",
)
UNARY = ("neg", "abs", "int", "float", "round", "sqrt", "exp", "log", "cos", "floor")


@st.composite
def expressions(draw: Any, depth: int = 3) -> Expression:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([LEAF_A, LEAF_B])) if draw(st.booleans()) else TABLE.const(draw(numbers))
    if draw(st.booleans()):
        return call(draw(st.sampled_from(UNARY)), draw(expressions(depth - 1)))
    if draw(st.integers(0, len(BINARY))) == 0:  # exponents stay small: Python would compute 2 ** 20 ** 20 too
        return call("pow", draw(expressions(depth - 1)), draw(exponents))
    return call(draw(st.sampled_from(BINARY)), draw(expressions(depth - 1)), draw(expressions(depth - 1)))


@settings(max_examples=400, deadline=None)
@given(expressions(), numbers, numbers)
def test_source_program_and_evaluation_agree(expression: Expression, a: Any, b: Any) -> None:
    slots = {A: a, B: b}
    try:
        found = evaluate(expression, slots)
    except (ArithmeticError, ValueError, TypeError):
        found = None
    if isinstance(found, int) and found.bit_length() > 4000:
        return
    source = text(expression, lambda source: str(source.key))
    try:
        written = eval(source, {"math": math, "a": a, "b": b})
    except (ArithmeticError, ValueError, TypeError):
        written = None
    assert repr(written) == repr(found), source
    assert len(postfix(expression, lambda source: ("leaf", source.index))) > 0
    for expected in (True, False, int, float):
        guard = Guard("expression", A, (expression, expected))
        if leaves(expression):
            held = type(found) is expected if isinstance(expected, type) else found is expected
            assert accepts(guard, a, b) is held


def test_equal_expressions_are_one_object() -> None:
    assert call("add", LEAF_A, 1) is call("add", LEAF_A, 1)
    assert call("add", LEAF_A, 1) is not call("add", LEAF_A, 1.0)
    assert call("mul", LEAF_A, 0.0) is not call("mul", LEAF_A, -0.0)


def test_all_operations_are_functions_of_c() -> None:
    functions = [f for op in OPERATIONS.values() for f in op.steps or (op.function,)]
    assert all(type(f).__name__ in ("builtin_function_or_method", "type") for f in functions)


def test_text_and_explanation() -> None:
    guard = Guard("expression", A, (call("lt", call("mod", LEAF_A, 3), LEAF_B), True))
    assert guard.text == "(L['a'] % 3) < L['b']"
    assert Guard("expression", A, (call("lt", LEAF_A, -1), False)).text == "not (L['a'] < (-1))"
    assert Guard("expression", A, (call("truediv", 1, LEAF_A), float)).text == "type((1 / L['a'])) is float"
    assert (
        str(explain([guard], (2, 1)))
        == "(L['a'] % 3) < L['b']: expected this to hold, found L['a'] = 2, L['b'] = 1"
    )
    assert str(explain([Guard("number", A, int)], (2.0, 1))) == "L['a'].__class__: expected int, found float"


def test_which_numbers_have_changed() -> None:
    other = A.child("item", 0)
    guards = [Guard("eq", A, 3), Guard("eq", B, 2.5), Guard("eq", other, 1)]
    assert changed_numbers(guards, (4, 2.5)) == {A.path}
    assert changed_numbers(guards, (4, 3.5)) == {A.path, B.path}
    assert changed_numbers(guards, (True, 3)) == set()  # of another type
    assert changed_numbers([Guard("eq", A, 0.0)], (-0.0, 0)) == {A.path}
    assert changed_numbers([Guard("eq", A, True), Guard("eq", B, "x")], (False, "y")) == {B.path}


def test_a_program_that_is_none_is_refused() -> None:
    for steps in (
        (),
        (("leaf", 0), ("leaf", 0)),
        ((lambda x: x, 1),),
        (("leaf", 0), (print, 2)),
        (("leaf", 7),),
        (("size", 0),),  # that no tensor's check has written
        (("leaf", 0), ("size", -1), (operator.eq, 2, "eq")),
    ):
        node = (-1, "arg", 0, ((0, "expression", (steps, True)),), -1)
        with pytest.raises((TypeError, ValueError, OverflowError)):
            _native.GuardTree(((node,), 0))
