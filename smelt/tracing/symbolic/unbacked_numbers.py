"""Unbacked numbers, which are known only when the graph runs: the number of elements that a mask selects, the result
of `item()`.

Such a number is the size of a dimension of a tensor that the graph computes (its *carrier*), with a symbol like other
sizes: `u0`, `u1`, ..., of at least 2. That it is at least 2, and every outcome that torch has decided by it, is
assumed. The graph checks these conditions as soon as it has the number; if one fails, the original function makes the
call (`capture/emit/eager_fallback.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import Unsupported
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.expr import Expr, Expression, Size, Sym, evaluate, free_syms, leaves


@dataclass(eq=False)
class UnbackedNumber:
    """The size of dimension `dim` of `carrier`, a fake. `what`: its description in messages."""

    sym: Sym
    what: str
    hint: int
    carrier: Any = None
    dim: int = 0

    def __str__(self) -> str:
        return str(self.sym)


@dataclass(eq=False)
class HeldNumber(UnbackedNumber):
    """The number in `carrier`, a 0-d tensor of int64 or float64: a counter of a loop. It is no size. `first`: its first
    value, if known; `least`: a lower bound."""

    first: float = -math.inf
    least: float = -math.inf


@dataclass(frozen=True)
class Condition:
    """An assumption of a graph: `op` (`lt`, `eq`) of the two sizes has this `outcome`."""

    op: str
    a: Size
    b: Size
    outcome: bool

    @property
    def symbols(self) -> frozenset[Sym]:
        """The symbols it depends on."""
        return free_syms(self.a) | free_syms(self.b)

    def holds(self, values: Mapping[Sym, int]) -> bool:
        """Whether it holds for these sizes."""
        a, b = evaluate(self.a, values), evaluate(self.b, values)
        return ((a < b) if self.op == "lt" else (a == b)) is self.outcome

    def __str__(self) -> str:
        sign = {("lt", True): "<", ("lt", False): ">=", ("eq", True): "==", ("eq", False): "!="}
        return f"{self.a} {sign[self.op, self.outcome]} {self.b}"


@dataclass(frozen=True)
class NumberCondition:
    """An assumption of a graph: a comparison of numbers, whose leaves are size symbols, has this `outcome`."""

    expression: Expression
    outcome: bool

    @property
    def symbols(self) -> frozenset[Sym]:
        """The symbols it depends on."""
        return frozenset(leaves(self.expression))

    def holds(self, values: Mapping[Sym, int]) -> bool:
        """Whether it holds for these sizes."""
        return bool(evaluate(self.expression, values)) is self.outcome

    def __str__(self) -> str:
        return f"{self.expression} is {self.outcome}"


def _terms(size: Size) -> int:
    return 0 if isinstance(size, int) else len(size.terms)


@dataclass
class UnbackedFacts:
    """Known and assumed facts about the unbacked numbers of one trace."""

    numbers: dict[Sym, UnbackedNumber] = field(default_factory=dict)
    specialized_value: int | None = None  # if set, the value of all of them in this trace
    conditions: list[Condition | NumberCondition] = field(default_factory=list)
    equalities: list[Expr] = field(default_factory=list)  # differences assumed to be 0
    size_symbols: dict[Size, Size] = field(default_factory=dict)  # size -> the symbol that stands for it

    def occurs_in(self, *sizes: Size) -> bool:
        """Whether an unbacked number occurs in one of the sizes."""
        return bool(self.numbers) and any(not free_syms(s).isdisjoint(self.numbers) for s in sizes)

    def add_equality(self, a: Size, b: Size) -> None:
        """Assume two sizes equal. An equality of several symbols is used to simplify sizes."""
        difference = a - b
        if isinstance(difference, Expr) and len(difference.terms) > 1:
            self.equalities.append(difference)

    def simplified(self, size: Size) -> Size:
        """A size simplified by the assumed equalities: `u0 + u1` where that is 12."""
        for difference in self.equalities if isinstance(size, Expr) else ():
            for candidate in (size - difference, size + difference):
                if _terms(candidate) < _terms(size):
                    size = candidate
        return size

    def among(self, symbols: Iterable[Sym]) -> list[UnbackedNumber]:
        """The unbacked numbers among `symbols`."""
        return [self.numbers[s] for s in symbols if s in self.numbers]

    def assume(self, op: str, a: Size, b: Size, outcome: bool) -> None:
        """Add a condition."""
        self.conditions.append(Condition(op, a, b, outcome))

    def comparison_error(self, op: str, a: Size, b: Size) -> Unsupported:
        """The error for a comparison by the program that unbacked sizes decide."""
        sign = {"lt": "<", "eq": "=="}[op]
        found = self.among(sorted(free_syms(a) | free_syms(b), key=str))
        names = " and ".join(f"{n.sym} is {n.what}" for n in found)
        return Unsupported(Reason(DATA_DEPENDENT, f"{a} {sign} {b} decides, where {names}"))


def held_leaves(expression: Expression) -> list[HeldNumber]:
    """The numbers in the expression that tensors hold."""
    return [key for key in leaves(expression) if isinstance(key, HeldNumber)]


def unbacked_leaf_of(expression: Expression) -> UnbackedNumber | None:
    """An unbacked number in the expression, if any."""
    return next((key for key in leaves(expression) if isinstance(key, UnbackedNumber)), None)
