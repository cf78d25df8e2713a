"""Predicates on sizes that decide how a plan is built.

A plan with symbolic sizes is the same for all values with the same outcomes; `Decisions` records the outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from smelt.shapes.expr import Size, Values, bounds, evaluate, static


@dataclass
class Decisions:
    """Outcomes for the sizes `values`. Without `values`, a predicate that depends on symbols raises NeedsFixedSize.

    `conditions`: for each size that decided an outcome, whether it is at least 0; in the order of first use.
    """

    values: Values | None = None
    conditions: dict[Size, bool] = field(default_factory=dict)
    for_all_sizes: ClassVar[bool] = False  # outcomes are chosen so that they are right for all sizes

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


class UniversalDecisions(Decisions):
    """Outcomes that are right for all sizes, though not the fastest ones for each: no memory is reused, nothing is batched,
    no kernel is chosen for short rows. Only that sizes are not 0 is recorded, where their bounds do not say it."""

    for_all_sizes = True

    def at_least(self, a: Size, b: Size) -> bool:
        """Whether a >= b in all calls: else the plan is built for the other case, which no size forbids."""
        return bounds(a - b)[0] >= 0

    def is_zero(self, size: Size) -> bool:
        """False, which is a condition of the plan."""
        return super().is_zero(size) if bounds(size)[0] >= 1 else Decisions.at_least(self, 0, size)

    def larger(self, a: Size, b: Size) -> Size:
        """Their sum, which is at least as large: both are non-negative."""
        known = bounds(a - b)
        return a if known[0] >= 0 else b if known[1] <= 0 else a + b
