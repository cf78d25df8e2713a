"""Interned `TensorSpec`s: equal specs created here are one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.shapes.expr import Size, Sym, contiguous_stride, static
from smelt.shapes.substitute import substitute_size, substitution

_SPECS: dict[tuple[Any, ...], TensorSpec] = {}
_MAX = 100_000


def make_spec(
    shape: tuple[Size, ...],
    stride: tuple[Size, ...],
    dtype: torch.dtype,
    device: torch.device,
    offset: Size = 0,
    requires_grad: bool = False,
) -> TensorSpec:
    """The unique `TensorSpec` with these fields; `offset` and `stride` count elements."""
    key = (shape, stride, dtype, device, offset, requires_grad)
    spec = _SPECS.get(key)
    if spec is None:
        spec = _SPECS[key] = TensorSpec(*key)
    return spec


def row_major_spec(shape: tuple[Size, ...], dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """The spec of a contiguous tensor."""
    return make_spec(shape, contiguous_stride(shape), dtype, device)


def spec_of(tensor: torch.Tensor, device: torch.device) -> TensorSpec:
    """Spec of a plain strided tensor (real or meta), with `device` as its device."""
    return make_spec(
        tuple(tensor.size()), tensor.stride(), tensor.dtype, device, int(tensor.storage_offset())
    )


def trim() -> bool:
    """Drop interned specs when there are very many, and return whether it did. Only while nothing is being traced."""
    if len(_SPECS) <= _MAX:
        return False
    _SPECS.clear()
    return True


def empty_like_spec(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """An uninitialized tensor on `device` with the layout of `spec`; sizes must be concrete."""
    shape, stride = static_sizes(spec.shape), static_sizes(spec.stride)
    if not spec.offset:
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=device)
    (offset,) = static_sizes((spec.offset,))
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    return torch.empty(max(extent, 0), dtype=spec.dtype, device=device).as_strided(shape, stride, offset)


def static_sizes(sizes: tuple[Size, ...]) -> tuple[int, ...]:
    """`sizes` as numbers. Raises NeedsFixedSize for symbolic ones."""
    return tuple(n if type(n) is int else static(n) for n in sizes)


def with_sizes(spec: TensorSpec, change: Callable[[Size], Size]) -> TensorSpec:
    """The spec with its sizes, strides and offset changed."""
    shape, stride = tuple(map(change, spec.shape)), tuple(map(change, spec.stride))
    return make_spec(shape, stride, spec.dtype, spec.device, change(spec.offset), spec.requires_grad)


@substitution(TensorSpec)
def _substitute(spec: TensorSpec, values: Mapping[Sym, Size]) -> TensorSpec:
    if all(type(size) is int for size in (*spec.shape, *spec.stride, spec.offset)):
        return spec
    return with_sizes(spec, lambda size: substitute_size(size, values))
