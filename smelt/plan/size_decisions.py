"""Predicates on sizes that decide how a plan is built.

A plan with symbolic sizes is the same for all values with the same outcomes; `Decisions` records the outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.shapes.expr import Size, Values, bounds, evaluate, static


@dataclass
class Decisions:
    """Outcomes for the sizes `values`. Without `values`, a predicate that depends on symbols raises NeedsFixedSize.

    `conditions`: for each size that decided an outcome, whether it is at least 0; in the order of first use.
    """

    values: Values | None = None
    conditions: dict[Size, bool] = field(default_factory=dict)

    def at_least(self, a: Size, b: Size) -> bool:
        """Whether a >= b."""
        difference = a - b
        low, high = bounds(difference)
        if low >= 0 or high < 0:
            return low >= 0
        if difference not in self.conditions:
            number = static(difference) if self.values is None else evaluate(difference, self.values)
            self.conditions[difference] = number >= 0
        return self.conditions[difference]

    def is_zero(self, size: Size) -> bool:
        """Whether a non-negative size is 0."""
        return self.at_least(0, size)

    def equal(self, a: Size, b: Size) -> bool:
        """Whether a == b."""
        return self.at_least(a, b) and self.at_least(b, a)

    def larger(self, a: Size, b: Size) -> Size:
        """The larger of two."""
        return a if self.at_least(a, b) else b

    def elements(self, shape: Sequence[Size], stride: Sequence[Size]) -> Size:
        """The number of elements from the first to the last, inclusive."""
        if any(map(self.is_zero, shape)):
            return 0
        last: Size = 0
        for n, s in zip(shape, stride):
            last = last + (n - 1) * s
        return last + 1
