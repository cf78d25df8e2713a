"""Inputs whose dtype no loop computes in (complex numbers, eight-bit floats) are overwritten as eager overwrites them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report import inspect


def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def cross(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = y[:, :2]
    kept = old.clone()
    x[:, 2:] = old
    y[:, 1:3] = x[:, :2]
    return kept


def read_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    real = x.real
    y.add_(real)
    total = real.sum()
    x.mul_(2)
    return total


def filled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.zero_()
    x += y.conj()
    return x.abs()


def through_views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.view_as_real(x).mul_(2)
    x.real.add_(1)
    x.t()[1].copy_(y[:, 0] * 2)
    return x.conj() + y


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y: (x.add_(y), x * 2)[1],
    "copy": lambda x, y: x.copy_(y).abs(),
    "rows": lambda x, y: x[1:].copy_(y[:2]).sum(),
    "swap": swap,
    "cross": cross,
    "read_before": read_before,
    "filled": filled,
    "through_views": through_views,
}
INPUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "complex": lambda: (torch.randn(3, 4, dtype=torch.cfloat), torch.randn(3, 4, dtype=torch.cfloat)),
    "double": lambda: (torch.randn(3, 4, dtype=torch.cdouble), torch.randn(3, 4, dtype=torch.cdouble)),
    "of_real": lambda: (torch.randn(3, 4, dtype=torch.cfloat), torch.randn(3, 4)),
}
UNLIKE = {
    ("of_real", p) for p in ("swap", "cross")
}  # a real tensor cannot take complex numbers without a warning


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_written_as_in_eager(name: str, given: str) -> None:
    if (given, name) in UNLIKE:
        pytest.skip("a warning in eager")
    torch.manual_seed(0)
    ours = INPUTS[given]()
    theirs = tuple(t.clone() for t in ours)
    before = [t._version for t in (*ours, *theirs)]
    compiled = smelt.compile(PROGRAMS[name])
    got, want = compiled(*ours), PROGRAMS[name](*theirs)
    torch.testing.assert_close((got, *ours), (want, *theirs))
    moved = [t._version > old for t, old in zip((*ours, *theirs), before)]
    assert moved[:2] == moved[2:]
    assert inspect.reasons(compiled) == ()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64], ids=str
)
def test_copied_bit_for_bit(dtype: torch.dtype) -> None:
    x, y = (torch.arange(8.0).add(i).to(dtype) for i in (0, 3))
    compiled = smelt.compile(lambda x, y: x.copy_(y))
    compiled(x, y)
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))
    assert inspect.reasons(compiled) == ()


def test_gradients_and_errors() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return (x * w).abs().sum()

    torch.manual_seed(0)
    x, w = torch.randn(3, dtype=torch.cfloat), torch.randn(3, dtype=torch.cfloat, requires_grad=True)
    want = torch.autograd.grad(scaled(x.clone(), w), w)
    torch.testing.assert_close(torch.autograd.grad(smelt.compile(scaled)(x.clone(), w), w), want)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        smelt.compile(PROGRAMS["add"])(w, x)


def test_nothing_is_written_where_the_graph_raises() -> None:
    def solved(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        inverse = torch.linalg.inv(m)
        x.mul_(2)
        return inverse

    x = torch.ones(2, dtype=torch.cfloat)
    compiled = smelt.compile(solved)
    compiled(x, torch.eye(2))
    with pytest.raises(RuntimeError, match="singular"):
        compiled(x, torch.zeros(2, 2))
    assert torch.equal(x, torch.full((2,), 2.0, dtype=torch.cfloat))
