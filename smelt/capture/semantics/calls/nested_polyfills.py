"""Python versions of torch's code for jagged nested tensors that reads lengths; the VM interprets them, so that lengths stay
symbolic."""

from __future__ import annotations

import torch


def unbind(
    values: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, dim: int
) -> list[torch.Tensor]:
    """The components of a nested tensor. `dim`: the dimension of `values` that holds them one after another."""
    if lengths is None:
        return list(torch.split(values, offsets.diff().tolist(), dim))
    return [values.narrow(dim, start, length) for start, length in zip(offsets.tolist(), lengths.tolist())]


def longest(offsets: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """A tensor without elements, whose first size is the length of the longest component."""
    lengths = offsets.diff() if lengths is None else lengths
    return torch.zeros(int(lengths.max()), 0)
