"""The numbers, texts, functions and sizes that changed between two calls: the next capture makes them symbolic, or guards
functions by their code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

import torch

from smelt.guards.guard import Guard
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.read_source import Missing, Reader
from smelt.guards.source import Source
from smelt.guards.tensor_facts import TensorFacts, tensor_facts

Path = tuple[object, ...]  # `Source.path`
_HOLD_NUMBERS = (int, float, str, tuple, torch.Size, slice)
SLICE_PARTS = ("start", "stop", "step")


def changed_numbers(guards: Iterable[Guard], slots: Sequence[object]) -> set[Path]:
    """Paths of the sources whose int, float or text is guarded to be constant, but has another value of the same type, and
    of those that have another nested function."""
    read = Reader(slots)
    found = set()
    for guard in guards:
        is_constant = guard.kind.is_constant and type(guard.value) in _HOLD_NUMBERS
        if guard.source is None or not (is_constant or guard.kind.is_identity):
            continue
        try:
            now = read(guard.source)
        except Missing:
            continue
        if is_constant:
            found |= _changed(guard.source, guard.value, now)
        elif type(now) is FunctionType and now is not guard.value and is_nested(now):
            found.add(guard.source.path)
    return found


def is_nested(function: FunctionType) -> bool:
    """Whether the code of `function` is inside another function."""
    return "<locals>" in function.__qualname__


def _changed(source: Source, then: Any, now: Any) -> set[Path]:
    if type(now) is not type(then):
        return set()
    if type(then) in (tuple, torch.Size) and len(then) == len(now):
        return {p for i, (a, b) in enumerate(zip(then, now)) for p in _changed(source.child("item", i), a, b)}
    if type(then) is slice:
        parts = (
            (source.child("member", name), getattr(then, name), getattr(now, name)) for name in SLICE_PARTS
        )
        return {path for part, a, b in parts for path in _changed(part, a, b)}
    return {source.path} if type(then) in (int, float, str) and not same_leaf(then, now) else set()


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
