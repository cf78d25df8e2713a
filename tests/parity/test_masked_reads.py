"""Where a mask is false nothing is read, and whatever is computed there instead (0/0) reaches no result and no gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.harness.agreement import same

MOVED = {
    "unfold": lambda y, x: y.unfold(0, 3, 1).sum(-1),
    "unfold with gaps": lambda y, x: y.unfold(0, 2, 3),
    "windows": lambda y, x: y.view(1, 1, -1).unfold(2, 3, 2).sum(-1),
    "pad": lambda y, x: F.pad(y, (2, 3), value=7.0),
    "crop": lambda y, x: F.pad(y, (-1, 3)),
    "cat": lambda y, x: torch.cat([y[:3], x * 2, y.exp()]),
    "slice": lambda y, x: y[2:5] * x[:3],
    "slice with a step": lambda y, x: y[1:7:2],
    "select": lambda y, x: y[3] * x,
    "triangle": lambda y, x: (y[:, None] * x).tril(-1).sum(0),
    "diagonal": lambda y, x: (y[:, None] * x).diagonal(1),
    "diagonal_scatter": lambda y, x: torch.diagonal_scatter(x[:, None] * x, y),
    "slice_scatter": lambda y, x: torch.slice_scatter(x, y[:3], 0, 2, 5),
    "select_scatter": lambda y, x: torch.select_scatter(x, y[0], 0, 2),
    "roll": lambda y, x: y.roll(3, 0) * x,
    "as_strided": lambda y, x: y.clone().as_strided((3, 3), (2, 1)),
    "split": lambda y, x: sum(s.sum() for s in y.split(5)[1:3]),
    "where": lambda y, x: torch.where(x > 0.7, y, x),
}
INVALID_AT_ZERO = {
    "0 / 0": lambda x: x.sin() / x.tan(),
    "-inf + inf": lambda x: (x.log() - (2 * x).log()).exp(),
}
AFTERWARDS = {"as it is": lambda y: y, "divided": lambda y: y / (1 + y.exp().sum(-1, keepdim=True))}


@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.parametrize("size", (9, 37))
def test_what_is_computed_from_zeros_goes_nowhere(moved: str, size: int) -> None:
    hole = torch.linspace(0.5, 1.3, size)
    hole[3] = float("inf")
    for invalid in INVALID_AT_ZERO.values():
        for after in AFTERWARDS.values():

            def f(x: torch.Tensor, invalid=invalid, after=after) -> torch.Tensor:
                return after(MOVED[moved](invalid(x), x))

            compiled = smelt.compile(f)
            for x in (torch.linspace(0.5, 1.3, size), hole):
                same(_with_gradient(compiled, x), _with_gradient(f, x))


def _with_gradient(f, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    y = f(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient
