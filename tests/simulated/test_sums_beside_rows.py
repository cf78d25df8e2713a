"""Backwards whose sums over rows are computed beside the rows, from `smelt.compile` to the launch. The simulated device runs
rows and sums one behind the other; which buffers a launch is given, and when, is what a GPU does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.codegen import gpu_launches
from smelt.schedule.schedule import KernelItem

pytestmark = pytest.mark.simulated_cuda

ROWS = 3000  # 16 for each of 132 multiprocessors, and more


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sums each kernel computes beside its rows, of those that are compiled in the test."""
    found: list[int] = []
    aligned = gpu_launches._aligned

    def noted(schedule: Any) -> Any:
        kernels = [item.kernel for item in schedule.items if isinstance(item, KernelItem)]
        found.extend(len(k.sums.stages[0].reductions) for k in kernels if k.sums is not None)
        return aligned(schedule)

    monkeypatch.setattr(gpu_launches, "_aligned", noted)
    return found


def gradients(f: Any, g: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(f(*leaves), leaves, g)


def check(
    f: Any, rows: int, width: int, dtype: torch.dtype, *shapes: tuple[int, ...], **options: Any
) -> None:
    """Gradients are as near to those of float64 as eager's, but for some roundings; at each of several calls."""
    compiled = smelt.compile(f, fullgraph=True, **options)
    for _ in range(3):
        leaves = [torch.randn(s, dtype=dtype, device="cuda") for s in ((rows, width), *shapes)]
        g = torch.randn(rows, width, dtype=dtype, device="cuda")
        wide = [t.double().requires_grad_() for t in leaves]
        leaves = [t.requires_grad_() for t in leaves]
        wanted, eager = gradients(f, g.double(), *wide), gradients(f, g, *leaves)
        for got, want, other in zip(gradients(compiled, g, *leaves), wanted, eager, strict=True):
            assert got.dtype is dtype and got.stride() == other.stride()
            error, others = ((t.double() - want).norm() / want.norm() for t in (got, other))
            assert error <= 1.5 * others + 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("rows", [ROWS, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_layer_norm(beside: list[int], dtype: torch.dtype, rows: int) -> None:
    check(lambda x, w, b: F.layer_norm(x, (100,), w, b), rows, 100, dtype, (100,), (100,))
    assert beside == [2]


def test_rms_norm(beside: list[int]) -> None:
    check(lambda x, w: F.rms_norm(x, (96,), w), ROWS, 96, torch.float32, (96,))
    assert beside == [1]


def test_norms_of_a_residual_stream(beside: list[int]) -> None:
    """Each reads what the others gave; with gradients that CUDA graphs would replay, and with temporaries in an arena."""

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + F.gelu(F.layer_norm(x, (64,), w, b) @ m * 0.1)
        return F.layer_norm(x, (64,), w, b)

    check(f, ROWS, 64, torch.float32, (64,), (64,), (64, 64))
    assert sum(beside) >= 4


def test_with_deterministic_algorithms(beside: list[int]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        compiled = smelt.compile(lambda x, w, b: F.layer_norm(x, (100,), w, b))
        x, w, b = (torch.randn(s, device="cuda", requires_grad=True) for s in ((ROWS, 100), (100,), (100,)))
        g = torch.randn(ROWS, 100, device="cuda")
        first, second = (gradients(compiled, g, x, w, b) for _ in range(2))
        assert all(map(torch.equal, first, second)) and beside == [2]
    finally:
        torch.use_deterministic_algorithms(False)


def test_sums_on_the_cpu_are_kernels_of_their_own(beside: list[int]) -> None:
    """Of a graph of two devices, what is on the CPU runs there."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        top = x.softmax(-1)
        return top, (x * top).sum(0), y + 1

    x, y = torch.randn(ROWS, 48), torch.randn(4, device="cuda")
    with torch.no_grad():
        got = smelt.compile(f, fullgraph=True)(x, y)
        for a, b in zip(got, f(x, y), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert beside == []
