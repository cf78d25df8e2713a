"""The simulated device's convolutions as on a GPU, whatever library the CPU under it has for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.ops import convolution_bias, cudnn_layouts
from smelt.torch_private import ConvBackend, select_conv_backend


def convolve_with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device says that cuDNN convolves: channels-last where an image or a weight lies so."""

    def memory_format(x: Tensor, weight: Tensor, backend: Any) -> torch.memory_format:
        last = any(
            t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight)
        )
        return torch.channels_last if last else torch.contiguous_format

    def select(x: Tensor, weight: Tensor, bias: Any, *settings: Any) -> Any:
        select_conv_backend(x, weight, bias, *settings)  # raises where sizes do not go together
        return ConvBackend.CudnnTranspose if settings[3] else ConvBackend.Cudnn

    monkeypatch.setattr(cudnn_layouts, "conv_memory_format", memory_format)
    monkeypatch.setattr(cudnn_layouts, "select_conv_backend", select)
    monkeypatch.setattr(convolution_bias, "select_conv_backend", select)
    convolution_bias.adds_behind.cache_clear()
