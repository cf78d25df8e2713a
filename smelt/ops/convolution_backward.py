"""Backward of pointwise (1x1) convolutions as matrix products, where products are generated.

The input's gradient is a pointwise convolution with the transposed weight. The weight's gradient is a product over all
pixels of all images: one product per image, which are summed, if that needs little memory; otherwise one product for
all, for which the channels of images that are not channels-last are first moved to the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.loops.lazy_tensor import Index, Tensor
from smelt.loops.lowering_builder import Builder
from smelt.ops.convolution_settings import Convolution
from smelt.ops.convolutions_as_gemm import convolution_format
from smelt.ops.cudnn_layouts import cudnn_backward_layout
from smelt.ops.depthwise_convolution import depthwise_backward
from smelt.ops.layouts.meta_layouts import META, fresh, only, suggested_format
from smelt.ops.registry import declare, operator
from smelt.ops.view_operators import reshape_index
from smelt.shapes.expr import Size, contiguous_stride, static
from smelt.torch_private import ConvBackend

aten = torch.ops.aten
ONE, NONE = [1, 1], [0, 0]
LAST = (0, 2, 3, 1)  # dimensions of channels-last images, outermost first


@operator(aten.convolution_backward.default)
def convolution_backward(
    b: Builder, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *settings: Any
) -> tuple[Tensor | None, ...] | None:
    """`settings`: the convolution's, and which gradients are needed."""
    *of_convolution, mask = settings
    made = depthwise_backward(b, grad, x, weight, tuple(of_convolution), mask)
    if made is not None:
        return made
    c = Convolution(*of_convolution)
    plain = not c.transposed and c.groups == 1 and not any(c.padding) and all(s == 1 for s in c.stride)
    limits = b.costs.products
    if limits is None or not plain or not _is_pointwise(grad, x, weight):
        return None
    last = all(_is_dense(t.spec, LAST) for t in (grad, x))
    if not last and not all(_is_dense(t.spec, (0, 1, 2, 3)) for t in (grad, x)):
        return None
    if min(static(t.shape[1]) for t in (grad, x)) < (limits.channels_last if last else limits.channels):
        return None
    dx = dw = db = None
    if mask[0]:
        turned = b.view(weight, (*reversed(weight.shape[:2]), 1, 1), lambda i: (i[1], i[0], 0, 0))
        dx = b.call(aten.convolution.default, (grad, turned, None, ONE, NONE, ONE, False, NONE, 1), b.spec[0])
    if mask[1]:
        dw = b.copy(_weight(b, grad, x, last, limits.small_elements), weight.shape, lambda i: i[:2])
    if mask[2]:
        db = b.reduce("sum", grad, (0, 2, 3), False, grad.dtype)
    return dx, dw, db


def _is_pointwise(grad: Tensor, x: Tensor, weight: Tensor) -> bool:
    sizes = (*grad.shape, *x.shape, *weight.shape)
    known = len(x.shape) == 4 and all(isinstance(s, int) for s in sizes) and weight.shape[2:] == (1, 1)
    dtypes = {grad.dtype, x.dtype, weight.dtype}
    return known and len(dtypes) == 1 and x.dtype in (torch.float32, torch.float64)


def _is_dense(spec: TensorSpec, order: Sequence[int]) -> bool:
    """Whether `order` lists the dimensions of `spec` from outermost to innermost, without gaps."""
    expected = 1
    for d in reversed(order):
        if spec.shape[d] != 1 and spec.stride[d] != expected:
            return False
        expected *= static(spec.shape[d])
    return True


def _spec(like: Tensor, *shape: Size) -> TensorSpec:
    return TensorSpec(shape, contiguous_stride(shape), like.dtype, like.spec.device)


