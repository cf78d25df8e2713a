"""Decompositions whose vectors nobody reads compute none, as eager's functions for values alone."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.harness.scheduled import externs, scheduled

aten = torch.ops.aten
VALUES = {
    "eigvals": (torch.linalg.eigvals, aten._linalg_eigvals.default),
    "eigvalsh": (torch.linalg.eigvalsh, aten._linalg_eigh.default),
    "eigvalsh, upper": (lambda x: torch.linalg.eigvalsh(x, UPLO="U"), aten._linalg_eigh.default),
    "svdvals": (torch.linalg.svdvals, aten._linalg_svd.default),
    "norm": (lambda x: torch.linalg.matrix_norm(x, 2), aten._linalg_svd.default),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_alone(name):
    """Bit by bit as eager's: LAPACK's routines for values round differently from those for vectors."""
    f, op = VALUES[name]
    x = torch.randn(8, 8) + torch.eye(8) * 4
    schedule, _ = scheduled(f, x)
    (item,) = [item for item in schedule.items if getattr(item, "op", None) is op]
    assert False in item.args or op is aten._linalg_eigvals.default
    assert torch.equal(smelt.compile(f)(x), f(x))


def test_vectors_that_are_read_are_computed():
    def f(x):
        values, vectors = torch.linalg.eigh(x @ x.mT)
        return (vectors * values) @ vectors.mT

    x = torch.randn(6, 6)
    assert aten._linalg_eigh.default in externs(scheduled(f, x)[0])
    torch.testing.assert_close(smelt.compile(f)(x), f(x))


def test_gradients():
    x = torch.randn(6, 6, requires_grad=True)
    for f in (torch.linalg.svdvals, lambda x: torch.linalg.eigvalsh(x @ x.mT), torch.linalg.eigvals):
        (got,), (want,) = (torch.autograd.grad(g(x).abs().sum(), x) for g in (smelt.compile(f), f))
        torch.testing.assert_close(got, want)
