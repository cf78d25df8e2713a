"""Locks across `os.fork`: the child inherits memory as it is, but only the thread that forked.

A lock that another thread holds would stay locked in the child for ever, and what it guards would stay half done (outside
objects that hold fakes, a module half compiled). So a fork waits until no other thread holds one of smelt's locks.
"""

from __future__ import annotations

import os
from typing import Any

# The order in which locks are taken, outermost first.
CAPTURE, BACKWARD, KERNELS, LIBRARY, EMISSION = range(5)

_locks: dict[int, Any] = {}


def hold_at_fork(lock: Any, place: int) -> Any:
    """Returns `lock` (an RLock); a thread that forks will hold it meanwhile. `place` is one of the constants above."""
    _locks[place] = lock
    return lock


def _before() -> None:
    for _, lock in sorted(_locks.items()):
        lock.acquire()


def _after() -> None:
    for _, lock in sorted(_locks.items(), reverse=True):
        lock.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
