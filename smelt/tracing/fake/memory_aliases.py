"""Tensors that look at the memory of one as others do: of other sizes, another dtype, conjugate or negative."""

from __future__ import annotations

import torch

from smelt.graph.conj_neg_bits import CONJUGATE, NEGATIVE


def alias_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What `like` shows of the memory that `tensor` lies in, a view of `tensor`."""
    seen = with_conj_neg_bits(tensor, tensor)
    if seen.dtype != like.dtype:
        seen = _whole(seen).view(like.dtype)
    return with_conj_neg_bits(seen.as_strided(like.size(), like.stride(), like.storage_offset()), like)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that `tensor` lies in, no view."""
    return _whole(with_conj_neg_bits(tensor.detach(), tensor)).detach()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def with_conj_neg_bits(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `tensor` that is conjugate, or negative, where `like` is; of one that is so too, a view that is not."""
    if like.is_conj():
        tensor = CONJUGATE(tensor)
    return NEGATIVE(tensor) if like.is_neg() else tensor
