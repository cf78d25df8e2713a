"""Locks that the function creates: capture acquires and releases them for real, no other thread sees them meanwhile.

One that leaves must be free. The graph breaks where a lock of the environment is acquired: it protects objects that guards
would read without it.
"""

from __future__ import annotations

import _thread
import threading

from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind, unsupported
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.vm.vm import VM

_RLOCK: type = type(_thread.RLock())


@builtin(_thread.allocate_lock, _thread.LockType)
def _make_lock(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return _thread.allocate_lock(*args, **kwargs)


@builtin(_thread.RLock)
@function(threading.RLock)
def _make_rlock(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return _thread.RLock(*args, **kwargs)


def _is_held(lock: object) -> bool:
    query = "_is_owned" if type(lock) is _RLOCK else "locked"
    return bool(getattr(lock, query)())


def _check_free(lock: object) -> tuple[object, ...]:
    """Raise Unsupported for a lock that is held. It needs no object."""
    if _is_held(lock):
        raise unsupported(lock, "a lock that is held")
    return ()


provide(allocate_lock=_thread.allocate_lock, reentrant_lock=_thread.RLock)
RECONSTRUCTION_KINDS[_thread.LockType] = ReconstructionKind(_check_free, lambda x, text: "allocate_lock()")
RECONSTRUCTION_KINDS[_RLOCK] = ReconstructionKind(_check_free, lambda x, text: "reentrant_lock()")
