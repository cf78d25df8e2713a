"""Calls between which the world changes: `Changing([(x,), (x,), (x,)], {1: f})` runs `f` just before the second call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


class Changing:
    """A sequence of calls; `changes` maps the number of a call to what happens before it."""

    def __init__(self, calls: Sequence[Any], changes: Mapping[int, Callable[[], object]]) -> None:
        self.calls = calls
        self.changes = changes

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Any]:
        for number, call in enumerate(self.calls):
            if number in self.changes:
                self.changes[number]()
            yield call
