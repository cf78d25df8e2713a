"""Compilations of one function or module with equal settings share one native callable, and with it their entries.

A program may compile where it calls (`smelt.compile(f)(x)` in a loop).

* A function that its module holds by name lives anyway, so its callable is kept. So is that of a class, whose modules are
  compiled in place.
* The callable of an `nn.Module` is kept as long as the module lives.
* The callable of another function refers to that function, so it is shared only while something else holds the callable.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeVar

from torch import nn

from smelt import _native
from smelt.guards.named_objects import stays

T = TypeVar("T")
Key = Hashable  # of settings
Make = Callable[[], _native.Wrapped]

_alive: weakref.WeakValueDictionary[tuple[int, Key], _native.Wrapped] = weakref.WeakValueDictionary()
_kept: dict[tuple[int, Key], tuple[FunctionType | type, _native.Wrapped]] = {}


@dataclass
class _OfModule:
    module: weakref.ref[nn.Module]
    calls: dict[Key, _native.Wrapped] = field(default_factory=dict)


_modules: dict[int, _OfModule] = {}
_is_enabled = True
_NOTHING: Any = nullcontext()


@contextmanager
def disabled(context: AbstractContextManager[T] = _NOTHING) -> Iterator[T]:
    """`context`, within which each compilation has a callable of its own. What was called in it may have entries that no
    later compilation should have (of an edited graph), so nothing is shared with earlier ones either."""
    global _is_enabled
    before, _is_enabled = _is_enabled, False
    try:
        with context as value:
            yield value
    finally:
        _is_enabled = before
        forget()


def of_function(function: FunctionType | type, key: Key, make: Make) -> _native.Wrapped:
    """The callable of `function`, or of a class, for these settings: the shared one, else `make()`, which refers to it."""
    if not _is_enabled:
        return make()
    at = (id(function), key)
    found = _alive.get(at)
    if found is None:
        found = _alive[at] = make()
        for other, (kept, _) in list(_kept.items()):
            if not stays(kept):  # its module has another function by this name
                _kept.pop(other, None)
        if stays(function):
            _kept[at] = function, found
    return found


def of_module(module: nn.Module, key: Key, make: Make) -> _native.Wrapped:
    """The callable of `module` for these settings; that of `make()` must not refer to the module."""
    if not _is_enabled:
        return make()
    address = id(module)
    of = _modules.get(address)
    if of is None:
        of = _modules[address] = _OfModule(weakref.ref(module, lambda _: _modules.pop(address, None)))
    found = of.calls.get(key)
    if found is None:
        found = of.calls[key] = make()
    return found


def forget() -> None:
    """Drop all shared callables."""
    _alive.clear()
    _kept.clear()
    _modules.clear()
