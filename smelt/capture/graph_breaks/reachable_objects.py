"""Breadth-first search of the objects that are reachable from others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

_MAX_OBJECTS = 500


def reachable(values: Iterable[object], children: Callable[[object], Iterable[object]]) -> Iterator[object]:
    """`values`, their `children` and so on, nearest first: each object once, at most `_MAX_OBJECTS` of them."""
    pending = deque(values)
    visited: set[int] = set()
    while pending and len(visited) < _MAX_OBJECTS:
        x = pending.popleft()
        if id(x) not in visited:
            visited.add(id(x))
            yield x
            pending += children(x)
