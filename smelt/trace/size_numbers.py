"""Arithmetic and comparisons of sizes: which of what is asked of symbolic numbers has an answer among sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from smelt.graph.sizes import Expr, Size, Sym, bounds, free_syms, subs

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "floordiv": operator.floordiv, "mod": operator.mod,
}  # fmt: skip
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def computed(op: str, sizes: Sequence[Size]) -> Size | None:
    """The size that an operation on sizes gives; None where it is no size, or may be none."""
    function = _ARITHMETIC.get(op)
    if function is None or (op in ("floordiv", "mod") and bounds(sizes[1])[0] < 1):
        return None
    made: Size = function(*sizes)
    return made


def decided(op: str, a: Size, b: Size) -> bool | None:
    """The answer to a comparison that is the same for all values of the symbols; None where there is none, or it is not
    seen."""
    low, high = _bounds(a - b)
    if op in ("eq", "ne"):
        equal = True if low == high == 0 else False if low > 0 or high < 0 else None
        return equal if equal is None or op == "eq" else not equal
    if op == "gt":
        return decided("lt", b, a)
    if op == "ge":
        return decided("le", b, a)
    if op == "lt":
        return True if high < 0 else False if low >= 0 else None
    return True if high <= 0 else False if low > 0 else None


def _bounds(size: Size) -> tuple[int, int]:
    """The range of a size, also of `4*s*t - s`: what its symbols are above their least values is from 0 on."""
    low, high = bounds(size)
    if low > 0 or high < 0:
        return low, high
    above = {sym: Sym(sym.name) + sym.lo for sym in free_syms(size)}
    more, less = bounds(subs(size, above))
    return max(low, more), min(high, less)


def reduced(a: Size, b: Size) -> tuple[Size, Size]:
    """Two sizes that compare as these do, without what both have."""
    difference = a - b
    if not isinstance(difference, Expr):
        return a, b
    left: Size = max(difference.const, 0)
    right: Size = max(-difference.const, 0)
    for monomial, coefficient in difference.terms:
        term: Size = prod(monomial, start=abs(coefficient))
        if coefficient > 0:
            left = left + term
        else:
            right = right + term
    return left, right
