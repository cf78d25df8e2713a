"""Strides of gradients whose dimensions have size 1, where several strides mean the same layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt

LOSSES: dict[str, Callable[[nn.Linear, torch.Tensor], torch.Tensor]] = {
    "linear": lambda m, x: m(x).exp().sum(),
    "squeezed": lambda m, x: (m(x).squeeze(-1) ** 2).mean(),
    "transposed": lambda m, x: (x @ m.weight.t()).exp().sum(),
    "from the left": lambda m, x: (m.weight @ x.transpose(-1, -2)).exp().sum(),
    "scaled": lambda m, x: (x * m.weight[0]).sum(),
    "used twice": lambda m, x: (m(x) + m(x * 2)).exp().sum(),
    "convolution": lambda m, x: F.conv1d(x.transpose(-1, -2), m.weight[..., None]).exp().sum(),
}


@pytest.mark.parametrize("size", [(4, 1), (1, 4), (1, 1)], ids=str)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_strides_are_eagers(
    loss: Callable[[nn.Linear, torch.Tensor], torch.Tensor], size: tuple[int, int]
) -> None:
    layer = nn.Linear(*size)
    parameters = list(layer.parameters())

    def forward(x: torch.Tensor) -> torch.Tensor:
        return loss(layer, x)

    def accumulated(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[tuple[int, ...]]:
        layer.zero_grad()
        f(x).backward()
        return [p.grad.stride() for p in parameters if p.grad is not None]

    def asked(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[tuple[int, ...]]:
        found = torch.autograd.grad(f(x), [x, *parameters], allow_unused=True)
        return [g.stride() for g in found if g is not None]

    for batch in (1, 3):
        x = torch.randn(2, batch, size[0], requires_grad=True)
        for strides in (accumulated, asked):
            assert strides(smelt.compile(forward), x) == strides(forward, x)
