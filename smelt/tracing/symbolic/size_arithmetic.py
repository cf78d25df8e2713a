"""Arithmetic and comparisons of sizes: which of what is asked of symbolic numbers has an answer among sizes."""

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
    """Whether a size is 1 at least, by its range."""
    return bounds(size)[0] >= 1


def computed(
    op: str, sizes: Sequence[Size], is_positive: Callable[[Size], bool] = is_positive
) -> Size | None:
    """The size that an operation on sizes gives; None where it is no size, or may be none. Divisors are to be positive."""
    function = _ARITHMETIC.get(op)
    if function is None or (op in ("floordiv", "mod") and not is_positive(sizes[1])):
        return None
    made: Size = function(*sizes)
    return made


ROUNDED = frozenset({"int", "floor", "trunc", "ceil"})
_FINEST = 1024  # what a factor is a quotient of, at most
# Up to here, products of sizes with such a factor are exact, and quotients are rounded alike.
MOST_ROUNDED = 1 << 40


def factor_of(expression: Expression) -> tuple[Expression, int, int] | None:
    """What is multiplied in `n / 2`, `n * 0.75`, `0.75 * n`, and by which fraction; None of others, and where the fraction
    is none of small numbers."""
    if expression.op not in ("mul", "truediv"):
        return None
    operand, factor = expression.args
    if operand.op == "const" and expression.op == "mul":
        operand, factor = factor, operand
    number: Any = factor.args[0] if factor.op == "const" else None
    if type(number) not in (int, float) or not 0 < number < _FINEST:
        return None
    above, below = number.as_integer_ratio()
    if expression.op == "truediv":
        above, below = below, above
    return (operand, above, below) if max(above, below) <= _FINEST else None


class Comparisons:
    """What is known of how sizes compare: from their ranges, and from the comparisons that later calls must decide alike."""

    def __init__(self) -> None:
        # By what stands beside the constant of a difference: the range in which it is.
        self._known: dict[Expr, tuple[int, int]] = {}
        self._unequal: set[Expr] = set()  # differences that are not 0

    def decided(self, op: str, a: Size, b: Size) -> bool | None:
        """The answer to `lt` or `eq`; None where it is not known."""
        difference = a - b
        low, high = self._range(difference)
        if op == "lt":
            return True if high < 0 else False if low >= 0 else None
        if low > 0 or high < 0 or difference in self._unequal:
            return False
        return True if low == high == 0 else None

    def is_positive(self, size: Size) -> bool:
        """Whether it is known to be 1 at least: it, or what it is the product of."""
        if self._range(size)[0] >= 1:
            return True
        if isinstance(size, int) or size.const or len(size.terms) != 1:
            return False
        ((monomial, factor),) = size.terms
        return factor > 0 and all(self._range(atom)[0] >= 1 for atom in monomial)

    def bounds(self, sym: Sym) -> tuple[int, int]:
        """The range of a symbol, by what was asked of it alone."""
        return self._range(sym)

    def note(self, op: str, a: Size, b: Size, answer: bool) -> None:
        """From now on, this is the answer."""
        difference = a - b
        if not isinstance(difference, Expr):
            return
        if op == "eq" and not answer:
            self._unequal |= {difference, -difference}  # type: ignore[arg-type]
            return
        low, high = self._range(difference)
        if op == "eq":
            low = high = 0
        elif answer:
            high = min(high, -1)
        else:
            low = max(low, 0)
        const = difference.const
        self._known[_without_const(difference)] = low - const, high - const
        self._known[_without_const(-difference)] = const - high, const - low

    def _range(self, difference: Size) -> tuple[int, int]:
        low, high = _bounds(difference)
        if isinstance(difference, Expr):
            rest = _without_const(difference)
            for found in (self._known.get(rest), self._of_quotient(rest)):
                if found is not None:
                    low, high = max(low, found[0] + difference.const), min(high, found[1] + difference.const)
        return low, high

    def _of_quotient(self, size: Expr) -> tuple[int, int] | None:
        """The range of x // n, from that of x, where `size` is one."""
        if not isinstance(size, Quotient) or size.op != "floordiv" or not isinstance(size.right, int):
            return None
        low, high = self._range(size.left)
        return low // size.right, high // size.right


def _without_const(size: Size) -> Expr:
    assert isinstance(size, Expr)
    rest = size - size.const
    assert isinstance(rest, Expr)
    return rest


def _bounds(size: Size) -> tuple[int, int]:
    """The range of a size, also of `4*s*t - s`: what its symbols are above their least values is from 0 on."""
    low, high = bounds(size)
    if low >= 0 or high <= 0:
        return low, high
    above = {sym: Sym(sym.name) + sym.lo for sym in free_syms(size)}
    more, less = bounds(subs(size, above))
    return max(low, more), min(high, less)


def of_dividend(difference: Size) -> tuple[bool, Size, int] | None:
    """How `difference < 0` is said of what is divided, or multiplied, in it: (True, x, n) for x < n, (False, x, n) for
    x >= n. None where nothing is."""
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


def reduced(a: Size, b: Size) -> tuple[Size, Size]:
    """Two sizes that compare as these do, without what both have and are multiples of."""
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
