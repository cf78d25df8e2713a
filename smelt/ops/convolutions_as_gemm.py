"""Convolutions written as matrix products, where the target generates products: those of one pixel (a row times a
matrix) and those with disjoint patches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from smelt.loops.lazy_tensor import Index, Tensor
from smelt.loops.loop_values import GATHER
from smelt.loops.lowering_builder import Builder
from smelt.ops.convolution_bias import with_bias, with_bias_behind
from smelt.ops.convolution_settings import Convolution
from smelt.ops.cudnn_layouts import cudnn_layout
from smelt.ops.depthwise_convolution import depthwise, is_generated
from smelt.ops.layouts.meta_layouts import META, uninitialized
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.ops.vector_matmul import dots, is_row_product
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size, contiguous_stride, likely, numel
from smelt.torch_private import conv_memory_format, select_conv_backend

aten = torch.ops.aten

declare("convolution _convolution convolution_overrideable", recompute=Class.PRODUCT)
# Its shape function asks for real tensors.
declare("mkldnn_convolution", recompute=Class.PRODUCT, run_on_zeros=True)
declare("convolution", converts=True)
declare("convolution", linear=("input bias", "weight bias"))


@operator(aten.convolution.default)
def convolution(b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor | None:
    """A convolution with its bias added after it if ATen does so: depthwise, of an image of one pixel, or with
    disjoint windows. None, for an ATen call, with groups, padding, transposed convolutions and weights that are not
    contiguous, and where the target's costs say so."""
    kernel = weight.shape[2:]
    c = Convolution(*settings).over(len(kernel))
    if is_generated(x.spec, weight.spec, b.spec, c, b.costs):
        result = depthwise(b, x, weight, c)
        return result if bias is None else with_bias(b, result, bias)
    if bias is not None and (made := with_bias_behind(b, x, weight, bias, settings)) is not None:
        return made
    if not c.has_numbers or not all(isinstance(n, int) for n in weight.shape):
        return None
    if c.transposed or c.groups != 1 or any(c.padding):
        return None
    if weight.spec.stride != contiguous_stride(weight.shape):
        return None
    if all(size == 1 for size in (x.shape[0], *x.shape[2:], *kernel)):
        return _one_pixel(b, x, weight, bias)
    if any(k > s for k, s in zip(kernel, c.stride)) or all(s == 1 for s in c.stride):  # type: ignore[operator]
        return None
    if len(kernel) != 2 or any(d != 1 for d in c.dilation) or not _patches_pay(b, x, weight):
        return None
    return _patches(b, x, weight, bias, c.stride)


def _one_pixel(b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The convolution of one image of one pixel, as in squeeze-and-excitation blocks: a row times the weight."""
    if not is_row_product(b, x, weight):
        return None
    rest = (0,) * (len(x.shape) - 2)
    product = dots(b, x, weight, lambda column, k: (column, k, *rest))
    if bias is None:
        return product
    column = b.view(bias, (bias.shape[0], *[1] * len(rest)), lambda i: i[:1])
    return b.pointwise(lambda v, c: v + c, [product, column])


def _patches_pay(b: Builder, x: Tensor, weight: Tensor) -> bool:
    """Whether the result has enough pixels for copying patches to pay; with fewer, reading the weight dominates."""
    limits = b.costs.products
    if limits is None or x.dtype is not weight.dtype or x.dtype not in (torch.float32, torch.float64):
        return False
    least = limits.lone_pixels if prod(weight.shape[2:]) == 1 else limits.patch_pixels
    return likely(numel(b.spec.shape[2:])) >= least


def _patches(b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int]) -> Tensor:
    """Disjoint windows as columns: result[n, o, pixel] = weight[o, :] @ columns[n, :, pixel]."""
    window = weight.shape[1:]
    pixels = b.spec.shape[2:]
    depth = numel(window)
    split = (x.shape[0], *window, *pixels)
    flat = (x.shape[0], depth, *pixels)
    unflatten = reshape_index(split, flat)

    def index(i: Index) -> Index:
        n, c, dy, dx, y, z = unflatten(i)
        at = (n, c, y * stride[0] + dy, z * stride[1] + dx)
        return tuple([0 if size == 1 else e for e, size in zip(at, x.shape)])

    columns = b.copy(x, flat, index, GATHER)
    shape: tuple[Size, ...] = (weight.shape[0], depth, 1, 1)
    matrix = b.view(weight, shape, reshape_index(weight.shape, shape))
    one, none = [1, 1], [0, 0]
    return b.call(aten.convolution.default, (columns, matrix, bias, one, none, one, False, none, 1))


# ---- shapes on a CPU

_MANY = 1 << 28  # elements, with which no library is one for few
_FEW = 32  # pixels along a dimension, which are more than most windows have


def convolution_format(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, convolution: Convolution
) -> tuple[torch.Tensor, torch.Tensor, torch.memory_format, Any]:
    """(uninitialized input with at most a limited number of pixels, weight, memory format of the library, library).
    The operator turns one-dimensional data into images of one row before it looks at the format."""
    real, real_weight = uninitialized(_fewer(x)), uninitialized(weight)
    backend = select_conv_backend(real, real_weight, bias, *convolution)  # type: ignore[call-arg]
    if x.dim() == 3:
        real, real_weight = real.contiguous().unsqueeze(2), real_weight.unsqueeze(2)
    memory_format = conv_memory_format(real, real_weight, backend)
    return real, real_weight, memory_format, backend


def _fewer(x: torch.Tensor) -> torch.Tensor:
    """A spec with fewer, still many, pixels in the same order: for sizes that no call has there may be no memory."""
    shape = list(x.shape)
    while prod(shape) > _MANY:
        dim = max((d for d in range(x.dim()) if d != 1), key=shape.__getitem__)
        if shape[dim] < 2 * _FEW:
            break
        shape[dim] //= 2
    if shape == list(x.shape):
        return x
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return torch.empty_permuted(shape, order, dtype=x.dtype, device=META)


def _convolution_layout(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any
) -> Any:
    """The memory format depends on the library; torch is asked with uninitialized tensors."""
    n = x.dim() - 2
    if n not in (1, 2, 3) or x.dtype != weight.dtype or x.numel() == 0 or weight.numel() == 0:
        return NotImplemented
    real_bias = None if bias is None else uninitialized(bias)
    c = Convolution(*settings).over(n)
    _, _, memory_format, _ = convolution_format(x, weight, real_bias, c)
    shape = c.shape(x.shape, weight.shape)
    if min(shape) <= 0:
        return NotImplemented
    if n == 1:
        shape.insert(2, 1)
    out = torch.empty(shape, dtype=x.dtype, device=META, memory_format=memory_format)
    return out.squeeze(2) if n == 1 else out


declare(aten.convolution.default, layout=_convolution_layout, layout_on=cudnn_layout)
# The others of its settings say which library may compute. Torch 2.11 has no shape function of it.
declare(
    aten._convolution.default,
    layout=lambda x, weight, bias, *settings: _convolution_layout(x, weight, bias, *settings[:6]),
)
