"""Plans that are loaded, and the memory that they hold between calls; the garbage collector (`gc_pause.py`), and locks
across forks (`fork_locks.py`).

A plan keeps one idle arena for each device and stream, so that a call neither allocates its temporaries nor touches fresh
pages. A call that finds it in use (another thread, or the same plan entered again) makes an arena of its own and drops it
at the end.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from smelt import _native

_loaded: WeakValueDictionary[int, _native.Plan] = WeakValueDictionary()  # by id


def track(native: _native.Plan) -> _native.Plan:
    """Returns `native`. Until the plan is freed, its idle memory counts in `held_bytes`, and `release_all` frees it."""
    _loaded[id(native)] = native
    return native


def _plans() -> list[_native.Plan]:
    """Those that are loaded now, while other threads load and free some."""
    return [plan for ref in _loaded.valuerefs() if (plan := ref()) is not None]


def held_bytes() -> int:
    """Bytes of arenas that plans keep for their next call."""
    return sum(native.idle_bytes for native in _plans())


def release_all() -> int:
    """Frees all idle arenas; returns their bytes. Plans stay usable."""
    return sum(native.release() for native in _plans())
