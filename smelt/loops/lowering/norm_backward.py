"""Backward of normalisations: of the input row by row, of weight and bias as sums over the other dimensions.

With xhat the normalised input and h = gradient * weight, the input's gradient is
rstd * (h - average of h - xhat * average of h * xhat), averages over what was normalised together. Arithmetic is in
the dtype that ATen accumulates in; results round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.graph.sizes import Size
from smelt.loops.ir import Value
from smelt.loops.lowering.dtypes import opmath
from smelt.loops.lowering.reductions import count_of
from smelt.loops.lowering.table import Builder, lowers
from smelt.loops.lowering.views import reshape_index
from smelt.loops.tensor import Tensor, contiguous_stride
from smelt.loops.values import DIVISION

aten = torch.ops.aten

Results = tuple[Tensor | None, ...]


@lowers(aten.native_layer_norm_backward.default)
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
    dims = range(len(x.shape) - len(normalized), len(x.shape))
    xhat = _steps(b, lambda v, m, r: (v - m) * r, [x, mean, rstd], x)
    dx = dweight = dbias = None
    if mask[0]:
        h = _weighted(b, grad, weight)
        averages = [_average(b, t, dims) for t in (h, _steps(b, lambda u, v: u * v, [h, xhat], x))]
        dx = _input(b, h, xhat, rstd, averages, b.spec[0].dtype)
    if mask[1]:
        product = _steps(b, lambda g, v: g * v, [grad, xhat], x)
        dweight = _over_rows(b, product, dims, b.spec[1].dtype)
    if mask[2]:
        dbias = _over_rows(b, grad, dims, b.spec[2].dtype)
    return dx, dweight, dbias


@lowers(aten.native_group_norm_backward.default)
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
    """Channels are summed first: the groups' averages and the gradients of weight and bias are sums of those."""
    split = (n, groups, channels // groups, *x.shape[2:])
    column = (n, groups, *[1] * (len(split) - 2))
    g, v = (b.view(t, split, reshape_index(t.shape, split)) for t in (grad, x))
    center, scale = (b.view(t, column, reshape_index(t.shape, column)) for t in (mean, rstd))
    per_channel = (groups, channels // groups, *[1] * (len(split) - 3))
    w = weight and b.view(weight, per_channel, reshape_index(weight.shape, per_channel))
    xhat = _steps(b, lambda u, m, r: (u - m) * r, [v, center, scale], v)
    pixels, compute = range(3, len(split)), opmath(x.dtype)
    totals = [
        b.reduce("sum", t, pixels, True, compute) for t in (g, _steps(b, lambda a, c: a * c, [g, xhat], v))
    ]
    dx = None
    if mask[0]:
        weighted = [_weighted(b, t, w) for t in totals]
        count = count_of(v, range(2, len(split)))
        averages = [_average(b, t, (2,), count) for t in weighted]
        h = _weighted(b, g, w)
        flat = _input(b, h, xhat, scale, averages, b.spec[0].dtype)
        same_memory = b.spec[0].stride == contiguous_stride(x.shape)
        dx = (b.view if same_memory else b.copy)(flat, x.shape, reshape_index(split, x.shape))
    dbias, dweight = (
        _over_images(b, t, channels, spec.dtype) if wanted else None
        for t, wanted, spec in zip(totals, (mask[2], mask[1]), (b.spec[2], b.spec[1]))
    )
    return dx, dweight, dbias


# ---- pieces


def _steps(b: Builder, f: Callable[..., Value], operands: Sequence[Tensor], like: Tensor) -> Tensor:
    """A value on the way, in the dtype computed in, of the shape of `like`."""
    compute = opmath(like.dtype)
    return b.pointwise(f, operands, compute, compute, float(len(operands) - 1), like.shape)


def _weighted(b: Builder, grad: Tensor, weight: Tensor | None) -> Tensor:
    operands = [grad] if weight is None else [grad, weight]
    return _steps(b, lambda g, *w: g * w[0] if w else g, operands, grad)


def _average(b: Builder, x: Tensor, dims: Sequence[int], count: Size | None = None) -> Tensor:
    total = b.reduce("sum", x, dims, True, x.dtype)
    count = count_of(x, dims) if count is None else count
    return b.pointwise(lambda v: v / count, [total], x.dtype, x.dtype, DIVISION, total.shape)


def _input(
    b: Builder, h: Tensor, xhat: Tensor, rstd: Tensor, averages: Sequence[Tensor], out: torch.dtype
) -> Tensor:
    """`averages`: of h and of h * xhat."""
    return b.pointwise(
        lambda u, v, scale, mean, projected: (u - mean - v * projected) * scale,
        [h, xhat, rstd, *averages], h.dtype, out, 4.0, h.shape,
    )  # fmt: skip


def _over_rows(b: Builder, x: Tensor, dims: range, out: torch.dtype) -> Tensor:
    return b.cast(b.reduce("sum", x, range(dims.start), False, opmath(x.dtype)), out)


def _over_images(b: Builder, x: Tensor, channels: Size, out: torch.dtype) -> Tensor:
    total = b.cast(b.reduce("sum", x, (0,), False, x.dtype), out)
    return b.copy(total, (channels,), reshape_index(total.shape, (channels,)))
