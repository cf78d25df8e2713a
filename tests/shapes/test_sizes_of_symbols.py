"""Sizes that depend on symbols: what is known of them, and what must be."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.errors import NeedsFixedSize
from smelt.graph.sample_sizes import MOST, MOST_UNBACKED, more_of, values_of
from smelt.shapes.expr import Sym, all_static, bounds, evaluate, is_one, loop_sym, proves_le, subs, text
from smelt.shapes.number_operations import OPERATIONS

s, t = Sym("s", 2), Sym("t", 2)
i, j = Sym("i", 0, 1 << 40), Sym("j", 0, 99)


def test_what_is_at_most_what():
    assert proves_le(2, s) and proves_le(1, s - 1) and proves_le(s, s + t) and proves_le(s, s * t)
    assert proves_le(s - 1, s) and not proves_le(s, s - 1)
    assert not proves_le(3, s) and not proves_le(s, 1000) and not proves_le(s, t)
    assert proves_le(3, 4) and not proves_le(4, 3)


def test_quotients_are_at_most_what_is_divided():
    assert proves_le(s // 2, s) and proves_le(2 * (s // 2), s) and not proves_le(s, 2 * (s // 2))
    assert proves_le(s, 2 * ((s + 1) // 2)) and proves_le(2 * ((s + 1) // 2), s + 1)
    assert not proves_le(2 * ((s + 1) // 2), s)
    assert proves_le(s // 3 * 2 + s // 3, s) and proves_le(s // 2 + s // 2, s)


def test_products_are_divided_by_their_factors():
    assert (s + 10) * (s + 10) % (s + 10) == 0 and (s + 10) * (t + 3) // (t + 3) == s + 10
    assert (s + t) * (s + t + 1) // (s + t) == s + t + 1 and (s * s - 100) // (s + 10) == s - 10
    assert (s + 10) * (s + 10) * 4 // (2 * s + 20) == 2 * s + 20
    for n, m in itertools.product(range(2, 9), repeat=2):
        for x, y in (((s + 10) * (s + 3) + 1, s + 10), (s * s + t, s + 1), (s * t * t - 1, t + s)):
            of = {s: n, t: m}
            assert evaluate(x // y, of) == evaluate(x, of) // evaluate(y, of)
            assert evaluate(x % y, of) == evaluate(x, of) % evaluate(y, of)


def test_indices_of_loops_end_below_their_sizes():
    x, y, z = (loop_sym(f"i{k}", size) for k, size in enumerate((s, t - 1, s * t)))
    assert proves_le(x + 1, s) and proves_le(x * t + y, s * t) and not proves_le(s, x + 1)
    assert proves_le(0, (t - 1) * x + y) and proves_le(0, s * t - 1 - z) and not proves_le(0, s * t - 2 - z)
    assert proves_le(0, s * (t - 1) - 1 - x) and not proves_le(x, y) and not proves_le(0, x - 1)
    assert not proves_le(loop_sym("i", s), loop_sym("i", t))


def test_a_size_that_may_be_one_is_asked_for():
    assert is_one(1) and not is_one(2) and not is_one(s) and not is_one(3 * s - 1)
    with pytest.raises(NeedsFixedSize) as raised:
        is_one(s - 1)
    assert raised.value.symbols == {s}


def test_all_symbols_that_are_in_the_way_are_named():
    assert all_static(3, 4) == (3, 4)
    with pytest.raises(NeedsFixedSize) as raised:
        all_static(3, s, t - 1)
    assert raised.value.symbols == {s, t}


numbers = st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(0, 200), st.integers(0, 99))
syms = st.sampled_from([s, t, i, j])
expressions = st.recursive(
    st.one_of(st.integers(-9, 9), syms),
    lambda e: st.one_of(
        st.tuples(st.sampled_from("+-*"), e, e),
        st.tuples(
            st.sampled_from("/%"),
            e,
            st.one_of(st.integers(1, 9), st.sampled_from([s, t, s * t, s + 1, 4 * t])),
        ),
    ),
    max_leaves=9,
)


def build(tree, values):
    """The value of a random tree over whatever `values` maps the symbols to."""
    if not isinstance(tree, tuple):
        return subs(tree, values)
    op, a, b = tree
    a, b = build(a, values), build(b, values)
    return (
        a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a // b if op == "/" else a % b
    )


@settings(max_examples=400, deadline=None)
@given(expressions, numbers)
def test_simplified_expressions_keep_their_value(tree, numbers):
    values = dict(zip((s, t, i, j), numbers))
    e, expected = build(tree, {}), build(tree, values)
    assert evaluate(e, values) == expected == subs(e, values)
    assert bounds(e)[0] <= expected <= bounds(e)[1]


@settings(max_examples=300, deadline=None)
@given(expressions, expressions, numbers)
def test_what_is_proved_holds(a, b, numbers):
    a, b = build(a, {}), build(b, {})
    values = dict(zip((s, t, i, j), numbers))
    if proves_le(a, b):
        assert evaluate(a, values) <= evaluate(b, values)


def test_what_is_padded_to_a_multiple_is_one():
    """So that windows of it are as many as the quotient says, and the next padding begins with a plain quotient."""
    assert s + -s % 4 == 4 * ((s + 3) // 4) and (s + (4 - s % 4) % 4) // 4 == (s + 3) // 4
    half = (s + -s % 4) // 4
    assert (half + -half % 2) // 2 == (s + 7) // 8
    assert 3 * t + 2 * s + 2 * (-s % 5) + 1 == 10 * ((s + 4) // 5) + 3 * t + 1
    assert s * t + (-s * t) % 3 == 3 * ((s * t + 2) // 3)


@given(st.integers(2, 60), st.integers(2, 60), st.integers(2, 9), st.integers(-4, 4), st.integers(-3, 3))
def test_padding_adds_up_as_numbers_do(a: int, b: int, c: int, k: int, more: int):
    x = 2 * s + t + more
    padded = k * (-x % c) + k * x + t
    n = 2 * a + b + more
    assert evaluate(padded, {s: a, t: b}) == k * (-n % c) + k * n + b


def test_only_short_ranges_are_tried_at_more_numbers() -> None:
    """Operators that are run to know what they give would ask for as much memory as numbers from a long one say."""
    long, short = Sym("s0", 2, 100_000), Sym("s1", 2, 9)
    assert list(more_of([long])) == []
    tried = list(more_of([long, short]))
    assert tried and all(numbers[long] < 1000 and 2 <= numbers[short] <= 9 for numbers in tried)


def by_operations(e, values):
    if isinstance(e, int):
        return e
    if e.op == "leaf":
        return values[e.args[0]]
    return OPERATIONS[e.op].function(*(by_operations(a, values) for a in e.args))


@settings(max_examples=300, deadline=None)
@given(expressions, numbers)
def test_operations_text_and_terms_agree(tree, numbers):
    values = dict(zip((s, t, i, j), numbers))
    e = build(tree, {})
    assert by_operations(e, values) == evaluate(e, values)
    assert eval(text(e, str), {str(sym): n for sym, n in values.items()}) == evaluate(e, values)


@pytest.mark.parametrize("letter, count", [("s", MOST), ("u", MOST_UNBACKED), ("w", MOST), ("v", MOST)])
def test_no_sum_of_two_samples_looks_like_a_multiple_of_a_third(letter, count):
    samples = [values_of(Sym(f"{letter}{k}", 2)) for k in range(count)]
    spans = [(most - least, middle - least) for least, middle, most in samples]
    for (a, b), third in itertools.product(itertools.combinations_with_replacement(spans, 2), spans):
        span, part = a[0] + b[0], a[1] + b[1]
        assert third in (a, b) or span * third[1] != part * third[0]
