"""Operators that make tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import fresh, like

aten = torch.ops.aten


def _filled(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return fresh(size, dtype)


def _full(size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return fresh(size, dtype or torch.full((), value).dtype)


def _new(x: torch.Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    return fresh(size, dtype or x.dtype)


def _scalar(value: Any, *, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return fresh((), dtype)


def _arange(end: Any, **options: Any) -> Any:
    return _arange_between(0, end, 1, **options)


def _arange_between(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **__: Any
) -> Any:
    """Whole numbers are counted exactly, others in double precision."""
    whole = all(type(n) is int for n in (start, end, step))
    if not all(type(n) in (int, float) and math.isfinite(n) for n in (start, end, step)):
        return NotImplemented
    if step == 0 or (end - start) * step < 0 or (not whole and dtype is not None):
        return NotImplemented
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return fresh((length,), dtype or (torch.int64 if whole else None))


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.clone.default: like,
    aten.empty_like.default: like,
    aten.zeros_like.default: like,
    aten.ones_like.default: like,
    aten.full_like.default: like,
    aten.rand_like.default: like,
    aten.randn_like.default: like,
    aten.zeros.default: _filled,
    aten.ones.default: _filled,
    aten.rand.default: _filled,
    aten.randn.default: _filled,
    aten.full.default: _full,
    aten.new_empty.default: _new,
    aten.new_zeros.default: _new,
    aten.new_ones.default: _new,
    aten.new_full.default: _new,
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange_between,
    aten.arange.start_step: _arange_between,
}
