"""Backward of normalizations: of the input row by row, of weight and bias as sums over the other dimensions.

With xhat the normalized input and h = gradient * weight, the input's gradient is rstd * (h - average of h - xhat * average
of h * xhat), averaged over the normalized dimensions. Arithmetic is in ATen's accumulation dtype; results round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.lowering_builder import Builder
from smelt.ops.layouts.meta_layouts import META, fresh, like, only, suggested_format
from smelt.ops.reductions import count_of, shared
from smelt.ops.registry import declare, operator
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size, contiguous_stride

aten = torch.ops.aten

Results = tuple[Tensor | None, ...]


@operator(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    normalized: Sequence[Size],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Results:
    """Weight's gradient is the sum of grad * xhat over the leading dimensions, bias's that of grad."""
    dims = range(len(x.shape) - len(normalized), len(x.shape))
    dx = dweight = dbias = None
    if mask[0]:
        h, xhat = _weighted(b, grad, weight), _standardized(b, x, mean, rstd)
        dx = _input(b, h, xhat, rstd, _sums(b, h, xhat, dims), dims, b.spec[0].dtype)
    # What is standardized is computed again for the weight, not kept for it: it costs less than memory does.
    of_bias, of_weight = _sums(b, grad, _standardized(b, x, mean, rstd), range(dims.start), keepdim=False)
    if mask[1]:
        dweight = b.cast(of_weight, b.spec[1].dtype)
    if mask[2]:
        dbias = b.cast(of_bias, b.spec[2].dtype)
    return dx, dweight, dbias


@operator(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: Size,
    channels: Size,
    positions: Size,
    groups: int,
    mask: Sequence[bool],
) -> Results:
    """If the gradients of weight and bias are needed, sums over channels serve all three."""
    split = (n, groups, channels // groups, *x.shape[2:])
    column = (n, groups, *[1] * (len(split) - 2))
    g, v = (b.view(t, split, reshape_index(t.shape, split)) for t in (grad, x))
    center, scale = (b.view(t, column, reshape_index(t.shape, column)) for t in (mean, rstd))
    per_channel = (groups, channels // groups, *[1] * (len(split) - 3))
    w = weight and b.view(weight, per_channel, reshape_index(weight.shape, per_channel))
    h, xhat = _weighted(b, g, w), _standardized(b, v, center, scale)
    pixels, dims = range(3, len(split)), range(2, len(split))
    of_channels = _sums(b, g, xhat, pixels)
    dx = dweight = dbias = None
    if mask[0]:
        if mask[1] or mask[2]:
            sums = [b.reduce("sum", _weighted(b, t, w), (2,), True) for t in of_channels]
        else:
            sums = _sums(b, h, xhat, dims)
        flat = _input(b, h, xhat, scale, sums, dims, b.spec[0].dtype)
        same_memory = b.spec[0].stride == contiguous_stride(x.shape)
        dx = (b.view if same_memory else b.copy)(flat, x.shape, reshape_index(split, x.shape))
    of_bias, of_weight = (b.reduce("sum", t, (0,)) for t in of_channels)
    if mask[1]:
        dweight = _flat(b, b.cast(of_weight, b.spec[1].dtype), channels)
    if mask[2]:
        dbias = _flat(b, b.cast(of_bias, b.spec[2].dtype), channels)
    return dx, dweight, dbias


# ---- pieces, in the dtype computed in


def _standardized(b: Builder, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return _step(b, lambda v, m, r: (v - m) * r, [x, mean, rstd])


def _weighted(b: Builder, grad: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return b.cast(grad, opmath(grad.dtype))
    return _step(b, lambda g, w: g * w, [grad, weight])


def _sums(b: Builder, h: Tensor, xhat: Tensor, dims: Sequence[int], keepdim: bool = True) -> list[Tensor]:
    """The sums of h and of h * xhat over `dims`."""
    product = _step(b, lambda u, v: u * v, [h, xhat])
    return [b.reduce("sum", t, dims, keepdim, product.dtype) for t in (h, product)]


def _input(
    b: Builder,
    h: Tensor,
    xhat: Tensor,
    rstd: Tensor,
    sums: Sequence[Tensor],
    dims: Sequence[int],
    out: torch.dtype,
) -> Tensor:
    count = count_of(h, dims)
    return b.pointwise(
        lambda u, v, scale, total, projected: (u - shared(total, count) - v * shared(projected, count)) * scale,
        [h, xhat, rstd, *sums], h.dtype, out, 6.0, h.shape,
    )  # fmt: skip


def _step(b: Builder, f: Callable[..., Value], operands: Sequence[Tensor]) -> Tensor:
    """An intermediate value, of the shape of the first operand and the dtype that ATen computes in."""
    x = operands[0]
    compute = opmath(x.dtype)
    return b.pointwise(f, operands, compute, compute, float(len(operands) - 1), x.shape)


def _flat(b: Builder, x: Tensor, channels: Size) -> Tensor:
    return b.copy(x, (channels,), reshape_index(x.shape, (channels,)))


# ---- shapes on a CPU


def _layer_norm_backward_layout(
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


def _group_norm_backward_layout(
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
    if grad.shape != x.shape or grad.dtype != x.dtype or (weight is None and any(wanted[1:])):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))
    return only((out, *(None if weight is None else like(weight) for _ in range(2))), wanted)


declare(aten.native_layer_norm_backward.default, layout=_layer_norm_backward_layout)
declare("_fused_rms_norm_backward native_group_norm_backward native_layer_norm_backward", any_size=True)
declare(aten.native_group_norm_backward.default, layout=_group_norm_backward_layout)
