"""By which numbers the symbols in sizes are divided."""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from smelt.graph.sizes import Expr, Quotient, Size, Sym, free_syms


def divisors_in(sizes: Iterable[Size]) -> dict[Sym, int]:
    """The symbols that are divided by numbers somewhere in these sizes, each by the least common multiple of them."""
    found: dict[Sym, int] = {}
    for size in sizes:
        for atom in (a for monomial, _ in size.terms for a in monomial) if isinstance(size, Expr) else ():
            if isinstance(atom, Quotient):
                for sym, divisor in divisors_in((atom.left,)).items():
                    found[sym] = lcm(found.get(sym, 1), divisor)
                if isinstance(atom.right, int):
                    for sym in free_syms(atom.left):
                        found[sym] = lcm(found.get(sym, 1), atom.right)
    return found


def multiple_of(size: Size) -> tuple[Sym, int] | None:
    """(symbol, factor) of a size that is a symbol times a number, or more by a number; None of any other."""
    if not isinstance(size, Expr) or len(size.terms) != 1:
        return None
    ((monomial, factor),) = size.terms
    (atom, *others) = monomial
    return (atom, factor) if isinstance(atom, Sym) and not others else None
