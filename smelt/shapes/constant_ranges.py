"""Over which sizes a size that was computed from one is the same number: `n // 64` is 1 from 64 to 127."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.shapes.expr import Size, Sym, evaluate, free_syms, subs

Ranges = dict[Sym, tuple[int, int]]

_FARTHEST = 4096  # from what the symbol is now; the range ends there at the latest


def plateau(size: Size, now: Mapping[Sym, int]) -> Ranges:
    """The one symbol of `size` with the numbers around what it is `now` for which `size` is known to be the same; nothing
    where it has several symbols, or is different for each number."""
    syms = free_syms(size)
    if len(syms) != 1:
        return {}
    (sym,) = syms
    low, high = (_end(size, sym, now[sym], step) for step in (-1, 1))
    is_known = low < high and isinstance(subs(size, {sym: Sym(sym.name, low, high)}), int)
    return {sym: (low, high)} if is_known else {}


def _end(size: Size, sym: Sym, now: int, step: int) -> int:
    """The last number, going from `now` in steps, that makes no difference."""
    value, end = evaluate(size, {sym: now}), now
    for n in range(now + step, now + step * _FARTHEST, step):
        if not sym.lo <= n <= sym.hi or evaluate(size, {sym: n}) != value:
            break
        end = n
    return end
