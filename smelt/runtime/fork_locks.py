"""Locks across `os.fork`: the child inherits all memory, but only the forking thread.

A lock that another thread holds would stay locked in the child, and the state it guards would stay half done
(environment objects that hold fakes, a half-compiled module). A fork therefore waits until no other thread holds one
of smelt's locks, or the lock that llvmlite puts around every call of LLVM: code is freed by whichever thread drops the
last reference to it, while it holds no lock of smelt's.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, TypeVar

# The order in which locks are acquired, outermost first.
CAPTURE, BACKWARD, SIZES, TUNING, KERNELS, GPU_KERNELS, LIBRARY, EMISSION, LINKS, LLVM = range(10)


class Lock(Protocol):
    """A reentrant lock (an RLock)."""

    def acquire(self) -> object: ...
    def release(self) -> object: ...


_L = TypeVar("_L", bound=Lock)

_locks: dict[int, Lock] = {}
_held: list[Lock] = []  # by the thread that forks, in the order in which they were acquired


def hold_at_fork(lock: _L, rank: int) -> _L:
    """Return `lock`, which a forking thread holds from now on. `rank` (a constant above): its place in the lock order."""
    _locks[rank] = lock
    return lock


# Held while the plan of a graph for new sizes, or a backward, is made; found entries make theirs without the compiler.
sizes_lock = hold_at_fork(threading.RLock(), SIZES)
backward_lock = hold_at_fork(threading.RLock(), BACKWARD)


def _before() -> None:
    acquired = [lock for _, lock in sorted(_locks.items())]
    for lock in acquired:
        lock.acquire()
    _held.extend(acquired)  # not before: another thread that forks has the list until it gives the locks back


def _after() -> None:
    acquired = _held[::-1]  # another thread may have imported, and so registered, one more since
    _held.clear()
    for lock in acquired:
        lock.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
