"""Functions of torch whose operators have no shape function: the operator itself gives the layouts, on zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.harness.agreement import compare, observe

EDGES = torch.linspace(0, 1, 4)
RANGE = [0.0, 1.0, 0.0, 2.0]
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "histogram": lambda x: torch.histogram(x, 5),
    "histogram of a range": lambda x: torch.histogram(x, 3, range=(0.0, 0.5), density=True),
    "histogram by edges": lambda x: torch.histogram(x, EDGES, weight=x * 2),
    "histogramdd": lambda x: torch.histogramdd(x[:, :2], [3, 4]),
    "histogramdd of a range": lambda x: torch.histogramdd(
        x[:, :2].contiguous(), 3, range=RANGE, density=True
    ),
    "histogramdd by edges": lambda x: torch.histogramdd(x[:, :2], [EDGES, EDGES[1:]], weight=x[:, 2]),
    "geqrf": lambda x: torch.geqrf(x),
    "orgqr": lambda x: torch.linalg.householder_product(*torch.geqrf(x)) * 2,
    "ormqr": lambda x: torch.ormqr(*torch.geqrf(x), x + 1),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, x + 1, x, full=True),
    "gaussian_nll_loss of negative variances": lambda x: F.gaussian_nll_loss(x, x + 1, -x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    program = FUNCTIONS[name]
    compiled = smelt.compile(program, fullgraph=True)
    torch.manual_seed(0)
    for rows in (6, 6, 7, 8):
        x = torch.rand(rows, 4) + 0.05
        compare(observe(compiled, (x,), 0), observe(program, (x,), 0))
