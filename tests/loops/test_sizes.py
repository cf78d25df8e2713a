"""Integer expressions: what must simplify, and that simplification never changes a value."""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.graph.sizes import Expr, Sym, affine, bounds, evaluate, free_syms, subs

i, j, k = Sym("i", 0, 7), Sym("j", 0, 15), Sym("k", 0, 99)
n = Sym("n", 1)


def test_expressions_are_interned():
    assert Sym("i", 0, 7) is i
    assert 16 * i + j is j + i * 16
    assert i - i == 0 and (i + 3) - i == 3


def test_reshape_indices_simplify():
    assert (16 * i + j) // 16 is i
    assert (16 * i + j) % 16 is j
    assert (64 * i + 16 * (k % 4) + j) % 64 is 16 * (k % 4) + j
    assert (16 * i + j) // 32 is i // 2
    assert (16 * i + j) % 32 is 16 * (i % 2) + j
    assert (k // 4) // 5 is k // 20
    assert (k % 20) % 5 is k % 5
    assert (k % 20) // 5 is (k // 5) % 4
    assert j // 16 == 0 and j % 16 is j


def test_splitting_and_joining_a_dimension_gives_it_back():
    assert 16 * (k // 16) + k % 16 is k
    assert 64 * (k // 64) + 16 * ((k // 16) % 4) + k % 16 is k
    assert 3 * 16 * (k // 16) + 3 * (k % 16) is 3 * k


def test_symbolic_sizes():
    assert (n * i) // n is i
    assert (n * i) % n == 0
    assert n // n == 1


def test_bounds_affine_and_substitution():
    assert bounds(16 * i + j) == (0, 127)
    assert affine(16 * i + j + 3, i) == (16, j + 3)
    assert affine(n * i + j, i) == (n, j)
    assert affine(i // 2, i) is None and affine(i * i, i) is None
    assert affine(j, i) == (0, j)
    assert subs(16 * i + j, {i: j, j: i}) is 16 * j + i
    assert free_syms(i + k // 3) == {i, k}


def test_printing_is_python_and_pickling_keeps_identity():
    e = 16 * i - (k // 3) * 2 + (j + 1) % 5 - 4
    assert eval(str(e), {"i": 3, "j": 4, "k": 50}) == evaluate(e, {i: 3, j: 4, k: 50})
    assert pickle.loads(pickle.dumps(e)) is e


syms = st.sampled_from([i, j, k])
expressions = st.recursive(
    st.one_of(st.integers(-20, 20), syms),
    lambda e: st.one_of(
        st.tuples(st.sampled_from("+-*"), e, e), st.tuples(st.sampled_from("/%"), e, st.integers(1, 40))
    ),
    max_leaves=12,
)


def build(tree, values):
    """The value of a random tree over whatever `values` maps the symbols to."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, Expr):
        return values[tree]
    op, a, b = tree
    a, b = build(a, values), build(b, values)
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // b,
        "%": lambda: a % b,
    }[op]()


@settings(max_examples=400, deadline=None)
@given(expressions, st.integers(0, 7), st.integers(0, 15), st.integers(0, 99))
def test_simplified_expressions_keep_their_value(tree, a, b, c):
    values = {i: a, j: b, k: c}
    e = build(tree, {s: s for s in values})
    expected = build(tree, values)
    assert evaluate(e, values) == expected == subs(e, values)
    assert bounds(e)[0] <= expected <= bounds(e)[1]
