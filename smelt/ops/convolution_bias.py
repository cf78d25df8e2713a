"""Biases that ATen adds after a convolution in a kernel of its own: on a GPU with cuDNN.

`_convolution` in aten/src/ATen/native/Convolution.cpp calls cuDNN without the bias, rounds the result, then calls
`add_`. As two operators the addition fuses with the kernel that reads the result. Other libraries add biases
themselves (depthwise kernels before they round), so their calls stay one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.sample_sizes import agreed
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.lowering_builder import Builder
from smelt.ops.convolution_settings import Convolution
from smelt.ops.layouts.meta_layouts import META, unbacked
from smelt.shapes.expr import static
from smelt.torch_private import ConvBackend, select_conv_backend

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def with_bias_behind(
    b: Builder, x: Tensor, weight: Tensor, bias: Tensor, settings: tuple[Any, ...]
) -> Tensor | None:
    """The convolution and the addition of its bias; None if ATen does not compute it so, or if that may depend on
    symbolic sizes. `settings`: the arguments of `aten.convolution` after the bias."""
    c = Convolution(*settings)
    if b.device.type != "cuda" or select_conv_backend is None or not c.has_numbers:
        return None
    frozen = c.frozen()

    def asked(*specs: TensorSpec) -> bool:
        return adds_behind(b.device, tuple(map(_layout, specs)), frozen)

    try:
        behind = agreed([x.spec, weight.spec, bias.spec], asked, "sizes decide who adds a bias")
    except NeedsFixedSize:
        return None
    if not behind:
        return None
    result = b.call(torch.ops.aten.convolution.default, (x, weight, None, *settings))
    return with_bias(b, result, bias)


def with_bias(b: Builder, result: Tensor, bias: Tensor) -> Tensor:
    """The rounded result of the convolution with a number added to each channel."""
    column = b.view(bias, (bias.shape[0], *[1] * (len(result.shape) - 2)), lambda i: i[:1])
    return b.pointwise(lambda v, c: v + c, [result, column])


@lru_cache(1024)
def adds_behind(device: torch.device, layouts: tuple[Layout, ...], settings: tuple[Any, ...]) -> bool:
    """Whether ATen adds the bias after the convolution for these layouts; torch is asked with tensors without memory."""
    metas = (torch.empty_strided(*sizes, dtype=dtype, device=META) for *sizes, dtype in layouts)
    tensors = [unbacked(x, device) for x in metas]
    backend = select_conv_backend(*tensors, *(list(s) if isinstance(s, tuple) else s for s in settings))
    return backend in (ConvBackend.Cudnn, ConvBackend.CudnnTranspose)


def _layout(spec: TensorSpec) -> Layout:
    return tuple(map(static, spec.shape)), tuple(map(static, spec.stride)), spec.dtype
