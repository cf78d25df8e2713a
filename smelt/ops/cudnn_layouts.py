"""Layouts of cuDNN's convolution results, without calling it: its first calls take up to a second each.

`convolution` and `convolution_backward` in aten/src/ATen/native/Convolution.cpp choose a library and a memory format
for images, weight and results. Torch is asked for both, with tensors on the GPU that have no memory. There is no
answer if sizes of 1 make an image's format ambiguous, or a tensor is not dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.ops.convolution_settings import Convolution
from smelt.ops.layouts.meta_layouts import META, fresh, only, unbacked
from smelt.torch_private import ConvBackend, conv_memory_format, select_conv_backend

FORMATS = (torch.contiguous_format, torch.channels_last)


def cudnn_layout(
    device: torch.device, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any
) -> Any:
    """The layout of `convolution` of images, for meta tensors that represent tensors on `device`."""
    c = Convolution(*settings)
    memory_format = _format(device, x, weight, bias, c)
    if memory_format is None or not _is_image(x, memory_format):
        return NotImplemented
    shape = c.shape(x.shape, weight.shape)
    if min(shape) <= 0:
        return NotImplemented
    return torch.empty(shape, dtype=x.dtype, device=META, memory_format=memory_format)


def cudnn_backward_layout(
    device: torch.device,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> Any:
    """The layouts of `convolution_backward`. `settings`: the convolution's, and which gradients are needed."""
    *of_convolution, wanted = settings
    c = Convolution(*of_convolution)
    memory_format = _format(device, x, weight, None, c) if grad.dtype == x.dtype else None
    # A gradient that lies otherwise (expanded from a mean) is copied first.
    tangent = torch.empty(grad.shape, device=META, memory_format=memory_format or torch.contiguous_format)
    if memory_format is None or not (_is_image(x, memory_format) and _is_image(tangent, memory_format)):
        return NotImplemented
    like = [
        torch.empty(t.shape, dtype=x.dtype, device=META, memory_format=memory_format) for t in (x, weight)
    ]
    return only((*like, fresh((c.channels(weight.shape),), x.dtype)), wanted)


def is_cudnns(device: torch.device, x: torch.Tensor, weight: torch.Tensor, c: Convolution) -> bool:
    """Whether cuDNN computes the backward in a known memory format."""
    return _format(device, x, weight, None, c) is not None


def _format(
    device: torch.device, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, c: Convolution
) -> torch.memory_format | None:
    """The memory format in which cuDNN computes; None if another library computes or the format is unknown."""
    if (
        select_conv_backend is None
        or x.dim() != 4
        or x.dtype != weight.dtype
        or not x.numel() * weight.numel()
    ):
        return None
    if len(c.stride) != 2 or len(c.padding) != 2 or len(c.dilation) != 2:
        return None
    images, kernel = unbacked(x, device), unbacked(weight, device)
    real_bias = None if bias is None else unbacked(bias, device)
    backend = select_conv_backend(images, kernel, real_bias, *c)
    if backend not in (ConvBackend.Cudnn, ConvBackend.CudnnTranspose):
        return None
    found: torch.memory_format = conv_memory_format(images, kernel, backend)
    return found if found in FORMATS and weight.is_contiguous(memory_format=found) else None


def _is_image(x: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """Whether it is dense in this format only."""
    return all(x.is_contiguous(memory_format=f) == (f == memory_format) for f in FORMATS)
