"""What happens when an object is dropped: a temporary directory is removed, a file is closed, a weak reference calls back.

Eager drops what a variable holds when the variable is deleted, gets another value, or its function ends. So a resume
function is also given such an object that it does not read any more, and where it drops one that its caller holds it runs
eagerly.
"""

from __future__ import annotations

import collections
import io
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING, NULL, instance_dict
from smelt.capture.base.vm_frames import Coroutine, Frame, Generator
from smelt.capture.graph_breaks.reachable_objects import nearby
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT

_LIMIT = 500  # parts of one object that are looked at
# Others hold them, or nothing is seen of their end.
_NEVER = (
    torch.Tensor, torch.nn.Module, types.FunctionType, types.ModuleType, types.CodeType, type, Generator,
    types.GeneratorType, types.AsyncGeneratorType,
)  # fmt: skip
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_Parts = Callable[[Any], Iterable[Any]]
_HOLDERS: tuple[tuple[type, _Parts], ...] = (
    (dict, dict.values),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (collections.deque, collections.deque.__iter__),
    (types.MethodType, lambda x: (x.__self__,)),
)


def ends_with_effect(value: object) -> bool:
    """Whether something may happen when `value` is dropped, with what it holds."""
    return any(map(_ends_with_effect, _reached(value)))


def _ends_with_effect(value: object) -> bool:
    kind = type(value)
    if kind is Coroutine:
        return True
    if kind in LEAF_TYPES or isinstance(value, _NEVER):
        return False
    if kind in _FILES:
        return not value.closed  # type: ignore[attr-defined]
    return type_find(kind, "__del__") is not MISSING or _calls_back(value)


def _reached(value: object) -> Iterator[object]:
    """`value` and what it holds, the nearest first."""
    return nearby((value,), _parts)


def check_dropped(vm: VM, frame: Frame, value: object, kept: object = None) -> None:
    """Raises Unsupported where a resume function drops an argument that something happens to then: its caller holds that
    until the function returns. `kept` is what may hold it from now on."""
    if value is NULL or frame.code.original is None or frame.pc <= frame.prologue:
        return
    source = vm.env.sources.get(id(value))
    if (
        source is None
        or source.kind != "arg"
        or not ends_with_effect(value)
        or any(x is value for x in _reached(kept))
    ):
        return
    error = unsupported(f"a {type(value).__qualname__} is dropped", UNSUPPORTED_EFFECT)
    error.breaks = False  # a resume function that runs eagerly lets go of its caller's arguments
    raise error


def _calls_back(value: object) -> bool:
    """Whether a weak reference to `value` calls a function when it is gone; a proxy may: it shows what `value` has."""
    return weakref.getweakrefcount(value) > 0 and any(
        type(reference) in weakref.ProxyTypes or reference.__callback__ is not None
        for reference in weakref.getweakrefs(value)
    )


def _parts(value: object) -> Iterable[object]:
    if type(value) in LEAF_TYPES or isinstance(value, _NEVER):
        return ()
    held = next((parts(value) for kind, parts in _HOLDERS if isinstance(value, kind)), ())
    return itertools.islice(itertools.chain(held, (instance_dict(value) or {}).values()), _LIMIT)
