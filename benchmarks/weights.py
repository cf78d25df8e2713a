"""Random weights with which every branch of a model matters to its result.

What models begin with hides errors: many make the last scale of each branch zero or 1e-6, or all of the classifier zero, so
that a wrong branch leaves the result as it is. Here products keep the size of what they are given, scales lie around one,
offsets around zero, and running statistics are not those of a normalization that does nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import nn

TILE = (
    65_537  # random numbers, repeated to fill the weights: prime, so that no two rows of a matrix are equal
)
STEP = 7_919  # how far on in the tile the next parameter begins: no two of one shape are equal
CONVOLUTION = (
    2.0  # what a convolution multiplies the variance by: relu, which often follows, leaves half of it
)
SPREAD = 0.2  # standard deviation of scales and offsets
SCALES = (
    "weight",
    "gamma",
    "scale",
    "gain",
    "alpha",
)  # in the names of vectors that something is multiplied by


def fill(model: nn.Module, seed: int = 0) -> None:
    """Overwrites all floating parameters, and running means and variances, whatever the state of torch's generator."""
    tile = torch.randn(TILE, generator=torch.Generator().manual_seed(seed))
    starts = itertools.count(0, STEP)
    for module, name, tensor in _tensors(model):
        values = _tiled(tensor, tile.roll(-next(starts)))
        if name == "running_var":
            tensor.copy_(values.mul_(SPREAD).exp_())
        elif name == "running_mean" or (_is_vector(tensor) and not _is_scale(name)):
            tensor.copy_(values.mul_(SPREAD))
        elif _is_vector(tensor):
            tensor.copy_(values.mul_(SPREAD).add_(1))
        else:
            tensor.copy_(values.mul_(_variance(module, tensor) ** 0.5))


def _tensors(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """What is filled, each tensor once, with the module that has it and its name there."""
    seen: set[int] = set()
    for module in model.modules():
        owned = dict(module.named_parameters(recurse=False))
        owned |= {
            k: b for k, b in module.named_buffers(recurse=False) if k in ("running_mean", "running_var")
        }
        for name, tensor in owned.items():
            if tensor.dtype.is_floating_point and tensor.numel() and id(tensor) not in seen:
                seen.add(id(tensor))
                yield module, name, tensor.detach()


def _tiled(tensor: torch.Tensor, tile: torch.Tensor) -> torch.Tensor:
    """The tile, over and over, in the shape of `tensor`."""
    tile = tile.to(tensor.device)
    flat = torch.empty(tensor.numel(), device=tile.device)
    whole = flat.numel() // TILE
    flat[: whole * TILE].view(whole, TILE).copy_(tile)
    flat[whole * TILE :].copy_(tile[: flat.numel() - whole * TILE])
    return flat.view(tensor.shape)


def _is_vector(tensor: torch.Tensor) -> bool:
    """At most one dimension is not 1."""
    return tensor.numel() == max(tensor.shape, default=1)


def _is_scale(name: str) -> bool:
    return any(part in name for part in SCALES) and "bias" not in name


def _variance(module: nn.Module, tensor: torch.Tensor) -> float:
    """Of the elements of `tensor`, over how many of which a product sums."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return CONVOLUTION * tensor.shape[0] / tensor.numel()
    return 1 / tensor.shape[-1]
