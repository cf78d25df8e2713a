"""Layouts of results on a GPU for other sizes, from those of one call and from the declared ones of a CPU."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.symbolic_strides import is_dense
from smelt.ops.layouts.meta_layouts import META

Order = tuple[int, ...]  # dimensions, those of the largest strides first


@dataclass(frozen=True)
class Seen:
    """For each result its dtype (statistics of half precision have another one on a GPU), and its layout: None for a
    CPU's, or the order of its dimensions in memory, or the tensor itself, whose sizes are the same at each call."""

    results: tuple[tuple[torch.dtype, Order | torch.Tensor | None], ...]

    def of(self, said: Any) -> Any:
        """Meta tensors with the GPU's layouts, from those with a CPU's."""
        found = iter(self.results)

        def laid_out(result: torch.Tensor) -> torch.Tensor:
            dtype, how = next(found)
            if isinstance(how, torch.Tensor):
                return how
            if how is not None:
                return torch.empty_permuted(result.shape, how, dtype=dtype, device=META)
            return torch.empty_strided(result.shape, result.stride(), dtype=dtype, device=META)

        return map_leaves(said, torch.Tensor, laid_out)


def compared(found: Any, said: Any, fixed: Set[int]) -> Seen | None:
    """The difference between results `found` on a GPU and those `said` of a CPU; None if it does not carry over to
    other sizes. `fixed`: sizes that are the same at each call. (Saved results of batch norms have other sizes on a
    GPU.)"""
    made: list[tuple[torch.dtype, Order | torch.Tensor | None]] = []
    for a, b in zip(leaves(found, torch.Tensor), leaves(said, torch.Tensor), strict=True):
        how: Order | torch.Tensor | None = None
        if a.shape != b.shape:
            if not set(a.shape) <= fixed:
                return None
            how = a
        elif a.stride() != b.stride():
            if not is_dense(a.shape, a.stride()) or min(a.shape) < 2:
                return None
            how = tuple(sorted(range(a.dim()), key=a.stride, reverse=True))
        made.append((a.dtype, how))
    return Seen(tuple(made))
