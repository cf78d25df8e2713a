"""Views of a tensor's storage with the layout, dtype and conj/neg bits of another view."""

from __future__ import annotations

import torch

from smelt.graph.conj_neg_bits import CONJUGATE, NEGATIVE


def alias_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `tensor`'s storage with the layout, dtype and bits of `like`."""
    alias = with_conj_neg_bits(tensor, tensor)
    if alias.dtype != like.dtype:
        alias = _full_storage(alias).view(like.dtype)
    return with_conj_neg_bits(alias.as_strided(like.size(), like.stride(), like.storage_offset()), like)


def full_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of `tensor` as a tensor that is no view."""
    return _full_storage(with_conj_neg_bits(tensor.detach(), tensor)).detach()


def _full_storage(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def with_conj_neg_bits(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `tensor` with its conjugate and negative bits flipped where `like` has them."""
    if like.is_conj():
        tensor = CONJUGATE(tensor)
    return NEGATIVE(tensor) if like.is_neg() else tensor
