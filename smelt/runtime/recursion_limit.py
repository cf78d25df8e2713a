"""The recursion limit of this thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from smelt import _native

_DEPTH = 20_000


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let this thread recurse deeper than `sys.getrecursionlimit()`, which stays as it is, also for other threads."""
    limit = sys.getrecursionlimit()
    before = _native.set_thread_recursion_limit(max(limit, _DEPTH))
    try:
        yield
    finally:
        _native.set_thread_recursion_limit(before if before > limit else sys.getrecursionlimit())
