"""Jagged nested tensors around a graph of plain tensors: the values that it takes, and the nested tensors of its results."""

from __future__ import annotations

from typing import Any

import torch

from smelt.torch_private import (
    DisableTorchFunctionSubclass,
    NestedTensor,
    nested_dummy,
    nested_view,
    ragged_size_of,
)


class _Result(torch.autograd.Function):
    """From the values of a nested tensor to it. Its gradient has the same offsets."""

    @staticmethod
    def forward(ctx: Any, hidden: list[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        return hidden[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return None, gradient.values()


def values_of(nested: torch.Tensor) -> torch.Tensor:
    """The values of a nested tensor, whose gradients flow to it."""
    with torch.enable_grad():
        values: torch.Tensor = nested.values()
        return values


def nested_tensor(
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    ragged_dim: int,
    cache: dict[str, torch.Tensor],
    is_view: bool,
) -> torch.Tensor:
    """The nested tensor of these parts. Its gradient flows to `values`. `is_view`: it is a view of them."""
    if is_view:
        limits = cache.get("min_seqlen"), cache.get("max_seqlen")
        with torch.enable_grad(), DisableTorchFunctionSubclass():
            return nested_view(values, offsets, nested_dummy(), lengths, ragged_dim, *limits)  # type: ignore[no-any-return]
    inner = values.detach() if values.requires_grad else values
    nested: torch.Tensor = NestedTensor(
        inner, offsets, lengths=lengths, _ragged_idx=ragged_dim, _metadata_cache=cache
    )
    if not values.requires_grad:
        return nested
    with torch.enable_grad():
        return _Result.apply([nested], values)  # type: ignore[no-any-return, no-untyped-call]


def ragged_size(source: torch.Tensor, factor: int) -> torch.SymInt:
    """The ragged size of nested tensors with these offsets or lengths, or a multiple of it."""
    size: torch.SymInt = ragged_size_of(source, coeff=1)
    return size if factor == 1 else size * factor  # type: ignore[return-value]
