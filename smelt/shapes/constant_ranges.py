"""Ranges of a symbol over which a size is constant: `n // 64` is 1 from 64 to 127."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.shapes.expr import Size, Sym, evaluate, free_syms, subs

Ranges = dict[Sym, tuple[int, int]]

_FARTHEST = 4096  # the longest range on either side of the current value


def constant_range(size: Size, now: Mapping[Sym, int]) -> Ranges:
    """The only symbol of `size` with the largest interval around its value in `now` over which `size` is provably constant.
    Empty where `size` has several symbols, or no neighbour has the same value."""
    syms = free_syms(size)
    if len(syms) != 1:
        return {}
    (sym,) = syms
    low, high = (_end(size, sym, now[sym], step) for step in (-1, 1))
    is_known = low < high and isinstance(subs(size, {sym: Sym(sym.name, low, high)}), int)
    return {sym: (low, high)} if is_known else {}


def _end(size: Size, sym: Sym, now: int, step: int) -> int:
    """The last value, from `now` in steps, at which `size` has the same value."""
    value, end = evaluate(size, {sym: now}), now
    for n in range(now + step, now + step * _FARTHEST, step):
        if not sym.lo <= n <= sym.hi or evaluate(size, {sym: n}) != value:
            break
        end = n
    return end
