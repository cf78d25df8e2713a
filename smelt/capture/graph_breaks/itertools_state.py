"""How an iterator of `itertools` is made again where it does not tell that itself: from CPython 3.14 on.

What is inside of it is read by its layout (`native/cpython_itertools.cpp`). It is made of iterators that go on where its own
stand, and then advanced over what it has given before, as far as that is its own and no code of the program runs.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

from smelt import _native
from smelt.guards.iterator_state import advance


class Made(NamedTuple):
    """`make(*arguments)`, advanced_over over its first `taken` items."""

    make: Callable[..., Iterator[object]]
    arguments: tuple[object, ...]
    taken: int = 0


_MOST = 10_000  # of the items of a combination that are counted


def made_again(x: object) -> Made | None:
    """What makes an iterator as `x` is now; None where that is not known."""
    rule = _RULES.get(type(x))
    parts = None if rule is None else _native.parts_of_itertools(x)
    return None if rule is None or parts is None else rule(*parts)


_Maybe = tuple[object, ...]  # an object, or none
_Objects = Iterable[object]
_Make = Callable[..., Iterator[object]]


def _count(short: int, number: _Maybe, step: _Maybe) -> Made:
    now = short if short != sys.maxsize or not number else number[0]
    return Made(itertools.count, (now, *step))


def _cycle(first: _Maybe, seen: _Maybe, place: int) -> Made:
    given = tuple(cast("tuple[list[object]]", seen)[0])
    if not first:
        return Made(cycle_of, ((), *given), place)
    return Made(cycle_of, (*first, *given), len(given))


def cycle_of(rest: _Objects, *given: object) -> Iterator[object]:
    """`cycle` over what was given already, and then the rest."""
    return itertools.cycle(itertools.chain(given, rest) if given else rest)


def _repeat(element: _Maybe, left: int) -> Made:
    return Made(itertools.repeat, element if left < 0 else (*element, left))


def _chain(source: _Maybe, active: _Maybe) -> Made:
    if not source:
        return Made(itertools.chain, ())
    return Made(chain_of, (*source, *active))


def chain_of(source: Iterable[_Objects], *active: _Objects) -> Iterator[object]:
    """`chain` over an iterator that it has begun, and those that `source` gives then."""
    return itertools.chain.from_iterable(itertools.chain(active, source))


def _islice(over: _Maybe, place: int, end: int, step: int, now: int) -> Made:
    if not over:
        return Made(itertools.islice, ((), 0))
    return Made(itertools.islice, (*over, place - now, None if end < 0 else max(end - now, 0), step))


def _accumulate(total: _Maybe, over: _Maybe, function: _Maybe, initial: _Maybe) -> Made:
    make = accumulated
    if total:
        return Made(make, (*over, *(function or (None,)), *total), 1)
    return Made(make, (*over, *(function or (None,)), *initial))


def accumulated(over: _Objects, function: Callable[..., object], *initial: object) -> Iterator[object]:
    """`accumulate`, by position."""
    return (
        itertools.accumulate(over, function, initial=initial[0])
        if initial
        else itertools.accumulate(over, function)
    )


def _of_two(make: _Make) -> Callable[[_Maybe, _Maybe], Made]:
    return lambda first, second: Made(make, (*first, *second))


def _takewhile(function: _Maybe, over: _Maybe, ended: bool) -> Made:
    return Made(itertools.takewhile, (*function, () if ended else over[0]))


def _dropwhile(function: _Maybe, over: _Maybe, begun: bool) -> Made:
    return Made(dropping_nothing, over) if begun else Made(itertools.dropwhile, (*function, *over))


def dropping_nothing(over: _Objects) -> Iterator[object]:
    """`dropwhile` that has dropped what it drops."""
    return itertools.dropwhile(_never, over)


_never = functools.partial(operator.is_, object())  # False of everything


def _zip_longest(size: int, active: int, over: tuple[_Maybe, ...], given: bool, fill: _Maybe) -> Made:
    return Made(zipped, (*(fill or (None,)), *(x[0] if x else () for x in over)))


def zipped(fill: object, *over: _Objects) -> Iterator[object]:
    """`zip_longest`, by position."""
    return itertools.zip_longest(*over, fillvalue=fill)


def _product(pools: _Maybe, places: Sequence[int], given: bool, ended: bool) -> Made | None:
    (all_pools,) = cast("tuple[tuple[tuple[object, ...], ...]]", pools)
    if ended:
        return Made(itertools.product, ((),))
    rank = 0
    for pool, place in zip(all_pools, places):
        rank = rank * len(pool) + place
    return Made(itertools.product, all_pools, rank + 1 if given else 0) if rank < _MOST else None


def _chosen(
    make: _Make, pool: object, places: Sequence[int], count: int, given: bool, ended: bool
) -> Made | None:
    if ended:
        return Made(make, ((), 1))
    if not given:
        return Made(make, (pool, count))
    ways = itertools.islice(make(range(len(cast("Sequence[object]", pool))), count), _MOST)
    rank = next((i for i, way in enumerate(ways) if way == tuple(places[:count])), None)
    return None if rank is None else Made(make, (pool, count), rank + 1)


def _permutations(
    pool: _Maybe, places: Sequence[int], cycles: object, given: bool, count: int, ended: bool
) -> Made | None:
    return _chosen(itertools.permutations, pool[0], places, count, given, ended)


def _combinations(make: _Make) -> Callable[..., Made | None]:
    return lambda pool, places, given, count, ended: _chosen(make, pool[0], places, count, given, ended)


_RULES: dict[type, Callable[..., Made | None]] = {
    itertools.count: _count,
    itertools.cycle: _cycle,
    itertools.repeat: _repeat,
    itertools.chain: _chain,
    itertools.islice: _islice,
    itertools.accumulate: _accumulate,
    itertools.starmap: _of_two(itertools.starmap),
    itertools.filterfalse: _of_two(itertools.filterfalse),
    itertools.compress: _of_two(itertools.compress),
    itertools.takewhile: _takewhile,
    itertools.dropwhile: _dropwhile,
    itertools.zip_longest: _zip_longest,
    itertools.product: _product,
    itertools.permutations: _permutations,
    itertools.combinations: _combinations(itertools.combinations),
    itertools.combinations_with_replacement: _combinations(itertools.combinations_with_replacement),
}

_I = TypeVar("_I", bound=Iterator[object])


def advanced_over(iterator: _I, taken: int) -> _I:
    """`iterator`, behind its first items."""
    advance(iterator, taken)
    return iterator
