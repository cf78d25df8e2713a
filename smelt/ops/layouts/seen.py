"""How results lie on a GPU, told from those of one call and from what is said of a CPU, which knows of other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.tree import leaves, map_leaves
from smelt.ops.layouts.meta import META, is_dense

Order = tuple[int, ...]  # dimensions, those of the largest strides first


@dataclass(frozen=True)
class Seen:
    """For each result: None where it lies as on a CPU, the order of its dimensions in memory, or the result itself, whose
    sizes are the same at each call."""

    results: tuple[Order | torch.Tensor | None, ...]

    def of(self, said: Any) -> Any:
        """Meta tensors that lie as on the GPU, of those that are said to lie so on a CPU."""
        found: Iterator[Order | torch.Tensor | None] = iter(self.results)

        def laid_out(result: torch.Tensor) -> torch.Tensor:
            how = next(found)
            if isinstance(how, tuple):
                return torch.empty_permuted(result.shape, how, dtype=result.dtype, device=META)
            return result if how is None else how

        return map_leaves(said, torch.Tensor, laid_out)


def compared(found: Any, said: Any, fixed: Set[int]) -> Seen | None:
    """How results that were `found` on a GPU lie beside those `said` of a CPU; None where that does not tell of other sizes.
    `fixed`: sizes that are the same at each call. (What is saved of batch norms has other sizes on a GPU.)"""
    pairs = list(zip(leaves(found, torch.Tensor), leaves(said, torch.Tensor), strict=True))
    made: list[Order | torch.Tensor | None] = []
    for a, b in pairs:
        if a.dtype != b.dtype:
            return None
        if a.shape != b.shape:
            if not set(a.shape) <= fixed:
                return None
            made.append(a)
        elif a.stride() == b.stride():
            made.append(None)
        elif is_dense(a) and min(a.shape) > 1:
            made.append(tuple(sorted(range(a.dim()), key=a.stride, reverse=True)))
        else:
            return None
    return Seen(tuple(made))
