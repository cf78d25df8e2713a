"""What native code reads of containers from outside that are elements of what it walks over or compares, is guarded."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

lists: list[list[int]] = []
by_name: dict[str, Any] = {}
counts: dict[str, list[int]] = collections.defaultdict(list)


def _set_up() -> None:
    lists[:] = [[1, 2], [3]]
    by_name.clear()
    by_name.update(a=[1, 2], b={"c": [3]})
    counts.clear()
    counts.update(a=[1, 2])


def _first_changes() -> None:
    lists[0][0] = 10
    by_name["a"][0] = 5
    counts["a"][0] = 5


def _second_grows() -> None:
    lists[1].append(7)
    by_name["b"]["c"].append(4)
    counts["a"].append(1)


PROGRAMS: dict[str, Callable[[], object]] = {
    "max": lambda: max(lists),
    "min of arguments": lambda: min(lists[0], lists[1]),
    "max with key=None": lambda: max(lists, key=None),
    "max with a key that is a container": lambda: max([0, 1], key=lambda i: lists[i]),
    "sorted": lambda: sorted(range(2), key=lambda i: lists[i]),
    "sorted by a function of C": lambda: len(sorted(lists, key=sum)[0]),
    "list.index": lambda: lists.index([3]),
    "list.count": lambda: lists.count([3]),
    "tuple.index": lambda: (0, *lists).index([3]),
    "in": lambda: [1, 2] in lists,
    "less": lambda: lists < [[1, 2], [4]],
    "less, of tuples": lambda: (1, lists[0]) < (1, [2, 1]),
    "equal dictionaries": lambda: by_name == {"a": [1, 2], "b": {"c": [3]}},
    "equal default dictionaries": lambda: counts == {"a": [1, 2]},
    "accumulate": lambda: list(itertools.accumulate(lists)),
    "accumulate with max": lambda: list(itertools.accumulate(lists, max)),
    "reduce": lambda: functools.reduce(operator.add, lists),
    "map tuple": lambda: list(map(tuple, lists)),
    "map str": lambda: list(map(str, lists)),
    "map an itemgetter": lambda: list(map(operator.itemgetter(0), lists)),
    "map a method of C": lambda: list(map(list.copy, lists)),
    "map over two": lambda: list(map(operator.add, lists, lists)),
    "filter by truth": lambda: len(list(filter(lambda i: lists[1][i:], [1]))),
    "filterfalse": lambda: len(list(itertools.filterfalse(lambda i: lists[1][i:], [1]))),
    "compress": lambda: list(itertools.compress("ab", [lists[1][1:], lists[0]])),
    "groupby": lambda: [len(list(group)) for _, group in itertools.groupby([[1, 2], lists[0], lists[1]])],
    "starmap": lambda: list(itertools.starmap(lambda *a: a, lists)),
    "chain.from_iterable": lambda: list(itertools.chain.from_iterable(lists)),
    "chain.from_iterable of values": lambda: list(itertools.chain.from_iterable(by_name.values())),
    "nlargest": lambda: heapq.nlargest(1, lists),
    "bisect": lambda: bisect.bisect(lists, [2]),
    "Counter": lambda: collections.Counter(map(tuple, lists)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_elements_are_guarded(name: str) -> None:
    _set_up()
    program = PROGRAMS[name]

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        return x + 1, program()

    compiled = smelt.compile(fn, backend="eager")
    for change in (lambda: None, _first_changes, _second_grows):
        change()
        try:
            want: object = program()
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(torch.ones(2))
        else:
            assert compiled(torch.ones(2))[1] == want
