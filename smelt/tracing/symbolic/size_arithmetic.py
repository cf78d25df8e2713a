"""Arithmetic and comparisons of sizes: which operations on symbolic numbers have a result among sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

from smelt.shapes.expr import Expr, Expression, Quotient, Size, Sym, bounds, free_syms, subs

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "floordiv": operator.floordiv, "mod": operator.mod,
    **dict.fromkeys(("int", "floor", "ceil", "trunc", "round"), lambda size: size),  # of ints
}  # fmt: skip
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def is_positive(size: Size) -> bool:
    """Whether a size is at least 1, by its range."""
    return bounds(size)[0] >= 1


def size_result(
    op: str, sizes: Sequence[Size], is_positive: Callable[[Size], bool] = is_positive
) -> Size | None:
    """The size that an operation on sizes returns; None if it is not a size. Divisors must be positive."""
    function = _ARITHMETIC.get(op)
    if function is None or (op in ("floordiv", "mod") and not is_positive(sizes[1])):
        return None
    result: Size = function(*sizes)
    return result


ROUNDED = frozenset({"int", "floor", "trunc", "ceil"})
_FINEST = 1024  # largest numerator and denominator of a factor
# Up to here, float products of a size and such a factor are exact, and quotients round as in integer arithmetic.
MOST_ROUNDED = 1 << 40


def factor_of(expression: Expression) -> tuple[Expression, int, int] | None:
    """(operand, numerator, denominator) for `n / 2`, `n * 0.75`, `0.75 * n`; None for other expressions and for
    fractions of large numbers."""
    if expression.op not in ("mul", "truediv"):
        return None
    operand, factor = expression.args
    if operand.op == "const" and expression.op == "mul":
        operand, factor = factor, operand
    number: Any = factor.args[0] if factor.op == "const" else None
    if type(number) not in (int, float) or not 0 < number < _FINEST:
        return None
    numerator, denominator = number.as_integer_ratio()
    if expression.op == "truediv":
        numerator, denominator = denominator, numerator
    return (operand, numerator, denominator) if max(numerator, denominator) <= _FINEST else None


class Comparisons:
    """What is known of comparisons of sizes: from their ranges, and from the outcomes that later calls must repeat."""

    def __init__(self) -> None:
        # By a difference without its constant: its range.
        self._known: dict[Expr, tuple[int, int]] = {}
        self._unequal: set[Expr] = set()  # differences known not to be 0

    def known_outcome(self, op: str, a: Size, b: Size) -> bool | None:
        """The outcome of `lt` or `eq`; None where it is unknown."""
        difference = a - b
        low, high = self._range(difference)
        if op == "lt":
            return True if high < 0 else False if low >= 0 else None
        if low > 0 or high < 0 or difference in self._unequal:
            return False
        return True if low == high == 0 else None

    def is_positive(self, size: Size) -> bool:
        """Whether it is known to be at least 1: the size itself, or all its factors."""
        if self._range(size)[0] >= 1:
            return True
        if isinstance(size, int) or size.const or len(size.terms) != 1:
            return False
        ((monomial, factor),) = size.terms
        return factor > 0 and all(self._range(atom)[0] >= 1 for atom in monomial)

    def bounds(self, sym: Sym) -> tuple[int, int]:
        """The range of a symbol, from comparisons of it alone."""
        return self._range(sym)

    def record(self, op: str, a: Size, b: Size, outcome: bool) -> None:
        """Record an outcome that later calls must repeat."""
        difference = a - b
        if not isinstance(difference, Expr):
            return
        if op == "eq" and not outcome:
            self._unequal |= {difference, -difference}  # type: ignore[arg-type]
            return
        low, high = self._range(difference)
        if op == "eq":
            low = high = 0
        elif outcome:
            high = min(high, -1)
        else:
            low = max(low, 0)
        const = difference.const
        self._known[_without_const(difference)] = low - const, high - const
        self._known[_without_const(-difference)] = const - high, const - low

    def _range(self, difference: Size) -> tuple[int, int]:
        low, high = _bounds(difference)
        if isinstance(difference, Expr):
            variable = _without_const(difference)
            for limits in (self._known.get(variable), self._quotient_range(variable)):
                if limits is not None:
                    low, high = (
                        max(low, limits[0] + difference.const),
                        min(high, limits[1] + difference.const),
                    )
        return low, high

    def _quotient_range(self, size: Expr) -> tuple[int, int] | None:
        """The range of x // n, from that of x; None for other sizes."""
        if not isinstance(size, Quotient) or size.op != "floordiv" or not isinstance(size.right, int):
            return None
        low, high = self._range(size.left)
        return low // size.right, high // size.right


def _without_const(size: Size) -> Expr:
    assert isinstance(size, Expr)
    variable = size - size.const
    assert isinstance(variable, Expr)
    return variable


def _bounds(size: Size) -> tuple[int, int]:
    """The range of a size, also of `4*s*t - s`: computed from the nonnegative distances of symbols from their least
    values."""
    low, high = bounds(size)
    if low >= 0 or high <= 0:
        return low, high
    numerator = {sym: Sym(sym.name) + sym.lo for sym in free_syms(size)}
    more, less = bounds(subs(size, numerator))
    return max(low, more), min(high, less)


def compare_dividend(difference: Size) -> tuple[bool, Size, int] | None:
    """`difference < 0` as a condition on a dividend or a factor in it: (True, x, n) for x < n, (False, x, n) for x >=
    n. None if there is none."""
    if not isinstance(difference, Expr) or len(difference.terms) != 1:
        return None
    (monomial, factor), const = difference.terms[0], difference.const
    if abs(factor) != 1:  # factor * x < -const
        x = prod(monomial, start=1)
        return (True, x, -(const // factor)) if factor > 0 else (False, x, const // -factor + 1)
    atom = monomial[0]
    if (
        len(monomial) > 1
        or not isinstance(atom, Quotient)
        or atom.op != "floordiv"
        or not isinstance(atom.right, int)
    ):
        return None
    if factor > 0:  # x // n < -const
        return True, atom.left, -const * atom.right
    return False, atom.left, (const + 1) * atom.right  # x // n > const


def simplify_comparison(a: Size, b: Size) -> tuple[Size, Size]:
    """Two sizes that compare as these do, without common terms and factors."""
    difference = a - b
    if isinstance(difference, Expr):
        difference = difference // gcd(
            difference.const, *(coefficient for _, coefficient in difference.terms)
        )
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
