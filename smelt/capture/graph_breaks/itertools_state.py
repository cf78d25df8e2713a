"""Reconstruction of `itertools` iterators without `__reduce__`: from CPython 3.14 on.

The fields of an iterator are read by their layout (`native/cpython_itertools.cpp`). The new iterator is created from its
inner iterators at their current position, then advanced past the items that it has already produced, where that runs no
code of the program.
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


class IteratorRecipe(NamedTuple):
    """`make(*arguments)`, advanced past its first `consumed` items."""

    make: Callable[..., Iterator[object]]
    arguments: tuple[object, ...]
    consumed: int = 0


_MAX_CONSUMED = 10_000  # items of a product, permutation or combination


def iterator_recipe(x: object) -> IteratorRecipe | None:
    """The recipe of an iterator in the state of `x`; None where the state is unknown."""
    rule = _RULES.get(type(x))
    parts = None if rule is None else _native.parts_of_itertools(x)
    return None if rule is None or parts is None else rule(*parts)


_Maybe = tuple[object, ...]  # an object, or none
_Objects = Iterable[object]
_Make = Callable[..., Iterator[object]]


def _count(short: int, number: _Maybe, step: _Maybe) -> IteratorRecipe:
    now = short if short != sys.maxsize or not number else number[0]
    return IteratorRecipe(itertools.count, (now, *step))


def _cycle(first: _Maybe, seen: _Maybe, index: int) -> IteratorRecipe:
    saved = tuple(cast("tuple[list[object]]", seen)[0])
    if not first:
        return IteratorRecipe(cycle_of, ((), *saved), index)
    return IteratorRecipe(cycle_of, (*first, *saved), len(saved))


def cycle_of(remaining: _Objects, *saved: object) -> Iterator[object]:
    """`cycle` over the items that it has saved, then the remaining ones."""
    return itertools.cycle(itertools.chain(saved, remaining) if saved else remaining)


def _repeat(element: _Maybe, left: int) -> IteratorRecipe:
    return IteratorRecipe(itertools.repeat, element if left < 0 else (*element, left))


def _chain(source: _Maybe, active: _Maybe) -> IteratorRecipe:
    if not source:
        return IteratorRecipe(itertools.chain, ())
    return IteratorRecipe(chain_of, (*source, *active))


def chain_of(source: Iterable[_Objects], *active: _Objects) -> Iterator[object]:
    """`chain` over an iterator that it has begun, then those of `source`."""
    return itertools.chain.from_iterable(itertools.chain(active, source))


def _islice(over: _Maybe, start: int, end: int, step: int, now: int) -> IteratorRecipe:
    if not over:
        return IteratorRecipe(itertools.islice, ((), 0))
    return IteratorRecipe(
        itertools.islice, (*over, start - now, None if end < 0 else max(end - now, 0), step)
    )


def _accumulate(total: _Maybe, over: _Maybe, function: _Maybe, initial: _Maybe) -> IteratorRecipe:
    make = accumulated
    if total:
        return IteratorRecipe(make, (*over, *(function or (None,)), *total), 1)
    return IteratorRecipe(make, (*over, *(function or (None,)), *initial))


def accumulated(over: _Objects, function: Callable[..., object], *initial: object) -> Iterator[object]:
    """`accumulate` with positional arguments."""
    if initial:
        return itertools.accumulate(over, function, initial=initial[0])
    return itertools.accumulate(over, function)


def _of_two(make: _Make) -> Callable[[_Maybe, _Maybe], IteratorRecipe]:
    return lambda first, second: IteratorRecipe(make, (*first, *second))


def _takewhile(function: _Maybe, over: _Maybe, ended: bool) -> IteratorRecipe:
    return IteratorRecipe(itertools.takewhile, (*function, () if ended else over[0]))


def _dropwhile(function: _Maybe, over: _Maybe, begun: bool) -> IteratorRecipe:
    if begun:
        return IteratorRecipe(dropping_nothing, over)
    return IteratorRecipe(itertools.dropwhile, (*function, *over))


def dropping_nothing(over: _Objects) -> Iterator[object]:
    """`dropwhile` that has finished dropping."""
    return itertools.dropwhile(_never, over)


_never = functools.partial(operator.is_, object())  # False for every object


def zipped(fill: object, *over: _Objects) -> Iterator[object]:
    """`zip_longest` with positional arguments."""
    return itertools.zip_longest(*over, fillvalue=fill)


def _product(pools: _Maybe, indices: Sequence[int], begun: bool, ended: bool) -> IteratorRecipe | None:
    (all_pools,) = cast("tuple[tuple[tuple[object, ...], ...]]", pools)
    if ended:
        return IteratorRecipe(itertools.product, ((),))
    rank = 0
    for pool, index in zip(all_pools, indices):
        rank = rank * len(pool) + index
    if rank < _MAX_CONSUMED:
        return IteratorRecipe(itertools.product, all_pools, rank + 1 if begun else 0)
    return None


def _chosen(
    make: _Make, pool: object, indices: Sequence[int], count: int, begun: bool, ended: bool
) -> IteratorRecipe | None:
    if ended:
        return IteratorRecipe(make, ((), 1))
    if not begun:
        return IteratorRecipe(make, (pool, count))
    ways = itertools.islice(make(range(len(cast("Sequence[object]", pool))), count), _MAX_CONSUMED)
    rank = next((i for i, way in enumerate(ways) if way == tuple(indices[:count])), None)
    return None if rank is None else IteratorRecipe(make, (pool, count), rank + 1)


def _combinations(make: _Make) -> Callable[..., IteratorRecipe | None]:
    return lambda pool, indices, begun, count, ended: _chosen(make, pool[0], indices, count, begun, ended)


_RULES: dict[type, Callable[..., IteratorRecipe | None]] = {
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
    itertools.zip_longest: lambda size, active, over, begun, fill: IteratorRecipe(
        zipped, (*(fill or (None,)), *(x[0] if x else () for x in over))
    ),
    itertools.product: _product,
    itertools.permutations: lambda pool, indices, cycles, begun, count, ended: _chosen(
        itertools.permutations, pool[0], indices, count, begun, ended
    ),
    itertools.combinations: _combinations(itertools.combinations),
    itertools.combinations_with_replacement: _combinations(itertools.combinations_with_replacement),
}

_I = TypeVar("_I", bound=Iterator[object])


def advanced_past(iterator: _I, count: int) -> _I:
    """`iterator`, advanced past its next `count` items."""
    advance(iterator, count)
    return iterator
