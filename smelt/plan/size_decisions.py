"""What is decided by sizes while a plan is built: yes or no, each time.

A plan for sizes with symbols is the same for all numbers that give the same answers; `Decisions` notes which were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.shapes.expr import Size, Values, bounds, evaluate, static


@dataclass
class Decisions:
    """Answers for sizes that `values` says. Raises NeedsFixedSize, where there are none, for what depends on symbols.

    `conditions`: what the answers depended on, in the order in which it was asked: whether a size is at least 0.
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
        """Whether a size, which is never negative, is 0."""
        return self.at_least(0, size)

    def equal(self, a: Size, b: Size) -> bool:
        """Whether a == b."""
        return self.at_least(a, b) and self.at_least(b, a)

    def larger(self, a: Size, b: Size) -> Size:
        """The larger of two."""
        return a if self.at_least(a, b) else b

    def elements(self, shape: Sequence[Size], stride: Sequence[Size]) -> Size:
        """From the first to the last element, inclusive."""
        if any(map(self.is_zero, shape)):
            return 0
        last: Size = 0
        for n, s in zip(shape, stride):
            last = last + (n - 1) * s
        return last + 1
