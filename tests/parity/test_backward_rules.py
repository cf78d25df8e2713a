"""Backwards of torch's that look at values (zeros, NaN): gradients are eager's, of products and of extremes."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

import smelt
from tests.harness.agreement import same

ROWS = torch.tensor([
    [1.5, 2.0, -3.0, 0.5], [1.5, 0.0, -3.0, 0.5], [0.0, 0.0, -3.0, 0.5], [1.0, inf, 2.0, 3.0], [0.0, inf, 2.0, 3.0],
    [0.0, nan, 2.0, 3.0], [0.0, 0.0, nan, 3.0], [inf, 0.0, inf, 1.0], [nan, 1.0, 2.0, nan], [3.0, 3.0, 1.0, 3.0],
    [nan, 2.0, 2.0, 1.0], [-0.0, 2.0, 3.0, 1.0], [1e30, 1e30, 1e-30, 1e-30], [inf, nan, 0.0, 1.0],
])  # fmt: skip
REDUCED = {
    "prod": lambda x: x.prod(),
    "prod in float64": lambda x: x.prod(dtype=torch.float64),
    "prod along a dimension": lambda x: x.prod(-1),
    "prod of columns": lambda x: x.prod(0, keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
}
TANGENTS = {
    "finite": lambda y: y * y,
    "NaN": lambda y: (y - y).log(),
}


@pytest.mark.parametrize("tangent", TANGENTS)
@pytest.mark.parametrize("name", REDUCED)
def test_gradients_of_what_looks_at_values(name: str, tangent: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return TANGENTS[tangent](REDUCED[name](x)).sum()

    compiled = smelt.compile(f)
    for values in (*ROWS, ROWS[:4], ROWS[4:8], torch.tensor(2.0)):
        gradients = []
        for call in (compiled, f):
            x = values.clone().requires_grad_()
            gradients.append(torch.autograd.grad(call(x), x))
        same(*gradients)


def test_hooks_see_the_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y.prod() + y.max()

    x = torch.rand(5, requires_grad=True)
    same(torch.autograd.grad(smelt.compile(f)(x), x), torch.autograd.grad(f(x), x))
