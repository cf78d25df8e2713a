"""By which numbers the symbols in sizes are divided, and what such sizes are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm, prod

from smelt.shapes.expr import Expr, Quotient, Size, Sym, free_syms


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


def without_common_factors(size: Size) -> Size:
    """A size that is 0 when this one is, as long as what all its terms have is not: they say nothing of each other then."""
    if not isinstance(size, Expr) or size.const:
        return size
    common = set.intersection(*(set(monomial) for monomial, _ in size.terms))
    rests = [(coefficient, [a for a in monomial if a not in common]) for monomial, coefficient in size.terms]
    return sum((coefficient * prod(rest) for coefficient, rest in rests), 0)


@dataclass(frozen=True)
class Divided:
    """A size of an input: `sym`, its quotient by `divisor`, times that, and the remainder: a number, or `rest`."""

    sym: Sym
    divisor: int
    rest: Sym | None = None

    @property
    def symbols(self) -> tuple[Sym, ...]:
        """Those that the size has."""
        return (self.sym,) if self.rest is None else (self.sym, self.rest)


def as_divided(size: Size) -> Divided | None:
    """What is known of a size that is a symbol, or such a sum; None of any other, from which the symbols do not follow."""
    if not isinstance(size, Expr):
        return None
    found = {monomial[0]: factor for monomial, factor in size.terms if len(monomial) == 1}
    syms = {atom: factor for atom, factor in found.items() if isinstance(atom, Sym)}
    rests = [sym for sym in syms if is_rest(sym)]
    if len(syms) != len(size.terms) or len(syms) - len(rests) != 1 or len(rests) > 1:
        return None
    sym = next(s for s in syms if s not in rests)
    left = size.const + sum(rest.hi for rest in rests)
    if not 0 <= left < syms[sym] or (rests and (size.const or syms[rests[0]] != 1)):
        return None
    return Divided(sym, syms[sym], *rests)


def rest_symbol(number: int, divisor: int) -> Sym:
    """A symbol for what a size leaves that is no multiple of the divisor. By its name it is told from others."""
    return Sym(f"r{number}", 1, divisor - 1)


def is_rest(sym: Sym) -> bool:
    """Whether it is what a size leaves when divided."""
    return sym.name.startswith("r")
