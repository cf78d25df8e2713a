"""Half precision rounds where eager rounds: operands first, at which steps, and what is computed in float32 instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.harness.accuracy import no_worse
from tests.harness.catalogue import DEVICE, ON_GPU

INT = torch.tensor([3001], device=DEVICE)
PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "add_number": lambda x, y, n: (x + 0.3, x - 0.3, 0.3 - x),
    "add_alpha": lambda x, y, n: (torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=0.7), torch.add(x, y, alpha=3)),
    "mul_number": lambda x, y, n: (x * 0.3, 0.3 * x, x * torch.tensor(0.3), torch.tensor(0.3) * x),
    "mul_single": lambda x, y, n: (x * INT, INT * x, x * torch.tensor(3001), x + INT),
    "mul_integers": lambda x, y, n: (x * n, n * x, n + x, x - n),
    "div_number": lambda x, y, n: (x / 0.3, 0.3 / x, x / INT, x / n, n / x, x / torch.tensor(0.3)),
    "div_trunc": lambda x, y, n: tuple(torch.div(x, d, rounding_mode="trunc") for d in (y, 0.3, n, INT)),
    "div_floor": lambda x, y, n: tuple(torch.div(x, d, rounding_mode="floor") for d in (y, 0.3, n, INT)),
    "floor_divide": lambda x, y, n: (x // y, x // 0.3, x // n, n // x),
    "remainder": lambda x, y, n: (x % y, x % 0.3, torch.fmod(x, y), torch.fmod(x, 0.3), x % n, torch.fmod(n, x)),
    "pow": lambda x, y, n: (x**2, x**3, x**-1, x**-2, x.abs() ** 0.3, x.abs() ** -0.5, 0.3**y, x.abs() ** y),
    "pow_of_infinity": lambda x, y, n: ((x / 0) ** 0.5, (x / 0) ** -0.5, (x / 0) ** 3),
    "pow_integers": lambda x, y, n: (y ** (n % 7), (n % 7) ** y),
    "addcmul": lambda x, y, n: (torch.addcmul(x, y, x), torch.addcmul(x, y, y, value=0.3)),
    "addcdiv": lambda x, y, n: (torch.addcdiv(x, y, x), torch.addcdiv(x, y, x, value=0.3)),
    "lerp": lambda x, y, n: (torch.lerp(x, y, 0.3), torch.lerp(x, y, y), torch.lerp(x, y, 0.9)),
    "xlogy": lambda x, y, n: (torch.xlogy(x, y.abs()), torch.xlogy(x, 0.3), torch.special.xlog1py(x, y.abs())),
    "extremes": lambda x, y, n: (torch.maximum(x, n), torch.fmin(n, x), x.clamp(max=0.3), torch.where(x > 0, x, n)),
    "compare": lambda x, y, n: (x < 0.3, x == n, torch.atan2(x, n), torch.copysign(x, n)),
    "sums": lambda x, y, n: (n.sum(dtype=x.dtype), n.view(64, -1).prod(1, dtype=x.dtype), y.view(64, -1).norm(dim=1)),
    "softmax": lambda x, y, n: (x.view(64, -1).softmax(-1),),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_eagers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(4096) * 20).to(dtype), (torch.randn(4096) * 3).to(dtype)
    n = torch.randint(-5000, 5000, (4096,), dtype=torch.int32)
    with torch.no_grad():
        got, want = smelt.compile(PROGRAMS[name])(x, y, n), PROGRAMS[name](x, y, n)
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype
        # On a GPU exponentials that are rounded at once are 0 below the smallest normal numbers of float32.
        least = 2.0**-125 if ON_GPU and name == "softmax" else 0.0
        torch.testing.assert_close(g, w, rtol=_LAST.get(name, 0.0) * _eps(w), atol=least, equal_nan=True)


# Polynomials and sums in another order: a unit in the last place.
_LAST = {"pow": 1.0, "pow_integers": 1.0, "sums": 1.0, "softmax": 2.0, "xlogy": 1.0, "compare": 1.0}


def _eps(x: torch.Tensor) -> float:
    return torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_scans(dtype: torch.dtype) -> None:
    """Of a CPU the bits are eager's; a GPU's kernels round at each step (native/cuda/ScanUtils.cuh), smelt's do not."""
    torch.manual_seed(0)
    y = 1 + (torch.randn(4096) * 3).to(dtype) * 0.01
    with torch.no_grad():
        got, want = smelt.compile(lambda y: y.cumprod(0))(y), y.cumprod(0)
    assert got.dtype is dtype
    if ON_GPU:
        no_worse(got, want, y.double().cumprod(0), dtype)
    else:
        torch.testing.assert_close(got, want, rtol=2 * _eps(want), atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_that_are_added_round_once(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.add(x, y, alpha=0.3), torch.addcmul(x, y, y, value=0.3), torch.lerp(x, y, 0.7)

    torch.manual_seed(0)
    x, y = torch.randn(4096, dtype=dtype), torch.randn(4096, dtype=dtype)
    for got, want in zip(smelt.compile(program)(x, y), program(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=0.0, atol=torch.finfo(dtype).eps)


def test_the_sign_of_a_zero_that_equals_a_bound() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.relu(),
            x.clamp(0),
            x.clamp(min=0, max=0),
            torch.nn.functional.hardtanh(x, 0.0, 6.0),
            x.clamp(max=0.0),
        )

    x = torch.tensor([-0.0, 0.0, -1.0, 1.0] * 8)
    if ON_GPU and not torch.relu(x)[0].signbit():
        pytest.skip("torch's kernels of GPUs gave such zeros the bound's sign before pytorch/pytorch#185354")
    for got, want in zip(smelt.compile(program)(x), program(x), strict=True):
        assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_that_fill_are_rounded(dtype: torch.dtype) -> None:
    """To the tensor's dtype, before the next operator reads them."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = 8.396
        return (
            torch.full_like(x, number) - x,
            torch.empty_like(x).fill_(number) * x,
            torch.full((), number, dtype=x.dtype) / x,
            x.new_full(x.shape, number).float(),
            F.hinge_embedding_loss(x, x.sign(), margin=number, reduction="none"),
        )

    torch.manual_seed(0)
    x = torch.randn(4096).to(dtype)
    for got, want in zip(smelt.compile(program)(x), program(x), strict=True):
        assert torch.equal(got, want)


def _with_limits(x: torch.Tensor, t: torch.Tensor, reduction: str) -> list[torch.Tensor]:
    return [
        loss
        for limit in (1.0, 0.3)
        for loss in (
            F.smooth_l1_loss(x, t, reduction=reduction, beta=limit),
            F.huber_loss(x, t, reduction=reduction, delta=limit),
        )
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_of_several_operators_round_between_them(reduction: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = F.binary_cross_entropy_with_logits
        return (
            logits(x, t, reduction=reduction),
            logits(x, t, weight=w, reduction=reduction),
            logits(x, t, pos_weight=w, reduction=reduction),
            logits(x, t, w, pos_weight=w[0], reduction=reduction),
            F.soft_margin_loss(x, t, reduction=reduction),
            F.mse_loss(x, t, reduction=reduction),
            # A GPU's kernels round the difference, which a simulated one's, those of the CPU, do not.
            *(_with_limits(x, t, reduction) if DEVICE == "cpu" or ON_GPU else ()),
        )

    compiled = smelt.compile(program, fullgraph=True)
    for seed in range(10):
        torch.manual_seed(seed)
        x, t, w = (torch.randn(5, 5).mul(4), torch.rand(5, 5), torch.rand(5, 5) * 3)
        given = [a.to(dtype) for a in (x, t, w)]
        for number, (got, want) in enumerate(zip(compiled(*given), program(*given), strict=True)):
            assert torch.equal(got, want), (seed, number)
