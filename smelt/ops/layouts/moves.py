"""Operators that move elements: embeddings, places by index, padding, rolling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.ops.layouts.meta import META, fresh, like, of_cpp, suggested_format, to_meta

aten = torch.ops.aten


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, padding_idx: int, by_frequency: bool
) -> Any:
    if indices.dtype not in (torch.int64, torch.int32) or grad.shape[:-1] != indices.shape:
        return NotImplemented
    return fresh((rows, grad.shape[-1]), grad.dtype)


def _index_put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *_: Any) -> Any:
    whole = (torch.int64, torch.int32)  # masks have a size of their own
    if x.dtype != values.dtype or any(i is not None and i.dtype not in whole for i in indices):
        return NotImplemented
    picked = of_cpp(aten.index.Tensor, (x, indices), {})
    if picked is NotImplemented or torch.broadcast_shapes(picked.shape, values.shape) != picked.shape:
        return NotImplemented
    return like(x)


def _pad(x: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    shape = list(x.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape) or not any(p > 0 for p in pad) or not x.numel():
        return NotImplemented
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    if min(shape) <= 0:
        return NotImplemented
    return torch.empty(shape, dtype=x.dtype, device=META, memory_format=suggested_format(x))


def _unsafe_view(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return to_meta(x.view(size))


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """A CPU rolls one dimension after the other, each time joining two parts."""
    shifts, dims = ([v] if isinstance(v, int) else v for v in (shifts, dims))
    if x.numel() == 0 or len(shifts) != len(dims) or not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims):
        start = -shift % x.size(dim)
        parts = [x.narrow(dim, start, x.size(dim) - start), x.narrow(dim, 0, start)]
        x = of_cpp(aten.cat.default, (parts, dim), {})
    return x


LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_put.default: _index_put,
    aten.constant_pad_nd.default: _pad,
    aten._unsafe_view.default: _unsafe_view,
    aten.roll.default: _roll,
}
