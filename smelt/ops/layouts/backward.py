"""Backwards of losses, pools, resizing and views: the layout of the gradient that they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import META, fresh, suggested_format

aten = torch.ops.aten


def _as_second(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient that is contiguous whatever the forward's input was."""
    return fresh(x.shape, x.dtype) if grad.dtype == x.dtype else NotImplemented


def _as_image(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient in the memory format of the forward's input."""
    if grad.dtype != x.dtype or x.dim() not in (3, 4) or not x.numel():
        return NotImplemented
    return torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))


def _upsample_backward(grad: torch.Tensor, size: Sequence[int], input_size: Sequence[int], *_: Any) -> Any:
    if grad.dim() != len(input_size) or not grad.numel():
        return NotImplemented
    return torch.empty(input_size, dtype=grad.dtype, device=META, memory_format=suggested_format(grad))


def _of_sizes(grad: torch.Tensor, sizes: Sequence[int], *_: Any) -> torch.Tensor:
    """A gradient of a view: zeros of the base's sizes but for some places."""
    return fresh(sizes, grad.dtype)


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.nll_loss_backward.default: _as_second,
    aten.mse_loss_backward.default: _as_second,
    aten.smooth_l1_loss_backward.default: _as_second,
    aten.avg_pool2d_backward.default: _as_image,
    aten._adaptive_avg_pool2d_backward.default: _as_image,
    aten.max_pool2d_with_indices_backward.default: _as_image,
    aten.upsample_nearest2d_backward.default: _upsample_backward,
    aten.upsample_bilinear2d_backward.default: _upsample_backward,
    aten.slice_backward.default: _of_sizes,
    aten.select_backward.default: _of_sizes,
}
