"""Convolutions and their backward: the memory format depends on which library computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import META, fresh, only, suggested_format, uninitialized

aten = torch.ops.aten


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The memory format depends on which library computes; torch is asked, with uninitialized tensors."""
    n = x.dim() - 2
    if n not in (1, 2, 3) or x.dtype != weight.dtype or x.numel() == 0 or weight.numel() == 0:
        return NotImplemented
    real_bias = None if bias is None else uninitialized(bias)
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    options = stride, padding, dilation, transposed, extra, groups
    _, _, memory_format, _ = _convolution_format(x, weight, real_bias, options)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:])]
    if transposed:
        sizes = [
            (m - 1) * s - 2 * p + r + e for m, s, p, r, e in zip(x.shape[2:], stride, padding, reach, extra)
        ]
    else:
        sizes = [(m + 2 * p - r) // s + 1 for m, s, p, r in zip(x.shape[2:], stride, padding, reach)]
    if min(sizes) <= 0:
        return NotImplemented
    shape = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *sizes]
    if n == 1:
        shape.insert(2, 1)
    out = torch.empty(shape, dtype=x.dtype, device=META, memory_format=memory_format)
    return out.squeeze(2) if n == 1 else out


def _convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    n = x.dim() - 2
    if n not in (1, 2, 3) or not (grad.dtype == x.dtype == weight.dtype) or grad.dim() != x.dim():
        return NotImplemented
    if 0 in (grad.numel(), x.numel(), weight.numel()):
        return NotImplemented
    if wanted[2] and not wanted[1]:  # some libraries give the weight's all the same
        return NotImplemented
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    options = stride, padding, dilation, transposed, extra, groups
    bias = None if bias_sizes is None else torch.empty(channels, dtype=x.dtype)
    real, real_weight, memory_format, backend = _convolution_format(x, weight, bias, options)
    formats = [memory_format, memory_format]
    if backend != torch._C._ConvBackend.Mkldnn:  # type: ignore[attr-defined]
        # The others look at the weight's format once more; groups are computed one by one and joined.
        if memory_format != torch.contiguous_format and (transposed or groups > 1):
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
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, options: Sequence[Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.memory_format, Any]:
    """(uninitialized input, weight, memory format that the library computes in, library). An operator makes images of one
    row of one-dimensional data before it looks at the format."""
    real, real_weight = uninitialized(x), uninitialized(weight)
    backend = torch._C._select_conv_backend(real, real_weight, bias, *options)  # type: ignore[call-arg]
    if x.dim() == 3:
        real, real_weight = real.contiguous().unsqueeze(2), real_weight.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(real, real_weight, backend)
    return real, real_weight, memory_format, backend


def _each(value: Sequence[int], n: int) -> Sequence[int]:
    return list(value) * n if len(value) == 1 else value


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
