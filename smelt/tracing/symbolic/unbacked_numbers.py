"""Numbers that only the graph gives: how many elements a mask selects, what `item()` reads.

Such a number is the size of a dimension of a tensor that the graph computes (its *carrier*), and a symbol as other sizes
are: `u0`, `u1`, ..., of at least 2. That it is at least 2, and what torch has decided by it, is assumed; the graph checks
that as soon as it knows the number, and where it does not hold the call is made by the original function
(`capture/emit/eager_fallback.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import Unsupported
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.expr import Expr, Expression, Size, Sym, evaluate, free_syms, leaves


@dataclass(eq=False)
class DataNumber:
    """The size of dimension `dim` of `carrier`, a fake. `what`: it, for people."""

    sym: Sym
    what: str
    hint: int
    carrier: Any = None
    dim: int = 0

    def __str__(self) -> str:
        return str(self.sym)


@dataclass(frozen=True)
class Condition:
    """What a graph was made for: `op` (`lt`, `eq`) of the two sizes gives `answer`."""

    op: str
    a: Size
    b: Size
    answer: bool

    @property
    def symbols(self) -> frozenset[Sym]:
        """What it depends on."""
        return free_syms(self.a) | free_syms(self.b)

    def holds(self, values: Mapping[Sym, int]) -> bool:
        """Whether it does, for these sizes."""
        a, b = evaluate(self.a, values), evaluate(self.b, values)
        return ((a < b) if self.op == "lt" else (a == b)) is self.answer

    def __str__(self) -> str:
        sign = {("lt", True): "<", ("lt", False): ">=", ("eq", True): "==", ("eq", False): "!="}
        return f"{self.a} {sign[self.op, self.answer]} {self.b}"


@dataclass(frozen=True)
class NumberCondition:
    """What a graph was made for: a comparison of numbers, whose leaves are symbols of sizes, gives `answer`."""

    expression: Expression
    answer: bool

    @property
    def symbols(self) -> frozenset[Sym]:
        """What it depends on."""
        return frozenset(leaves(self.expression))

    def holds(self, values: Mapping[Sym, int]) -> bool:
        """Whether it does, for these sizes."""
        return bool(evaluate(self.expression, values)) is self.answer

    def __str__(self) -> str:
        return f"{self.expression} is {self.answer}"


def _terms(size: Size) -> int:
    return 0 if isinstance(size, int) else len(size.terms)


@dataclass
class Known:
    """What is known of such numbers in one trace, and assumed."""

    numbers: dict[Sym, DataNumber] = field(default_factory=dict)
    taken_for: int | None = None  # each of them is this, in this trace
    conditions: list[Condition | NumberCondition] = field(default_factory=list)
    equalities: list[Expr] = field(default_factory=list)  # of which each is 0
    made: dict[Size, Size] = field(default_factory=dict)  # symbols, by the sizes that they stand for

    def concerns(self, *sizes: Size) -> bool:
        """Whether such a number is in one of the sizes."""
        return bool(self.numbers) and any(not free_syms(s).isdisjoint(self.numbers) for s in sizes)

    def equal(self, a: Size, b: Size) -> None:
        """The two are one: where what is more than one symbol stands, a result of that size is taken for the other."""
        difference = a - b
        if isinstance(difference, Expr) and len(difference.terms) > 1:
            self.equalities.append(difference)

    def settled(self, size: Size) -> Size:
        """A size, by what is known to be equal: `u0 + u1` where that is 12."""
        for difference in self.equalities if isinstance(size, Expr) else ():
            for made in (size - difference, size + difference):
                if _terms(made) < _terms(size):
                    size = made
        return size

    def of(self, symbols: Iterable[Sym]) -> list[DataNumber]:
        """Those among `symbols`."""
        return [self.numbers[s] for s in symbols if s in self.numbers]

    def assume(self, op: str, a: Size, b: Size, answer: bool) -> None:
        """One more condition."""
        self.conditions.append(Condition(op, a, b, answer))

    def refusal(self, op: str, a: Size, b: Size) -> Unsupported:
        """The error for a comparison of the program's that data decide."""
        sign = {"lt": "<", "eq": "=="}[op]
        found = self.of(sorted(free_syms(a) | free_syms(b), key=str))
        names = " and ".join(f"{n.sym} is {n.what}" for n in found)
        return Unsupported(Reason(DATA_DEPENDENT, f"{a} {sign} {b} decides, where {names}"))


def data_leaf_of(expression: Expression) -> DataNumber | None:
    """A number in it that only the graph gives."""
    return next((key for key in leaves(expression) if isinstance(key, DataNumber)), None)
