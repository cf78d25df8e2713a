"""The object at a source, read in Python: the reference that the native accessors must agree with.

`ACCESSORS` has one row for each kind of source that guards read and that is not a root. No row runs user code: attributes
are read from instance dictionaries and through C descriptors. An accessor that finds nothing raises `Missing`, and every
guard on a source below fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.guards.iterator_state import PARTS, item_ahead
from smelt.guards.source import Source
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    ScriptModule,
)

_ABSENT = object()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MODULE_DICTS = ("_parameters", "_buffers", "_modules")


class Missing(LookupError):
    """There is no object at a source."""


def instance_dict(owner: object) -> Any:
    """The `__dict__` of an instance, module or class, read without user code. Raises Missing."""
    read = type.__getattribute__ if issubclass(type(owner), type) else object.__getattribute__
    try:
        return read(owner, "__dict__")  # type: ignore[arg-type]
    except AttributeError as e:
        raise Missing(str(e)) from None


# What a node of autograd has saved: C++ creates the tensors for each read, and hooks of the program may unpack them.
SAVED_TENSORS = ("saved_tensors", "saved_variables")


def _member(base: Any, key: str) -> Any:
    if key in SAVED_TENSORS and any(saved.unpack_hook is not None for saved in base._raw_saved_tensors):
        raise Missing(key)
    for cls in type(base).__mro__:
        found = cls.__dict__.get(key, _ABSENT)
        if found is not _ABSENT:
            with DisableTorchFunction():
                return found.__get__(base, type(base))
    raise Missing(key)


def _param(base: Any, key: str) -> Any:
    own = instance_dict(base)
    if key in own:  # precedes the dictionaries of the module
        return own[key]
    for name in MODULE_DICTS:
        if key in own[name]:
            return own[name][key]
    raise Missing(key)


def _item(base: Any, key: Any) -> Any:
    if issubclass(type(base), dict):
        found = dict.get(base, key, _ABSENT)  # dict.__getitem__ calls `__missing__`
        if found is _ABSENT:
            raise Missing(key)
        return found
    for kind in (list, tuple):
        if issubclass(type(base), kind):
            return kind.__getitem__(base, key)
    return base[key]


def _element(base: Any, key: int) -> float:
    """The float of 32 or 64 bits at index `key` of a CPU tensor, in row-major order."""
    with DisableTorchDispatch(), DisableTorchFunctionSubclass():
        plain = base.layout is torch.strided and base.device.type == "cpu" and not base.is_neg()
        if not plain or base.dtype not in (torch.float32, torch.float64):
            raise Missing(f"element {key}")
        found: float = base.detach().flatten()[key].item()
    return found


def _script(base: Any, key: str) -> Any:
    if type(base) is not ScriptModule:
        raise Missing(key)
    module: Any = base
    return module.getattr(key)


def _call(base: Any, key: None) -> Any:
    with DisableTorchFunction():
        return base()


ACCESSORS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": lambda base, key: instance_dict(base)[key],
    "member": _member,
    "param": _param,
    "item": _item,
    "cell": lambda base, key: base.__closure__[key].cell_contents,
    "default": lambda base, key: base.__defaults__[key],
    "kwdefault": lambda base, key: base.__kwdefaults__[key],
    "type": lambda base, key: type(base),
    "dict": lambda base, key: instance_dict(base),
    "ahead": item_ahead,
    "part": lambda base, key: PARTS[key](base),
    "element": _element,
    "script": _script,
    "call": _call,
}
FAILURES = (Missing, AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)


class Reader:
    """Reads the objects at sources, for one call with these argument slots; each source is read once."""

    def __init__(self, slots: Sequence[object]) -> None:
        self.slots = slots
        self._seen: dict[Source, Any] = {}

    def __call__(self, source: Source) -> Any:
        """The object now at `source`. Raises Missing."""
        found = self._seen.get(source, _ABSENT)
        if found is _ABSENT:
            found = self._seen[source] = self._read(source)
        return found

    def _read(self, source: Source) -> Any:
        if source.base is None:
            return self.slots[source.index] if source.kind == "arg" else source.known
        try:
            return ACCESSORS[source.kind](self(source.base), source.key)
        except FAILURES as e:
            raise Missing(f"{source.source}: {e}") from None
