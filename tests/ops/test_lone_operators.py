"""Operators that ATen computes faster, and that nothing fuses with, are ATen calls."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.codegen.llvm.math_functions import CODE
from smelt.config import DEFAULT
from smelt.cost_model import AloneCosts
from smelt.targets import cpu
from tests.harness.scheduled import externs, kernels, scheduled

aten = torch.ops.aten
ALONE = (
    AloneCosts(frozenset({("sin", torch.float32), ("erfc", torch.float32)}), elements=64),
    AloneCosts(frozenset({("exp", torch.float32)}), elements=1000),
    AloneCosts(frozenset({("cat", torch.float32), ("stack", torch.float32)}), elements=64),
)


def overwritten(x):
    return x.sin_()


LEFT = {
    "alone": lambda x: x.sin(),
    "after what ATen computes": lambda x: torch.linalg.matrix_exp(x).sin(),
    "before what ATen computes": lambda x: torch.linalg.matrix_exp(x.sin()),
    "two": lambda x: (x.sin(), x.erfc()),
}
FUSED = {
    "with its reader": lambda x: x.sin() * 2,
    "with its operand": lambda x: (x * 2).sin(),
    "with a reduction": lambda x: x.sin().sum(),
    "overwritten": overwritten,
    "small": lambda x: x[:4].sin(),
    "few for a cheap one": lambda x: x.exp(),
    "of integers": lambda x: x.to(torch.int64).sin(),
    "another dtype": lambda x: x.double().sin(),
}


@pytest.mark.parametrize("name", LEFT)
def test_calls_of_aten(name):
    schedule, _ = scheduled(LEFT[name], torch.randn(16, 16), alone=ALONE)
    assert {aten.sin.default, aten.sin.out} & set(externs(schedule))
    assert not kernels(schedule)


@pytest.mark.parametrize("name", FUSED)
def test_kernels(name):
    schedule, _ = scheduled(FUSED[name], torch.randn(16, 16), alone=ALONE)
    assert not externs(schedule) and len(kernels(schedule)) == 1


def test_what_calls_the_c_library_for_each_lane_is_left_to_aten():
    """The target's table has what the code generator has no code for."""
    alone = {key for group in cpu.target(DEFAULT).costs.alone for key in group.operators}
    for elem, dtype in (("float", torch.float32), ("double", torch.float64)):
        lacking = {name for name in ("erf", "erfc", "pow") if name not in CODE[elem]}
        assert {(name, dtype) for name in lacking} <= alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results_and_gradients_are_eagers(dtype):
    x = torch.randn(200, dtype=dtype, requires_grad=True)

    def step(f):
        y = f(x)
        return y, *torch.autograd.grad(y, x, torch.ones_like(y))

    for f in (torch.erfc, torch.erf, torch.sin):
        compiled = smelt.compile(lambda x, f=f: f(x))
        for got, want in zip(step(compiled), step(f)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("join", "calls"),
    [
        (lambda x, y: torch.cat([x, y]), 1),
        (lambda x, y: torch.cat([x, y], -1), 1),
        (lambda x, y: torch.stack([x, y], 1), 1),
        (lambda x, y: torch.stack([x, y], -1), 0),  # single elements
        (lambda x, y: torch.cat([x.t(), y.t()]), 0),
        (lambda x, y: torch.cat([x[:, :8], y[:, :8]], 1), 0),
        (lambda x, y: torch.cat([x, y]) + 1, 0),
    ],
)
def test_concatenations_are_left_to_aten_where_it_copies_long_runs(join, calls):
    schedule, _ = scheduled(join, torch.randn(64, 64), torch.randn(64, 64), alone=ALONE)
    assert len(externs(schedule)) == calls and len(kernels(schedule)) == 1 - calls
