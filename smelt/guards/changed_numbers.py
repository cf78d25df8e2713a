"""The numbers, strings, functions and sizes that changed between two calls: the next capture makes them symbolic, or guards
functions by their code. Opaque proxies (`capture/proxies/opaque_proxy.py`) stand for other immutable objects."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

from smelt._native import isinstance
from smelt.guards.guard import Guard
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.read_source import Missing, Reader
from smelt.guards.source import Source
from smelt.guards.tensor_facts import TensorFacts, tensor_facts
from smelt.tracing.symbolic.numpy_numbers import PROXY_OF

Path = tuple[object, ...]  # `Source.path`
SLICE_PARTS = ("start", "stop", "step")

_OPAQUE = frozenset({
    bytes, complex, range, slice, tuple, frozenset, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.finfo, torch.iinfo, np.ndarray, MethodWrapperType, type,
})  # fmt: skip
_OPAQUE_BASES = (np.generic, enum.Enum, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta)
_COUNTS = frozenset(("len", "keys"))  # kinds of guards of the items of a tuple or frozenset


def may_be_opaque(value: object) -> bool:
    """Whether an `OpaqueProxy` may stand for `value`: an immutable object that is neither a string nor a number of at most
    64 bits, which have symbolic forms."""
    if type(value) is int:
        return value.bit_length() > 63
    if type(value) is BuiltinFunctionType:  # a function of a module may read the frame that calls it
        return value.__self__ is not None and not isinstance(value.__self__, (type, ModuleType))
    return type(value) in _OPAQUE or (isinstance(value, _OPAQUE_BASES) and type(value) not in PROXY_OF)


def changed_numbers(guards: Iterable[Guard], slots: Sequence[object]) -> set[Path]:
    """Paths of the sources whose value is guarded to be constant, but is another of the same type, and of those that have
    another nested function."""
    read = Reader(slots)
    found = set()
    for guard in guards:
        kind = guard.kind
        if guard.source is None or not (kind.is_constant or kind.is_identity or kind.name in _COUNTS):
            continue
        try:
            now = read(guard.source)
        except Missing:
            continue
        if kind.is_constant:
            found |= _changed(guard.source, guard.value, now)
            if not same_leaf(guard.value, now):
                found |= _owner(guard.source)
        elif kind.is_identity:
            if now is not guard.value and _may_be_another(now, guard.value):
                found.add(guard.source.path)
        elif type(now) in (tuple, frozenset) and not kind.holds(guard.source, guard.value, read):
            found.add(guard.source.path)
    return found


def _may_be_another(now: object, then: object) -> bool:
    """Whether `now`, which took the place of an object that is guarded by identity, can have a weaker guard."""
    if type(now) is FunctionType:
        return is_nested(now)
    return type(now) is type(then) and may_be_opaque(now)


def is_nested(function: FunctionType) -> bool:
    """Whether the code of `function` is inside another function."""
    return "<locals>" in function.__qualname__


def _changed(source: Source, then: Any, now: Any) -> set[Path]:
    if type(now) is not type(then):
        return set()
    parts: list[tuple[Source, Any, Any]] = []
    if type(then) in (tuple, torch.Size) and len(then) == len(now):
        parts = [(source.child("item", i), a, b) for i, (a, b) in enumerate(zip(then, now))]
    elif type(then) is slice:
        parts = [
            (source.child("member", name), getattr(then, name), getattr(now, name)) for name in SLICE_PARTS
        ]
    if parts and all(type(a) is type(b) for _, a, b in parts):
        return {path for part, a, b in parts for path in _changed(part, a, b)}
    if type(then) is bool or then is None or same_leaf(then, now):
        return set()
    return {source.path}


def _owner(part: Source) -> set[Path]:
    """The path of the object whose part at `part` a guard compares, if an `OpaqueProxy` may stand for the whole object."""
    at = part.base if part.kind == "call" else part
    if at is None or at.base is None or at.kind != "member" or at.key not in _OWN_PARTS:
        return set()
    return {at.base.path}


# What guards compare of a NumPy scalar or array, of a bound C method, and of a slice.
_OWN_PARTS = frozenset(("item", "shape", "strides", "__self__", *SLICE_PARTS))


def changed_sizes(
    guards: Iterable[Guard], slots: Sequence[object], seen: Mapping[Path, int] = MappingProxyType({})
) -> set[tuple[Path, int]]:
    """Paths and guarded values of the sizes and strides (`size_source`, `stride_source`) that changed or are wildcards. The
    value of a wildcard is that of the call that the guards come from (`seen`), so that symbolic sizes remain symbolic and
    sizes that differed in that call do not become one symbol."""
    read = Reader(slots)
    found: set[tuple[Path, int]] = set()
    for guard in guards:
        if guard.facts is None or guard.source is None:
            continue
        try:
            now = read(guard.source)
        except Missing:
            continue
        if issubclass(type(now), torch.Tensor):
            found |= _changed_sizes(guard.source, guard.facts, tensor_facts(now))
    return {(path, seen.get(path, size)) for path, size in found}


def size_source(tensor: Source, dim: int) -> Source:
    """The source of a tensor's size along a dimension."""
    return tensor.child("member", "shape").child("item", dim)


def stride_source(tensor: Source, dim: int) -> Source:
    """The source of a tensor's stride along a dimension."""
    return tensor.child("member", "stride").child("call", None).child("item", dim)


def _changed_sizes(tensor: Source, then: TensorFacts, now: TensorFacts) -> set[tuple[Path, int]]:
    if len(then.shape) != len(now.shape) or then.dtype is not now.dtype or then.type is not now.type:
        return set()
    both = ((size_source, then.shape, now.shape), (stride_source, then.stride, now.stride))
    return {
        (at(tensor, d).path, a) for at, old, new in both for d, (a, b) in enumerate(zip(old, new)) if a != b
    }
