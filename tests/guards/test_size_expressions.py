"""Guards that compare sizes, or compute with them: the native tree, which has 64 bits, and Python agree on all of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt
from smelt import _native
from smelt.capture.environment.dynamic_sizes import with_any
from smelt.guards.changed_numbers import size_source
from smelt.guards.guard import Guard, first_failing
from smelt.guards.guard_failures import explain, explain_guard
from smelt.guards.source import Source
from smelt.guards.tensor_facts import tensor_facts
from smelt.guards.tree_layout import build
from smelt.report import inspect
from smelt.shapes.expr import Expression, Table

X, Y, N = (Source("arg", name, index=i) for i, name in enumerate(("x", "y", "n")))
TABLE = Table()
X0, X1, Y0, Y1 = (TABLE.leaf(size_source(t, d)) for t in (X, Y) for d in (0, 1))
LEAF_N = TABLE.leaf(N)
HUGE = 1 << 62
LEAST = -(1 << 63)


def call(op: str, *args: Any) -> Expression:
    return TABLE.call(op, *(a if isinstance(a, Expression) else TABLE.const(a) for a in args))


def of(expression: Expression, expected: Any = True) -> Guard:
    return Guard("expression", X, (expression, expected))


def tensors() -> list[Guard]:
    """Of two tensors of two dimensions, of any sizes from two on."""
    return [Guard("tensor", t, with_any(tensor_facts(torch.empty(4, 6)), {0: 0, 1: 0})) for t in (X, Y)]


class Checked:
    """A tree, whose answers are compared with those of Python, in a complete pass and in those over its notes."""

    def __init__(self, *guards: Guard) -> None:
        self.guards = [*tensors(), Guard("type", N, int), *guards]
        self.spec = build(self.guards, ())
        self.tree: Any = _native.GuardTree(self.spec.native)

    def __call__(self, x: Sequence[int], y: Sequence[int], n: Any = 0) -> bool:
        slots = torch.empty(*x), torch.empty(*y), n
        wanted = first_failing(self.guards, slots)
        for _ in range(3):
            assert (self.tree.check(*slots) is not None) is (wanted is None)
        number = self.tree.explain(*slots)
        assert number is None if wanted is None else not _holds(self.spec.guards[number], slots)
        return wanted is None


def _holds(guard: Guard, slots: Any) -> bool:
    return first_failing([guard], slots) is None


def native_steps(guard: Guard) -> list[Any]:
    """The programs that the tree has for this guard."""
    nodes = build([*tensors(), guard], ()).nodes
    return [value for *_, checks, _ in nodes for _, kind, value in checks if kind == "expression"]


@pytest.mark.parametrize(
    ("expression", "expected", "x", "y", "n", "held"),
    [
        (call("eq", X0, Y0), True, (3, 5), (3, 7), 0, True),
        (call("eq", X0, Y0), True, (3, 5), (4, 5), 0, False),
        (call("eq", X0, Y0), False, (3, 5), (4, 5), 0, True),
        (call("eq", X0, X1), True, (5, 5), (4, 5), 0, True),
        (call("eq", X0, X1), True, (5, 6), (4, 5), 0, False),
        (call("ne", X0, Y1), True, (5, 6), (4, 5), 0, False),
        (call("le", X1, 512), True, (2, 512), (2, 2), 0, True),
        (call("le", X1, 512), True, (2, 513), (2, 2), 0, False),
        (call("gt", X1, 512), False, (2, 513), (2, 2), 0, False),
        (call("eq", call("mod", X0, 4), 0), True, (8, 2), (2, 2), 0, True),
        (call("eq", call("mod", X0, 4), 0), True, (9, 2), (2, 2), 0, False),
        (call("eq", call("mod", call("neg", X0), 4), 3), True, (9, 2), (2, 2), 0, True),  # as Python's % is
        (call("eq", call("floordiv", call("neg", X0), 4), -3), True, (9, 2), (2, 2), 0, True),
        (call("eq", call("floordiv", X0, -4), -3), True, (9, 2), (2, 2), 0, True),
        (call("eq", call("mod", X0, -4), -3), True, (9, 2), (2, 2), 0, True),
        (call("lt", X0, LEAF_N), True, (3, 2), (2, 2), 4, True),
        (call("lt", X0, LEAF_N), True, (3, 2), (2, 2), 3, False),
        (call("lt", X0, LEAF_N), True, (3, 2), (2, 2), 1 << 80, True),  # not of 64 bits
        (call("lt", X0, LEAF_N), True, (3, 2), (2, 2), -(1 << 80), False),
        (call("gt", call("mul", X0, LEAF_N), 0), True, (4, 2), (2, 2), HUGE, True),  # the product is none
        (call("lt", call("mul", X0, LEAF_N), 0), True, (4, 2), (2, 2), HUGE, False),
        (call("gt", call("add", LEAF_N, HUGE), X0), True, (4, 2), (2, 2), HUGE, True),
        (call("lt", call("sub", LEAF_N, X0), 0), True, (4, 2), (2, 2), LEAST, True),
        (call("gt", call("neg", LEAF_N), X0), True, (4, 2), (2, 2), LEAST, True),
        (call("gt", call("abs", LEAF_N), X0), True, (4, 2), (2, 2), LEAST, True),
        (call("gt", call("floordiv", LEAF_N, -1), X0), True, (4, 2), (2, 2), LEAST, True),
        (call("eq", call("mod", LEAF_N, -1), 0), True, (4, 2), (2, 2), LEAST, True),
        (call("ge", call("floordiv", X0, LEAF_N), 0), True, (4, 2), (2, 2), 0, False),  # raises
        (call("ge", call("mod", X0, LEAF_N), 0), True, (4, 2), (2, 2), 0, False),
        (call("floordiv", X0, LEAF_N), int, (4, 2), (2, 2), 3, True),
        (call("floordiv", X0, LEAF_N), int, (4, 2), (2, 2), 0, False),
        (call("floordiv", X0, LEAF_N), float, (4, 2), (2, 2), 3, False),
        (
            call("eq", call("add", call("lt", X0, X1), 1), 2),
            True,
            (2, 3),
            (2, 2),
            0,
            True,
        ),  # True is a number
        (call("gt", call("max", X0, Y1), call("min", X1, Y0)), True, (2, 3), (4, 5), 0, True),
        (call("lt", call("truediv", X0, X1), 1), True, (2, 3), (2, 2), 0, True),  # floats
    ],
)
def test_guards_on_sizes(expression: Expression, expected: Any, x: Any, y: Any, n: int, held: bool) -> None:
    assert Checked(of(expression, expected))(x, y, n) is held


def test_each_of_several_guards_can_fail() -> None:
    guards = [
        of(call("eq", X0, Y0)),
        of(call("eq", X1, Y1)),
        of(call("lt", X0, Y1)),
        of(call("eq", call("mod", X1, 2), 0)),
    ]
    checked = Checked(*guards)
    assert checked((3, 8), (3, 8))
    for x, y, failing in (
        ((3, 8), (4, 8), 0),
        ((3, 8), (3, 9), 1),
        ((9, 8), (9, 8), 2),
        ((3, 9), (3, 9), 3),
    ):
        assert not checked(x, y)
        number = checked.tree.explain(torch.empty(x), torch.empty(y), 0)
        assert checked.spec.guards[number] is guards[failing]


def test_an_equality_is_part_of_a_tensors_check_and_others_read_words() -> None:
    assert native_steps(of(call("eq", X0, Y0))) == []
    [(program, wanted)] = native_steps(of(call("lt", X0, Y0)))
    assert wanted is True
    assert program == (("size", 0), ("size", 1), (operator.lt, 2, "lt"))


def test_text_of_a_failure_has_the_values() -> None:
    guard = of(call("le", X1, 512))
    assert guard.text == "L['x'].shape[1] <= 512"
    text = str(explain_guard(guard, (torch.empty(2, 600), torch.empty(2, 2))))
    assert text == "L['x'].shape[1] <= 512: expected this to hold, found L['x'].shape[1] = 600"
    equal = of(call("eq", X0, Y0))
    text = str(explain([*tensors(), equal], (torch.empty(5, 4), torch.empty(6, 4))))
    assert text.endswith("found L['x'].shape[0] = 5, L['y'].shape[0] = 6")
    assert str(explain_guard(equal, (torch.empty(5, 4),))).endswith(
        "found L['x'].shape[0] = 5, no L['y'].shape[0]"
    )


def test_a_recompilation_names_the_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] <= 512 else x

    compiled = smelt.compile(f, dynamic=True)
    for size in (8, 600):
        compiled(torch.ones(4, size))
    first, second = inspect.entries(compiled)
    assert "L['x'].shape[1] <= 512" in str(first.guards) or "not (512 < L['x'].shape[1])" in str(first.guards)
    assert "found L['x'].shape[1] = 600" in str(second.reason)


def test_sizes_that_no_tensor_guard_covers_are_read_as_objects() -> None:
    guard = of(call("eq", X0, Y0))
    for several in ([guard], [tensors()[0], guard], [tensors()[1], guard]):
        tree: Any = _native.GuardTree(build(several, ()).native)
        for x, y in ((torch.empty(3, 4), torch.empty(3, 4)), (torch.empty(3, 4), torch.empty(5, 4))):
            assert (tree.check(x, y) is not None) is (first_failing(several, (x, y)) is None)


class _Own(torch.Tensor):
    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise AssertionError("a guard ran user code")


def test_a_class_with_a_shape_of_its_own_is_not_asked() -> None:
    x = torch.empty(3, 4).as_subclass(_Own)
    facts = with_any(tensor_facts(torch.empty(3, 4)), {0: 0})
    facts = type(facts)(**{**facts.__dict__, "type": _Own})
    guards = [Guard("tensor", X, facts), of(call("lt", X0, 9))]
    tree: Any = _native.GuardTree(build(guards, ()).native)
    assert tree.check(x) is None


numbers = st.one_of(
    st.integers(-9, 9),
    st.sampled_from([0, 1, -1, HUGE, -HUGE, LEAST, (1 << 63) - 1, 1 << 63, LEAST - 1, 1 << 70]),
)
BINARY = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "truediv")
UNARY = ("neg", "abs", "int", "floor", "round")
LEAVES = (X0, X1, Y0, Y1, LEAF_N)


@st.composite
def expressions(draw: Any, depth: int) -> Expression:
    if depth == 0:
        return draw(st.sampled_from(LEAVES)) if draw(st.integers(0, 3)) else TABLE.const(draw(numbers))
    if not draw(st.integers(0, 4)):
        return call(draw(st.sampled_from(UNARY)), draw(expressions(depth - 1)))
    op = draw(st.sampled_from(BINARY))
    return call(op, draw(expressions(draw(st.integers(0, depth - 1)))), draw(expressions(depth - 1)))


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.tuples(expressions(3), st.sampled_from([True, False, True, False, int])), min_size=1, max_size=3
    ),
    st.lists(
        st.tuples(*[st.tuples(st.integers(2, 7), st.integers(2, 7))] * 2, st.one_of(numbers, st.booleans())),
        min_size=1,
        max_size=4,
    ),
)
def test_random_expressions(programs: list[tuple[Expression, Any]], calls: list[Any]) -> None:
    # The tree is asked alone: what fails first may differ, what holds may not.
    guards = [of(expression, expected) for expression, expected in programs if _has_leaf(expression)]
    everything = [*tensors(), *guards]
    tree: Any = _native.GuardTree(build(everything, ()).native)
    for x, y, n in calls:
        slots = torch.empty(x), torch.empty(y), n
        wanted = first_failing(everything, slots) is None
        assert (tree.check(*slots) is not None) is wanted, [g.text for g in guards]


def _has_leaf(expression: Expression) -> bool:
    return expression.op == "leaf" or any(isinstance(a, Expression) and _has_leaf(a) for a in expression.args)


def test_trees_of_many_tensors_and_sizes() -> None:
    """More words than fit on the stack, in tensors of which the first is the shortest."""
    sources = [Source("arg", f"t{i}", index=i) for i in range(70)]
    facts = with_any(tensor_facts(torch.empty(4, 6)), {0: 0, 1: 0})
    guards = [Guard("tensor", o, facts) for o in sources]
    sizes = [TABLE.leaf(size_source(o, 1)) for o in sources]
    guards += [Guard("expression", o, (call("lt", a, b), True)) for o, a, b in zip(sources, sizes, sizes[1:])]
    guards += [
        Guard("expression", o, (call("eq", TABLE.leaf(size_source(o, 0)), TABLE.leaf(size_source(sources[69], 0))), True))
        for o in sources[:69]
    ]  # fmt: skip
    tree: Any = _native.GuardTree(build(guards, ()).native)
    good = [torch.empty(3, 2 + i) for i in range(70)]
    for place in (None, 0, 35, 69):
        slots = [torch.empty(4, 2 + i) if i == place else t for i, t in enumerate(good)]
        assert (tree.check(*slots) is not None) is (place is None)
        assert (first_failing(guards, slots) is None) is (place is None)
    assert tree.check(*good[:1], *good[:69]) is None
