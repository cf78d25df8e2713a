"""Images: pooling, resizing, padding by their own pixels, shuffles between channels and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.loops.lazy_tensor import Index, Tensor
from smelt.loops.loop_values import GATHER
from smelt.loops.lowering_builder import Builder, Operand
from smelt.ops.data_movement import padded
from smelt.ops.index_bounds import of_last
from smelt.ops.layouts.meta_layouts import META, fresh, on_any, suggested_format
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator

aten = torch.ops.aten

declare(
    "pixel_shuffle pixel_unshuffle channel_shuffle im2col upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d",
    recompute=Class.MOVEMENT,
)
declare(
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _upsample_bicubic2d_aa",
    "_upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward",
    "_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d",
    "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward",
    "avg_pool1d avg_pool2d_backward avg_pool3d_backward channel_shuffle col2im grid_sampler_2d",
    "grid_sampler_2d_backward im2col max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
    "pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d",
    "reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d",
    "replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d",
    "replication_pad3d_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d",
    "upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d",
    "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d",
    "upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward",
    any_size=True,
)
declare(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool2d adaptive_max_pool3d",
    recompute=Class.REDUCTION,
)
declare(
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    scales=True,
)
declare("channel_shuffle pixel_shuffle pixel_unshuffle im2col col2im", linear=("self",))
declare(aten.avg_pool2d.default, out=aten.avg_pool2d.out)
declare(aten._adaptive_avg_pool2d.default, out=aten._adaptive_avg_pool2d.out)
declare(aten.upsample_nearest2d.default, out=aten.upsample_nearest2d.out)
declare(aten.upsample_bilinear2d.default, out=aten.upsample_bilinear2d.out)
declare(aten.upsample_bicubic2d.default, out=aten.upsample_bicubic2d.out)


@operator(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec)
def upsample_nearest2d(b: Builder, x: Tensor, *args: Operand) -> Tensor | None:
    """Integer factors only: the source pixel is then an exact integer division."""
    (_, _, h, w), (_, _, big_h, big_w) = x.shape, b.spec.shape
    if big_h % h or big_w % w:
        return None
    kh, kw = big_h // h, big_w // w
    if any(isinstance(a, float) and a not in (kh, kw) for a in args):
        return None
    return b.copy(x, b.spec.shape, lambda i: (i[0], i[1], i[2] // kh, i[3] // kw))


@operator(aten.pixel_shuffle.default)
def pixel_shuffle(b: Builder, x: Tensor, factor: int) -> Tensor:
    """Groups of factor**2 channels become squares of pixels."""

    def index(i: Index) -> Index:
        *batch, channel, row, column = i
        within = row % factor * factor + column % factor
        return (*batch, channel * factor**2 + within, row // factor, column // factor)

    return b.copy(x, b.spec.shape, index, GATHER)


@operator(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: Builder, x: Tensor, factor: int) -> Tensor:
    """Squares of pixels become groups of factor**2 channels."""

    def index(i: Index) -> Index:
        *batch, channel, row, column = i
        down, right = channel // factor % factor, channel % factor
        return (*batch, channel // factor**2, row * factor + down, column * factor + right)

    return b.copy(x, b.spec.shape, index, GATHER)


@operator(aten.channel_shuffle.default)
def channel_shuffle(b: Builder, x: Tensor, groups: int) -> Tensor:
    """One channel of each group in turn."""
    each = x.shape[1] // groups
    return b.copy(x, x.shape, lambda i: (i[0], i[1] % groups * each + i[1] // groups, *i[2:]), GATHER)


# ---- shapes on a CPU


def _as_image_layout(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient in the memory format of the forward's input."""
    if grad.dtype != x.dtype or x.dim() not in (3, 4) or not x.numel():
        return NotImplemented
    return torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))


def _reflection_layout(x: torch.Tensor, padding: Sequence[int]) -> Any:
    pairs = zip(reversed(x.shape), padding[::2], padding[1::2])
    return NotImplemented if any(max(pads) >= n for n, *pads in pairs) else _replication_layout(x, padding)


def _replication_layout(x: torch.Tensor, padding: Sequence[int]) -> Any:
    return padded(x, padding) if x.is_floating_point() else NotImplemented


def _upsample_backward_layout(
    grad: torch.Tensor, size: Sequence[int], input_size: Sequence[int], *_: Any
) -> Any:
    if grad.dim() != len(input_size) or not grad.numel():
        return NotImplemented
    return torch.empty(input_size, dtype=grad.dtype, device=META, memory_format=suggested_format(grad))


declare(aten.reflection_pad2d.default, aten.reflection_pad3d.default, layout=_reflection_layout)
declare(aten.replication_pad2d.default, aten.replication_pad3d.default, layout=_replication_layout)
declare(aten._adaptive_avg_pool2d_backward.default, layout=_as_image_layout)
declare(
    aten.avg_pool2d_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    layout=_as_image_layout,
    layout_on=on_any(_as_image_layout),
)
declare(
    aten.upsample_nearest2d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    layout=_upsample_backward_layout,
    layout_on=on_any(_upsample_backward_layout),
)
declare(
    aten.upsample_bicubic2d_backward.default,
    layout_on=lambda device, grad, size, input_size, *_: fresh(input_size, grad.dtype),
)
declare(
    *(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, aten.avg_pool2d.default),
    *(aten.avg_pool3d.default, aten.max_pool2d_with_indices.default, aten.reflection_pad1d.default),
    *(aten.reflection_pad3d.default, aten.replication_pad1d.default, aten.replication_pad2d.default),
    aten.replication_pad3d.default,
    needs_room=True,
)
# for an index out of range
declare(aten.max_unpool2d.default, aten.max_unpool3d.default, run_on_zeros=True, raises=True)
declare("replication_pad2d reflection_pad3d replication_pad3d", run_on_zeros=True)
declare("reflection_pad3d_backward replication_pad3d_backward", run_on_zeros=True)
declare(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
    "_adaptive_avg_pool3d_backward reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
    reads_shape_only=True,
)
declare(aten.max_pool2d_with_indices.default, aten.adaptive_max_pool2d.default, index_bound=of_last(2))
declare(aten.max_pool3d_with_indices.default, aten.adaptive_max_pool3d.default, index_bound=of_last(3))
