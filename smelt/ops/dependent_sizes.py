"""Sizes of a call that depend on others: `x.view(b, h, w, c)` is valid only if x has b * h * w rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, chain, combinations, combinations_with_replacement, count, islice
from operator import mul
from typing import Any

from smelt._native import isinstance
from smelt.shapes.expr import Expr, Quotient, Size, Sym, affine, bounds, evaluate, free_syms, numel

_MOST = 12  # equations that are looked at
_MOST_TRIED = 60

Relations = dict[Sym, Size]  # what each of these symbols is, over others


def required(
    shapes: Sequence[Sequence[Size]],
    hints: Mapping[Sym, int],
    accepted: Callable[[Relations], bool],
    new: Set[Sym] = frozenset(),
) -> Relations:
    """A minimal set of relations among the sizes in these shapes, of tensors or arguments, which hold for `hints` and
    with which the call is `accepted`; empty if no set helps. Some relations fix a number. Relations without `new`
    symbols are preferred."""
    equations = _equations(shapes, hints)
    found = sorted(equations, key=lambda e: not new.isdisjoint(free_syms(e[1])))[:_MOST]
    tried = chain.from_iterable(combinations(found, n) for n in (1, 2, 3))
    independent = (dict(some) for some in tried if _are_independent(some))
    return next((some for some in islice(independent, _MOST_TRIED) if accepted(some)), {})


def equal_symbols(relations: Relations) -> frozenset[Sym]:
    """The symbols that the first relation makes equal, with all symbols equal to them; empty if it does not."""
    first = next(iter(relations.values()), None)
    if not isinstance(first, Sym):
        return frozenset()
    return frozenset((first, *(sym for sym, size in relations.items() if size is first)))


def _are_independent(some: Sequence[tuple[Sym, Size]]) -> bool:
    """Whether no relation determines a symbol of another."""
    replaced = {sym for sym, _ in some}
    return len(replaced) == len(some) and all(replaced.isdisjoint(free_syms(size)) for _, size in some)


def _equations(shapes: Sequence[Sequence[Size]], hints: Mapping[Sym, int]) -> list[tuple[Sym, Size]]:
    """Candidate relations: a symbol equals another, an expression of others, or a number. Products of a shape's first
    and last sizes are included, as views merge sizes; and those of two symbols, of which a view may name one."""
    of_value: dict[int, list[Size]] = {}
    pairs = (a * b for a, b in combinations_with_replacement(sorted(hints, key=str), 2))
    for size in dict.fromkeys(chain(_sizes(shapes), pairs)):
        of_value.setdefault(evaluate(size, hints), []).append(size)
    found = (e for sizes in of_value.values() for a, b in combinations(sizes, 2) for e in _solved(a, b))
    return sorted(dict.fromkeys(found), key=_order)


def _order(equation: tuple[Sym, Size]) -> int:
    """Equalities first; sums before differences, which later calls may not satisfy."""
    _, size = equation
    return 0 if isinstance(size, Sym) else 2 if isinstance(size, int) else 1 if bounds(size)[0] >= 2 else 3


def _sizes(shapes: Sequence[Sequence[Size]]) -> Iterator[Size]:
    for shape in shapes:
        yield from shape
        yield from accumulate(shape, mul)
        yield from accumulate(reversed(shape), mul)


def _solved(a: Size, b: Size) -> Iterator[tuple[Sym, Size]]:
    """The values of symbols if a == b, for sums, products and numbers."""
    for one, other in ((a, b), (b, a)):
        for sym in sorted(free_syms(one) - free_syms(other), key=str):
            line = affine(one, sym)
            if line is None or (isinstance(other, int) and one is not sym):
                continue
            factor, rest = line
            size = (other - rest) // factor
            if size * factor + rest == other:
                yield sym, size
                if isinstance(size, Sym):
                    return  # the other way round it is the same


def lists_of_sizes(value: Any) -> Iterator[list[Size]]:
    """The lists of sizes among the arguments of a call."""
    if isinstance(value, dict):
        yield from lists_of_sizes(list(value.values()))
    elif isinstance(value, (list, tuple)):
        if value and all(type(n) is int or isinstance(n, Expr) for n in value):
            yield list(value)
        for each in value:
            yield from lists_of_sizes(each)


def with_found_out(
    shape: Sequence[Size], lists: Sequence[Sequence[Size]], hints: Mapping[Sym, int]
) -> tuple[list[list[Size]], dict[Sym, int]]:
    """The lists, for a tensor of this `shape`, with a new symbol in place of an inferred size (-1, or one inferred by
    a division), and its number among the `hints`. A size of 0, 1 or no integer is left out."""
    made, known = [], dict(hints)
    total = evaluate(numel(shape), hints)
    for sizes in lists:
        others = [n for n in sizes if not _is_found_out(n)]
        times, rest = divmod(total, max(evaluate(numel(others), hints), 1))
        if len(others) + 1 == len(sizes) and times > 1 and not rest:
            names = (f"s{i}" for i in count())
            new = Sym(next(name for name in names if name not in {s.name for s in known}), 2)
            known[new] = times
            made.append([new if _is_found_out(n) else n for n in sizes])
        else:
            made.append(others)
    return made, known


def _is_found_out(size: Size) -> bool:
    return size == -1 or (isinstance(size, Quotient) and size.op == "floordiv")
