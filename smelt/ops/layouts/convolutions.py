"""Convolutions and their backward: the memory format depends on which library computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.convolution import Convolution
from smelt.ops.layouts.meta import META, fresh, only, suggested_format, uninitialized

aten = torch.ops.aten


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> Any:
    """The memory format depends on which library computes; torch is asked, with uninitialized tensors."""
    n = x.dim() - 2
    if n not in (1, 2, 3) or x.dtype != weight.dtype or x.numel() == 0 or weight.numel() == 0:
        return NotImplemented
    real_bias = None if bias is None else uninitialized(bias)
    c = Convolution(*settings).over(n)
    _, _, memory_format, _ = _convolution_format(x, weight, real_bias, c)
    reach = [d * (k - 1) + 1 for d, k in zip(c.dilation, weight.shape[2:])]
    each = zip(x.shape[2:], c.stride, c.padding, reach, c.output_padding)
    if c.transposed:
        sizes = [(m - 1) * s - 2 * p + r + e for m, s, p, r, e in each]
    else:
        sizes = [(m + 2 * p - r) // s + 1 for m, s, p, r, _ in each]
    if min(sizes) <= 0:
        return NotImplemented
    shape = [x.shape[0], _channels(weight, c), *sizes]
    if n == 1:
        shape.insert(2, 1)
    out = torch.empty(shape, dtype=x.dtype, device=META, memory_format=memory_format)
    return out.squeeze(2) if n == 1 else out


def _convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> Any:
    """`settings`: those of the convolution, and which gradients are wanted."""
    *of_convolution, wanted = settings
    n = x.dim() - 2
    if n not in (1, 2, 3) or not (grad.dtype == x.dtype == weight.dtype) or grad.dim() != x.dim():
        return NotImplemented
    if 0 in (grad.numel(), x.numel(), weight.numel()):
        return NotImplemented
    if wanted[2] and not wanted[1]:  # some libraries give the weight's all the same
        return NotImplemented
    c = Convolution(*of_convolution).over(n)
    channels = _channels(weight, c)
    bias = None if bias_sizes is None else torch.empty(channels, dtype=x.dtype)
    real, real_weight, memory_format, backend = _convolution_format(x, weight, bias, c)
    formats = [memory_format, memory_format]
    if backend != torch._C._ConvBackend.Mkldnn:  # type: ignore[attr-defined]
        # The others look at the weight's format once more; groups are computed one by one and joined.
        if memory_format != torch.contiguous_format and (c.transposed or c.groups > 1):
            return NotImplemented
        formats[1] = suggested_format(real_weight.contiguous(memory_format=memory_format))
    grads = [
        torch.empty(t.shape, dtype=x.dtype, device=META, memory_format=f)
        for t, f in zip((real, real_weight), formats)
    ]
    if n == 1:
        grads = [g.squeeze(2) for g in grads]
    return only((*grads, fresh((channels,), x.dtype)), wanted)


def _convolution_format(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, convolution: Convolution
) -> tuple[torch.Tensor, torch.Tensor, torch.memory_format, Any]:
    """(uninitialized input, weight, memory format that the library computes in, library). An operator makes images of one
    row of one-dimensional data before it looks at the format."""
    real, real_weight = uninitialized(x), uninitialized(weight)
    backend = torch._C._select_conv_backend(real, real_weight, bias, *convolution)  # type: ignore[call-arg]
    if x.dim() == 3:
        real, real_weight = real.contiguous().unsqueeze(2), real_weight.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(real, real_weight, backend)
    return real, real_weight, memory_format, backend


def _channels(weight: torch.Tensor, convolution: Convolution) -> int:
    """Of the result."""
    return weight.shape[1] * convolution.groups if convolution.transposed else weight.shape[0]


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
