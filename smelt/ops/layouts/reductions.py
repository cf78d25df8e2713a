"""Operators along dimensions: softmax, variance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import fresh, like, of_cpp

aten = torch.ops.aten


def _softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype) -> Any:
    if grad.shape != out.shape or grad.dtype != out.dtype or not grad.is_floating_point():
        return NotImplemented
    return fresh(grad.shape, dtype)


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return fresh(x.shape, dtype or x.dtype) if x.is_floating_point() and x.dim() else NotImplemented


def _var_mean(x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any) -> Any:
    mean = _var(x, dim, keepdim=keepdim)
    return mean if mean is NotImplemented else (mean, like(mean))


def _var(x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return of_cpp(aten.mean.dim, (x, dim, keepdim), {})


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _var,
    aten._safe_softmax.default: _safe_softmax,
}
