"""Batch norm with the statistics of the batch, and its backward: reductions of each channel over images and pixels.

Statistics and arithmetic are in the dtype ATen accumulates in; results round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.loop_values import DIVISION, call, cast
from smelt.loops.lowering_builder import Builder, Operand
from smelt.ops.layouts.meta_layouts import META, fresh, like, only, suggested_format
from smelt.ops.norms import (
    batch_norm_formula,
    batch_norm_training_layout,
    recorded_batch_norm,
    statistics_dtype,
)
from smelt.ops.recompute_rules import Class
from smelt.ops.reductions import as_number, count_of, dropped, moments, shared
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size

aten = torch.ops.aten

declare("_native_batch_norm_legit _native_batch_norm_legit_functional", recompute=Class.STATISTICS)
declare("native_batch_norm_backward", any_size=True)
Results = tuple[Tensor | None, ...]


@operator(aten._native_batch_norm_legit_functional.default)
def batch_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Results | None:
    """(normalised, mean, 1/deviation, new running mean, new running variance)"""
    if not training:
        return None
    compute, dims = opmath(x.dtype), _others(x)
    center, variance, results = _normalised(b, x, weight, bias, eps)
    count = count_of(x, dims)

    def unbiased(v: Value) -> Value:
        if isinstance(count, int):
            return v * (count / (count - 1) if count > 1 else float("nan"))
        number = as_number(count, torch.float64)  # of a single one, 0 * infinity
        return v * cast(number / (number - 1), v.dtype)

    def blended(of: Tensor, old: Tensor, scaled: Callable[[Value], Value], dtype: torch.dtype) -> Tensor:
        new = dropped(b, of, dims, False)
        return b.pointwise(
            lambda n, o: scaled(n) * momentum + o * (1 - momentum), [new, old], compute, dtype, 3.0, new.shape
        )

    mean = blended(center, running_mean, lambda v: v * 1.0, b.spec[3].dtype)
    return *results, mean, blended(variance, running_var, unbiased, b.spec[4].dtype)


@operator(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_running(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Results | None:
    """(normalised, mean, 1/deviation), always of the batch: this overload has no other statistics."""
    return _normalised(b, x, weight, bias, eps)[2]


def _others(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, len(x.shape)))


def _normalised(
    b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Results]:
    """(mean and variance of the batch with all dimensions kept, the operator's first three results)"""
    compute, dims = opmath(x.dtype), _others(x)
    center, variance = moments(b, x, dims, 0, compute)
    rstd = b.pointwise(
        lambda v: call("reciprocal", call("sqrt", v + eps)), [variance], compute, compute, 2 * DIVISION, variance.shape
    )  # fmt: skip
    scale = rstd if weight is None else _times(b, rstd, _column(b, weight, x))
    operands: list[Operand] = [x, center, scale, *([] if bias is None else [_column(b, bias, x)])]
    out = b.pointwise(  # a product with the mean taken out of the bias would cancel where the mean is large
        lambda v, m, a, *c: (v - m) * a + c[0] if c else (v - m) * a, operands, compute, b.spec[0].dtype, 3.0, x.shape
    )  # fmt: skip
    mean, saved = (b.cast(dropped(b, t, dims, False), b.spec[i].dtype) for i, t in ((1, center), (2, rstd)))
    return center, variance, (out, mean, saved)


def _times(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return b.pointwise(lambda u, v: u * v, [x, y], x.dtype, x.dtype, 1.0, x.shape)


def _column(b: Builder, t: Tensor, x: Tensor) -> Tensor:
    """One value for each channel, as a tensor that broadcasts to x."""
    shape = (1, t.shape[0], *[1] * (len(x.shape) - 2))
    return b.view(t, shape, reshape_index(t.shape, shape))


@operator(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Results | None:
    """With d = x - mean: the gradient is (g - average of g - d * rstd**2 * average of g * d) * rstd * weight; without the
    averages where the statistics were given. Weight's is the sum of g * d * rstd, bias's that of g."""
    if not training:
        mean, rstd = running_mean, running_var
    if mean is None or rstd is None:
        return None
    compute, dims = opmath(x.dtype), _others(x)
    center, scale = (b.cast(_column(b, t, x), compute) for t in (mean, rstd))
    if not training:
        scale = b.pointwise(
            lambda v: call("reciprocal", call("sqrt", v + eps)), [scale], compute, compute, 2 * DIVISION, scale.shape
        )  # fmt: skip
    product = b.pointwise(lambda g, v, m: g * (v - m), [grad, x, center], compute, compute, 2.0, x.shape)
    total = b.reduce("sum", grad, dims, True, compute)
    dot = b.reduce("sum", product, dims, True, compute)
    dx = None
    if mask[0]:
        operands: list[Operand] = [grad, scale]
        if training:
            operands += [x, center, total, dot]
        if weight is not None:
            operands.append(_column(b, weight, x))
        count = count_of(x, dims)
        dx = b.pointwise(_gradient(training, count), operands, compute, b.spec[0].dtype, 6.0, x.shape)
    dweight = dropped(b, _times(b, dot, scale), dims, False) if mask[1] else None
    dbias = dropped(b, total, dims, False) if mask[2] else None
    return (dx, dweight and b.cast(dweight, b.spec[1].dtype), dbias and b.cast(dbias, b.spec[2].dtype))


def _gradient(training: bool, count: Size) -> Callable[..., Value]:
    def f(g: Value, scale: Value, *others: Value) -> Value:
        rest = list(others)
        if training:
            v, m, total, dot = (rest.pop(0) for _ in range(4))
            g = g - shared(total, count) - (v - m) * (dot * shared(scale * scale, count))
        return g * (scale * rest[0] if rest else scale)

    return f


# ---- shapes on a CPU


def _batch_norm_functional_layout(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    *settings: Any,
) -> Any:
    """The layouts that the training form gives, and those of the new running statistics."""
    results = batch_norm_training_layout(x, weight, bias, mean, var, *settings)
    return results if results is NotImplemented else (*results, like(mean), like(var))


def _batch_norm_backward_layout(
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
    dtype = statistics_dtype(x, weight)
    return only((out, *(fresh(x.shape[1:2], dtype) for _ in range(2))), wanted)


declare(
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    layout=batch_norm_training_layout,
)
declare(aten._native_batch_norm_legit_functional.default, layout=_batch_norm_functional_layout)
declare(aten.native_batch_norm_backward.default, layout=_batch_norm_backward_layout)
declare(aten._native_batch_norm_legit.default, trace_rule=TraceRule.AS_OTHER, recorded_as=recorded_batch_norm)
# In training, normalization and gradients are computed from the statistics of the batch, not from the running ones.
declare(aten._native_batch_norm_legit_functional.default, unread=lambda *args: (3, 4) if args[5] else ())
declare(aten.native_batch_norm_backward.default, unread=lambda *args: (3, 4) if args[7] else ())
declare(
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    from_statistics=batch_norm_formula,
)
