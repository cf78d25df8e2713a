"""Normalizations and their backwards, as a CPU computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import META, fresh, like, only, suggested_format

aten = torch.ops.aten


def _statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """On a CPU, means and deviations have the input's dtype; they are float32 beside parameters that are. As
    `is_mixed_type` in ATen's cpu/mixed_data_type.h, which looks at the first parameter that is given."""
    first = next((p for p in parameters if p is not None), x)
    return x.dtype if first.dtype == x.dtype else torch.float32


def _layer_norm(
    x: torch.Tensor,
    normalized: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    shape = list(normalized)
    n = len(shape)
    if not x.is_floating_point() or n == 0 or list(x.shape[x.dim() - n :]) != shape:
        return NotImplemented
    if any(p is not None and list(p.shape) != shape for p in (weight, bias)):
        return NotImplemented
    rows = [*x.shape[: x.dim() - n], *[1] * n]
    dtype = _statistics_dtype(x, weight, bias)
    return fresh(x.shape, x.dtype), fresh(rows, dtype), fresh(rows, dtype)


def _layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    wanted: Sequence[bool],
) -> Any:
    parameters = tuple(p if want else None for p, want in zip((weight, bias), wanted[1:]))
    if x.numel() == 0 or grad.shape != x.shape or wanted[1:] != [p is not None for p in parameters]:
        return NotImplemented
    return fresh(x.shape, x.dtype) if wanted[0] else None, *(
        None if p is None else fresh(p.shape, p.dtype) for p in parameters
    )


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    return _batch_norm_training(x, weight, bias, mean, var, False, momentum, eps)


def _batch_norm_training(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *settings: Any,
) -> Any:
    """`settings`: running mean and variance (absent in the form without), training, momentum, epsilon."""
    running, training = settings[:-3], settings[-3]
    parameters = weight, bias, *running
    if not x.is_floating_point() or x.dim() < 2 or not (training or running):
        return NotImplemented
    if any(p is not None and p.shape != x.shape[1:2] for p in parameters):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    size = x.shape[1:2] if training else [0]
    dtype = _statistics_dtype(x, *parameters)
    return out, fresh(size, dtype), fresh(size, dtype)


def _batch_norm_functional(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    *settings: Any,
) -> Any:
    """Returns what the running statistics become as well."""
    results = _batch_norm_training(x, weight, bias, mean, var, *settings)
    return results if results is NotImplemented else (*results, like(mean), like(var))


def _batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    mean: torch.Tensor | None,
    deviation: torch.Tensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    if x.numel() == 0 or x.dim() < 2 or grad.shape != x.shape or grad.dtype != x.dtype:
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    dtype = _statistics_dtype(x, weight)
    return only((out, *(fresh(x.shape[1:2], dtype) for _ in range(2))), wanted)


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> Any:
    parameters = [p for p in (weight, bias) if p is not None]
    if not x.is_floating_point() or batch * channels * area != x.numel() or not x.numel():
        return NotImplemented
    if channels % groups or any(list(p.shape) != [channels] for p in parameters):
        return NotImplemented
    dtypes = {p.dtype for p in parameters} or {x.dtype}
    if dtypes != {x.dtype} and (dtypes != {torch.float32} or x.dtype not in (torch.float16, torch.bfloat16)):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    dtype = _statistics_dtype(x, weight, bias)
    return out, fresh([batch, groups], dtype), fresh([batch, groups], dtype)


def _group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    if (
        not x.numel()
        or grad.shape != x.shape
        or grad.dtype != x.dtype
        or (weight is None and any(wanted[1:]))
    ):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    return only((out, *(None if weight is None else like(weight) for _ in range(2))), wanted)


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._native_batch_norm_legit.default: _batch_norm_training,
    aten._native_batch_norm_legit.no_stats: _batch_norm_training,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}
