"""Divisors of the symbols in sizes, and sizes split into a multiple of a divisor and a remainder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm, prod

from smelt.shapes.expr import Expr, Quotient, Size, Sym, free_syms


def divisors_in(sizes: Iterable[Size]) -> dict[Sym, int]:
    """The symbols that a number divides anywhere in these sizes, each with the least common multiple of its divisors."""
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
    """The size divided by the atoms that all its terms share. It is 0 where `size` is 0 and these atoms are not."""
    if not isinstance(size, Expr) or size.const:
        return size
    common = set.intersection(*(set(monomial) for monomial, _ in size.terms))
    remaining = [
        (coefficient, [a for a in monomial if a not in common]) for monomial, coefficient in size.terms
    ]
    return sum((coefficient * prod(atoms) for coefficient, atoms in remaining), 0)


@dataclass(frozen=True)
class Divided:
    """A size of an input, `divisor * sym` plus a remainder: a number, or the symbol `remainder`."""

    sym: Sym
    divisor: int
    remainder: Sym | None = None

    @property
    def symbols(self) -> tuple[Sym, ...]:
        """The symbols of the size."""
        return (self.sym,) if self.remainder is None else (self.sym, self.remainder)


def as_divided(size: Size) -> Divided | None:
    """The parts of a size that is a symbol or such a sum; None of others, whose value does not determine their symbols."""
    if not isinstance(size, Expr):
        return None
    found = {monomial[0]: factor for monomial, factor in size.terms if len(monomial) == 1}
    syms = {atom: factor for atom, factor in found.items() if isinstance(atom, Sym)}
    remainders = [sym for sym in syms if is_remainder(sym)]
    if len(syms) != len(size.terms) or len(syms) - len(remainders) != 1 or len(remainders) > 1:
        return None
    sym = next(s for s in syms if s not in remainders)
    most = size.const + sum(remainder.hi for remainder in remainders)
    if not 0 <= most < syms[sym] or (remainders and (size.const or syms[remainders[0]] != 1)):
        return None
    return Divided(sym, syms[sym], *remainders)


def remainder_symbol(number: int, divisor: int) -> Sym:
    """A symbol for the non-zero remainder of a size by `divisor`. Its name starts with `r`, unlike all others."""
    return Sym(f"r{number}", 1, divisor - 1)


def is_remainder(sym: Sym) -> bool:
    """Whether the symbol is a remainder of a size."""
    return sym.name.startswith("r")
