"""Simplification of a loop nest: loops are split where an index divides, ordered by memory, and merged where contiguous.

It works on the index expressions alone. The result is a new list of loops and the old symbols in terms of the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smelt.schedule.index_spaces import Loops
from smelt.shapes.expr import Quotient, Size, Sym, affine, free_syms, likely, loop_sym, subs

Values = dict[Sym, Size]


def tidy(
    loops: Loops,
    indices: Iterable[Size],
    layout: Sequence[Size],
    letter: str,
    keep_order: bool,
    shortest: int,
) -> tuple[Loops, Values]:
    """New loops named `letter`0, `letter`1, ..., and the values of the old symbols. `indices`: all expressions in which the
    loops occur; `layout`: those whose strides decide the order, most important first. `shortest`: see `split_loops`."""
    values: Values = {s: s for s, _ in loops}
    known = [e for e in dict.fromkeys(indices) if not free_syms(e).isdisjoint(values)]
    order: list[Size] = [e for e in layout if not isinstance(e, int)]
    loops, split = split_loops(loops, known, shortest)
    if split:
        values = _apply(values, split)
        known, order = _all(known, split), _all(order, split)
    if not keep_order and len(loops) > 1:
        loops = _ordered(loops, order)
    loops, merged = _merged(loops, known)
    if merged:
        values = _apply(values, merged)
    return _renamed(loops, values, letter)


def _apply(values: Values, step: Values) -> Values:
    return {s: subs(e, step) for s, e in values.items()}


def _all(indices: Sequence[Size], step: Values) -> list[Size]:
    return [subs(e, step) for e in indices]


# ---- splitting


def split_loops(loops: Loops, indices: list[Size], shortest: int) -> tuple[Loops, Values]:
    """`for s in n` becomes `for a in n/d: for b in d` wherever an index has `s // d` or `s % d`, unless d is less than
    `shortest` and n is at least four times `shortest`."""
    total: Values = {}
    for round in range(8):
        sizes = dict(loops)
        found = next(_divisions(indices, sizes, shortest), None)
        if found is None:
            break
        sym, divisor = found
        high = loop_sym(f"{sym.name}h{round}", sizes[sym] // divisor)
        low = loop_sym(f"{sym.name}l{round}", divisor)
        step: Values = {sym: high * divisor + low}
        total = {**_apply(total, step), **step}
        indices = _all(indices, step)
        split = {sym: ((high, sizes[sym] // divisor), (low, divisor))}
        loops = tuple(loop for s, n in loops for loop in split.get(s, ((s, n),)))
    return loops, total


def _divisions(indices: Sequence[Size], sizes: dict[Sym, Size], shortest: int) -> Iterator[tuple[Sym, Size]]:
    for atom in _quotients(indices):
        sym, divisor = atom.left, atom.right
        if not isinstance(sym, Sym) or sym not in sizes or not free_syms(divisor).isdisjoint(sizes):
            continue
        size = sizes[sym]
        if size % divisor == 0 and divisor != 1 and size != divisor and size != 0:
            if likely(divisor) >= shortest or likely(size) < 4 * shortest:
                yield sym, divisor


def _quotients(indices: Iterable[Size]) -> Iterator[Quotient]:
    for e in indices:
        if isinstance(e, int):
            continue
        for monomial, _ in e.terms:
            for atom in monomial:
                if isinstance(atom, Quotient):
                    yield from _quotients((atom.left,))
                    yield atom


# ---- ordering


def _ordered(loops: Loops, layout: Sequence[Size]) -> Loops:
    """Loops outermost first: larger (likely) strides of the first expression that distinguishes two loops. Stable."""
    keys = {s: tuple(-_stride(e, s) for e in layout) for s, _ in loops}
    return tuple(sorted(loops, key=lambda loop: keys[loop[0]]))


def _stride(e: Size, sym: Sym) -> int:
    split = affine(e, sym)
    return abs(likely(split[0])) if split is not None else 0


# ---- merging


def _merged(loops: Loops, indices: list[Size]) -> tuple[Loops, Values]:
    """Adjacent loops `for a: for b in n` become one loop if every index walks them as one."""
    total: Values = {}
    result: list[tuple[Sym, Size]] = []
    for sym, size in loops:
        if result and _contiguous(result[-1][0], sym, size, indices):
            outer, count = result.pop()
            both = loop_sym(f"{outer.name}{sym.name}", count * size)
            step: Values = {outer: both // size, sym: both % size}
            total = {**_apply(total, step), **step}
            indices = _all(indices, step)
            result.append((both, count * size))
        else:
            result.append((sym, size))
    return tuple(result), total


def _contiguous(outer: Sym, inner: Sym, size: Size, indices: Sequence[Size]) -> bool:
    for e in indices:
        syms = free_syms(e)
        if outer not in syms and inner not in syms:
            continue
        far, near = affine(e, outer), affine(e, inner)
        if far is None or near is None or far[0] != near[0] * size:
            return False
    return True


def _renamed(loops: Loops, values: Values, letter: str) -> tuple[Loops, Values]:
    names: Values = {s: loop_sym(f"{letter}{k}", n) for k, (s, n) in enumerate(loops)}
    fresh = tuple((names[s], n) for s, n in loops)
    return fresh, _apply(values, names)  # type: ignore[return-value]
