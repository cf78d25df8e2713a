"""Loaded plans and the memory that they hold between calls; pauses of the garbage collector (`gc_pause.py`), and locks
across forks (`fork_locks.py`).

A plan retains one idle arena per device and stream, so that a call neither allocates its temporaries nor touches fresh
pages. A call that finds the arena in use (another thread, or a recursive call of the same plan) allocates its own and
drops it at the end.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from smelt import _native

IDLE_ARENAS = 2  # that the plans of one graph have between calls, for different sizes

_loaded: WeakValueDictionary[int, _native.Plan] = WeakValueDictionary()  # by id


def track(native: _native.Plan) -> _native.Plan:
    """Return `native`. Until the plan is freed, its idle memory counts in `held_bytes`, and `release_all` frees it."""
    _loaded[id(native)] = native
    return native


def _plans() -> list[_native.Plan]:
    """The plans that are loaded now; other threads may load and free plans meanwhile."""
    return [plan for ref in _loaded.valuerefs() if (plan := ref()) is not None]


def held_bytes() -> int:
    """Bytes of arenas that plans retain for their next call."""
    return sum(native.idle_bytes for native in _plans())


def release_all() -> int:
    """Free all idle arenas and return their bytes. Plans stay usable."""
    return sum(native.release() for native in _plans())
