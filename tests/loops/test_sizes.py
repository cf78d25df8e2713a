"""Integer expressions: what must simplify, and that simplification never changes a value."""

import pickle
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.shapes.expr import (
    LIKELY,
    Expr,
    Sym,
    affine,
    bounds,
    ceil_div,
    evaluate,
    free_syms,
    likely,
    loop_sym,
    subs,
)

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


# ---- sizes that are no numbers

m = Sym("m", 2)
a, b, c = loop_sym("a", n + 1), loop_sym("b", m), loop_sym("c", 64)
SYMBOLIC = (a, b, c, n, m)


def test_loops_over_sizes_that_are_no_numbers_are_below_them():
    assert (a * m + b) // m is a
    assert (a * m + b) % m is b
    assert (64 * (a * m + b) + c) // (64 * m) is a
    assert (64 * (a * m + b) + c) % (64 * m) is 64 * b + c
    assert (64 * (a * m + b) + c) // 64 % m is b
    assert ((a * m + b) // m * m + (a * m + b) % m) is a * m + b
    assert (a * m + b) // (n * m) is a // n  # a goes up to n


def test_what_is_counted_from_the_end_is_not_negative():
    assert bounds(m - 1 - b)[0] == 0
    assert bounds((n - a) * m + c)[0] == 0
    assert bounds(m - 2 - b)[0] == -1
    assert bounds((7 - i) * m + b)[0] == 0
    assert bounds(m - 1 - b % m)[0] == 0 and bounds(m - 1 - (a * 3 + c) % m)[0] == 0
    assert bounds(m - 1 - a)[0] < 0


def test_splitting_and_joining_by_a_size_gives_it_back():
    x = loop_sym("x", n * m)
    assert m * (x // m) + x % m is x
    assert 64 * m * (x // m) + 64 * (x % m) is 64 * x
    assert n * m * (x // m) + n * (x % m) is n * x
    assert m * (x // m) + x % n is not x


def test_loops_of_one_name_over_two_sizes_are_two():
    assert loop_sym("a", n) is loop_sym("a", n) is not loop_sym("a", m)
    assert pickle.loads(pickle.dumps(a * m + b)) is a * m + b
    assert loop_sym("i", 8) is i


def test_what_is_likely_is_a_number():
    assert likely(5) == 5 and likely(n * 2 + 1) == 2 * LIKELY + 1
    assert likely(Sym("k", 0, 9)) == 9 and likely(Sym("k", 1000)) == 1000
    assert ceil_div(7, 2) == 4 and ceil_div(64 * n, 16) is 4 * n


sums = st.lists(
    st.tuples(st.integers(-2, 3), st.lists(st.sampled_from(SYMBOLIC), max_size=2)), min_size=1, max_size=3
)
divisors = st.tuples(st.integers(1, 3), st.lists(st.sampled_from((n, m)), max_size=2), st.integers(0, 2))


def total(terms):
    result = 0
    for factor, atoms in terms:
        result = result + prod(atoms, start=factor)
    return result


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(sums, st.sampled_from(["//", "%"]), divisors), min_size=1, max_size=3), st.data())
def test_quotients_by_sizes_keep_their_value(steps, data):
    """Sums over loops and sizes, divided by products of sizes again and again, and joined."""
    e = 0
    literal = []
    for terms, sign, (factor, atoms, more) in steps:
        divisor = prod(atoms, start=factor) + more
        x = total(terms) + e
        literal.append((terms, sign, divisor))
        e = (
            (x // divisor) * divisor + x % divisor
            if more == 1
            else x // divisor
            if sign == "//"
            else x % divisor
        )
    for _ in range(4):
        values = {
            n: data.draw(st.integers(1, 5)),
            m: data.draw(st.integers(2, 5)),
            c: data.draw(st.integers(0, 63)),
        }
        values |= {a: data.draw(st.integers(0, values[n])), b: data.draw(st.integers(0, values[m] - 1))}
        number = 0
        for (terms, sign, divisor), (_, _, (_, _, more)) in zip(literal, steps):
            by = evaluate(divisor, values)
            x = sum(k * prod(evaluate(f, values) for f in atoms) for k, atoms in terms) + number
            number = x if more == 1 else x // by if sign == "//" else x % by
        assert evaluate(e, values) == number == subs(e, values)
        assert bounds(e)[0] <= number <= bounds(e)[1]
