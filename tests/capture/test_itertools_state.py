"""Reconstruction of itertools iterators from their fields, in every state (CPython 3.14)."""

import itertools
import operator
import sys
from itertools import islice

import pytest

from smelt.capture.graph_breaks.itertools_state import advanced_past, iterator_recipe

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="iterators of itertools are pickled before Python 3.14"
)


def odd(n):
    return n % 2


MAKERS = {
    "count": lambda: itertools.count(3),
    "count by 2": lambda: itertools.count(3, 2),
    "count by a half": lambda: itertools.count(1, 0.5),
    "count of a large number": lambda: itertools.count(sys.maxsize - 2),
    "cycle": lambda: itertools.cycle(iter([1, 2, 3])),
    "cycle of nothing": lambda: itertools.cycle([]),
    "repeat": lambda: itertools.repeat("a"),
    "repeat 3 times": lambda: itertools.repeat("a", 3),
    "chain": lambda: itertools.chain([1, 2], (), "ab", iter([5])),
    "chain of an iterator": lambda: itertools.chain.from_iterable(iter([[1], [2, 3]])),
    "islice": lambda: itertools.islice(iter(range(20)), 2, 11, 3),
    "islice to the end": lambda: itertools.islice(range(9), 1, None),
    "accumulate": lambda: itertools.accumulate([1, 2, 3, 4]),
    "accumulate products": lambda: itertools.accumulate([1, 2, 3], operator.mul, initial=5),
    "starmap": lambda: itertools.starmap(pow, zip(range(4), range(4))),
    "filterfalse": lambda: itertools.filterfalse(odd, range(8)),
    "filterfalse without a function": lambda: itertools.filterfalse(None, [0, 1, "", 2]),
    "compress": lambda: itertools.compress("abcdef", [1, 0, 1, 0, 1, 1]),
    "takewhile": lambda: itertools.takewhile(odd, [1, 3, 4, 5]),
    "dropwhile": lambda: itertools.dropwhile(odd, [1, 3, 4, 5, 7]),
    "zip_longest": lambda: itertools.zip_longest("ab", range(4), [], fillvalue="-"),
    "product": lambda: itertools.product("ab", range(3)),
    "product of nothing": lambda: itertools.product(),
    "product with an empty pool": lambda: itertools.product("ab", ""),
    "permutations": lambda: itertools.permutations("abc", 2),
    "combinations": lambda: itertools.combinations(range(4), 2),
    "more combinations than there are": lambda: itertools.combinations("ab", 3),
    "combinations with replacement": lambda: itertools.combinations_with_replacement("abc", 2),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("consumed", range(9))
def test_reconstructed_iterator_has_the_same_items(name, consumed):
    iterator, other = MAKERS[name](), MAKERS[name]()
    assert list(islice(iterator, consumed)) == list(islice(other, consumed))
    made = iterator_recipe(iterator)
    assert made is not None
    again = advanced_past(made.make(*made.arguments), made.consumed)
    assert type(again) is type(other)
    assert list(islice(again, 12)) == list(islice(other, 12))


def test_classes_of_the_program_have_no_recipe():
    class Chain(itertools.chain):
        pass

    assert iterator_recipe(Chain([1])) is None
    assert iterator_recipe(iter([1])) is None
