"""How results lie on a GPU, told from those of one call and from what is said of a CPU, which knows of other sizes."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.pytree import leaves, map_leaves
from smelt.ops.layouts.meta_layouts import META, is_dense

Order = tuple[int, ...]  # dimensions, those of the largest strides first


@dataclass(frozen=True)
class Seen:
    """For each result its dtype (statistics of half precision are of another on a GPU), and how it lies: None as on a CPU,
    or the order of its dimensions in memory, or it is the tensor itself, whose sizes are the same at each call."""

    results: tuple[tuple[torch.dtype, Order | torch.Tensor | None], ...]

    def of(self, said: Any) -> Any:
        """Meta tensors that lie as on the GPU, of those that are said to lie so on a CPU."""
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
    """How results that were `found` on a GPU lie beside those `said` of a CPU; None where that does not tell of other sizes.
    `fixed`: sizes that are the same at each call. (What is saved of batch norms has other sizes on a GPU.)"""
    made: list[tuple[torch.dtype, Order | torch.Tensor | None]] = []
    for a, b in zip(leaves(found, torch.Tensor), leaves(said, torch.Tensor), strict=True):
        how: Order | torch.Tensor | None = None
        if a.shape != b.shape:
            if not set(a.shape) <= fixed:
                return None
            how = a
        elif a.stride() != b.stride():
            if not is_dense(a) or min(a.shape) < 2:
                return None
            how = tuple(sorted(range(a.dim()), key=a.stride, reverse=True))
        made.append((a.dtype, how))
    return Seen(tuple(made))
