"""What is near an object: what it holds, what that holds, the nearest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

_MOST = 500  # objects that are looked at


def nearby(values: Iterable[object], held: Callable[[object], Iterable[object]]) -> Iterator[object]:
    """`values`, what they hold as `held` says, and so on, each object once, as far as `_MOST` objects."""
    pending = deque(values)
    seen: set[int] = set()
    while pending and len(seen) < _MOST:
        x = pending.popleft()
        if id(x) not in seen:
            seen.add(id(x))
            yield x
            pending += held(x)