def _weight(b: Builder, grad: Tensor, x: Tensor, last: bool, small: int) -> Tensor:
    """[channels of grad, channels of x], summed over all pixels of all images; `last`: channels are last in memory;
    `small`: elements of a product that is one item of work."""
    n, out, *pixels = map(static, grad.shape)
    channels, count = static(x.shape[1]), prod(pixels)
    if n > 1 and out * channels <= (small if last else count * (out + channels)):
        left, right = (_matrices(b, t, n, last) for t in (grad, x))
        products = b.call(aten.bmm.default, (left, _turned(b, right)), _spec(x, n, out, channels))
        return b.reduce("sum", products, (0,), False, products.dtype)
    if last or n == 1:
        left, right = (_matrices(b, t, 1, last) for t in (grad, x))
        sides = [b.view(t, t.shape[1:], lambda i: (0, *i)) for t in (left, right)]
    else:
        sides = [_channels_first(b, t) for t in (grad, x)]
    return b.call(aten.mm.default, (sides[0], _turned(b, sides[1])), _spec(x, out, channels))


def _matrices(b: Builder, t: Tensor, n: int, last: bool) -> Tensor:
    """Images as `n` matrices of channels and pixels."""
    images, c, h, w = map(static, t.shape)
    flat = images * h * w // n
    if not last:
        return b.view(t, (n, c, flat), reshape_index(t.shape, (n, c, flat)))
    rows = b.view(t, (images, h, w, c), lambda i: (i[0], i[3], i[1], i[2]))
    matrices = b.view(rows, (n, flat, c), reshape_index(rows.shape, (n, flat, c)))
    return _turned(b, matrices)


def _turned(b: Builder, t: Tensor) -> Tensor:
    *batch, rows, columns = t.shape
    return b.view(t, (*batch, columns, rows), lambda i: (*i[:-2], i[-1], i[-2]))


def _channels_first(b: Builder, t: Tensor) -> Tensor:
    """A copy [channels, pixels of all images]."""
    n, c, h, w = t.shape
    flat = (c, prod(map(static, (n, h, w))))
    split = reshape_index((c, n, h, w), flat)

    def index(i: Index) -> Index:
        channel, image, row, column = split(i)
        return image, channel, row, column

    return b.copy(t, flat, index)


# ---- shapes on a CPU


def _convolution_backward_layout(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> Any:
    """`settings`: the convolution's, and which gradients are needed."""
    *of_convolution, wanted = settings
    n = x.dim() - 2
    if n not in (1, 2, 3) or not (grad.dtype == x.dtype == weight.dtype) or grad.dim() != x.dim():
        return NotImplemented
    if 0 in (grad.numel(), x.numel(), weight.numel()):
        return NotImplemented
    if wanted[2] and not wanted[1]:  # some libraries compute the gradient of the weight then, too
        return NotImplemented
    c = Convolution(*of_convolution).over(n)
    outputs = c.channels(weight.shape)
    bias = None if bias_sizes is None else torch.empty(outputs, dtype=x.dtype)
    _, real_weight, memory_format, backend = convolution_format(x, weight, bias, c)
    formats = [memory_format, memory_format]
    if backend != ConvBackend.Mkldnn:  # type: ignore[attr-defined]
        # Other libraries than oneDNN look at the weight's memory format again; groups are computed one by one and joined.
        if memory_format != torch.contiguous_format and (c.transposed or c.groups > 1):
            return NotImplemented
        formats[1] = suggested_format(real_weight.contiguous(memory_format=memory_format))
    shapes = [t.shape if n > 1 else (*t.shape[:2], 1, *t.shape[2:]) for t in (x, weight)]
    grads = [
        torch.empty(shape, dtype=x.dtype, device=META, memory_format=f) for shape, f in zip(shapes, formats)
    ]
    if n == 1:
        grads = [g.squeeze(2) for g in grads]
    return only((*grads, fresh((outputs,), x.dtype)), wanted)


declare(
    aten.convolution_backward.default,
    layout=_convolution_backward_layout,
    layout_on=cudnn_backward_layout,
    converts=True,
)
declare("convolution_backward", any_size=True)
