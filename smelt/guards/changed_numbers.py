"""Which numbers and sizes changed between two calls: the next capture makes them symbolic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from smelt.guards.guard import Guard, TensorFacts
from smelt.guards.guard_evaluation import same_leaf, tensor_facts
from smelt.guards.read_source import Missing, Reader
from smelt.guards.source import Origin

Path = tuple[object, ...]  # `Origin.path`
_HOLD_NUMBERS = (int, float, tuple, torch.Size)


def changed_numbers(guards: Iterable[Guard], slots: Sequence[object]) -> set[Path]:
    """Paths of the origins that must hold a certain int or float, but hold another one of the same type."""
    read = Reader(slots)
    found = set()
    for guard in guards:
        if guard.kind == "eq" and type(guard.value) in _HOLD_NUMBERS and guard.origin is not None:
            try:
                now = read(guard.origin)
            except Missing:
                continue
            found |= _changed(guard.origin, guard.value, now)
    return found


def _changed(origin: Origin, then: Any, now: Any) -> set[Path]:
    if type(now) is not type(then):
        return set()
    if type(then) in (tuple, torch.Size) and len(then) == len(now):
        return {p for i, (a, b) in enumerate(zip(then, now)) for p in _changed(origin.child("item", i), a, b)}
    return {origin.path} if type(then) in (int, float) and not same_leaf(then, now) else set()


def changed_sizes(
    guards: Iterable[Guard], slots: Sequence[object], seen: Mapping[Path, int] = MappingProxyType({})
) -> set[tuple[Path, int]]:
    """Paths of the sizes and strides (`size_origin`, `stride_origin`) of tensors that must have certain ones, and have
    others now, or may have any; and what they must be, or, of those that may be any, what they were when the guards were
    made (`seen`): what was symbolic stays so, and sizes that differed then are not taken for one."""
    read = Reader(slots)
    found: set[tuple[Path, int]] = set()
    for guard in guards:
        if guard.kind != "tensor" or guard.origin is None:
            continue
        try:
            now = read(guard.origin)
        except Missing:
            continue
        if issubclass(type(now), torch.Tensor):
            found |= _changed_sizes(guard.origin, guard.value, tensor_facts(now))
    return {(path, seen.get(path, size)) for path, size in found}


def size_origin(tensor: Origin, dim: int) -> Origin:
    """Where the size of a tensor along a dimension is found."""
    return tensor.child("member", "shape").child("item", dim)


def stride_origin(tensor: Origin, dim: int) -> Origin:
    """Where the stride of a tensor along a dimension is found."""
    return tensor.child("member", "stride").child("call", None).child("item", dim)


def _changed_sizes(tensor: Origin, then: TensorFacts, now: TensorFacts) -> set[tuple[Path, int]]:
    if len(then.shape) != len(now.shape) or then.dtype is not now.dtype or then.type is not now.type:
        return set()
    both = ((size_origin, then.shape, now.shape), (stride_origin, then.stride, now.stride))
    return {
        (at(tensor, d).path, a) for at, old, new in both for d, (a, b) in enumerate(zip(old, new)) if a != b
    }
