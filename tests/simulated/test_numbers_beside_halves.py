"""What ATen computes otherwise on a GPU: half precision beside a number (which is float32, quotients are products with its
reciprocal), floored quotients, powers, products that are added, losses of a difference. What the simulated device does
eagerly is what a CPU does, so what is expected is written out."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

import smelt

pytestmark = pytest.mark.simulated_cuda

HALVES = (torch.bfloat16, torch.float16)


def floored(x: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, by_number: bool) -> torch.Tensor:
    """native/cuda/BinaryDivFloorKernel.cu; c10::div_floor_floating of halves, whose remainder is a float there."""
    rest = torch.fmod(x, b)
    quotient = (x - rest) * (1 / b) if by_number else (x - rest) / b
    quotient = torch.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = quotient.floor().to(dtype).float()
    down = torch.where(quotient - down > 0.5, down + 1, down)
    return torch.where(quotient != 0, down, torch.copysign(torch.zeros(()), x / b))


@pytest.mark.parametrize("host", [False, True], ids=["a number", "a tensor of the CPU"])
@pytest.mark.parametrize("dtype", HALVES)
def test_numbers(dtype: torch.dtype, host: bool) -> None:
    def fn(x, y, a):
        return (
            *(x + a, a - x, x * a, a * x, x / a, torch.add(x, y, alpha=0.3)),
            *(torch.div(x, a, rounding_mode="trunc"), x // a),
        )

    x, y = ((torch.randn(4096, device="cuda") * 20).to(dtype) for _ in range(2))
    wide, other, number = x.cpu().float(), y.cpu().float(), torch.tensor(0.3)
    want = [
        *(wide + number, number - wide, wide * number, wide * number, wide * (1 / number)),
        (wide.double() + number.double() * other.double()),
        *((wide * (1 / number)).trunc(), floored(wide, number, dtype, True)),
    ]
    with torch.no_grad():
        got = smelt.compile(fn, fullgraph=True)(x, y, torch.tensor(0.3) if host else 0.3)
    for g, w in zip(got, want, strict=True):
        assert g.dtype is dtype
        assert torch.equal(g.cpu(), w.to(dtype))


def test_another_element_of_the_gpu_is_rounded_first() -> None:
    """As an operand of the promoted dtype; only what is on the CPU is read on the way."""
    x, a = torch.randn(4096, device="cuda").bfloat16(), torch.tensor(0.3, device="cuda")
    got = smelt.compile(lambda x, a: (x * a, x / a), fullgraph=True)(x, a)
    wide, rounded = x.cpu().float(), a.cpu().bfloat16().float()
    assert torch.equal(got[0].cpu(), (wide * rounded).bfloat16())
    assert torch.equal(got[1].cpu(), (wide / rounded).bfloat16())


@pytest.mark.parametrize("dtype", HALVES)
def test_floored_quotients_are_rounded_once_they_are_floored(dtype: torch.dtype) -> None:
    x, y = ((torch.randn(4096, device="cuda") * scale).to(dtype) for scale in (20, 3))
    n = torch.randint(-5000, 5000, (4096,), dtype=torch.int32, device="cuda")
    with torch.no_grad():
        got = smelt.compile(lambda x, y, n: (x // y, n // x), fullgraph=True)(x, y, n)
    wide, other, whole = x.cpu().float(), y.cpu().float(), n.cpu().to(dtype).float()
    for g, (a, b) in zip(got, ((wide, other), (whole, wide)), strict=True):
        torch.testing.assert_close(
            g.cpu(), floored(a, b, dtype, False).to(dtype), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_powers_are_products_of_halves_and_roots(dtype: torch.dtype) -> None:
    """native/cuda/PowKernel.cu"""
    x = torch.cat([torch.randn(4096) * 100, torch.tensor([float("inf"), float("-inf"), 300.0, -0.0])])
    x = x.to("cuda", dtype)
    with torch.no_grad():
        got = smelt.compile(lambda x: (x**0.5, x**-0.5, x**3, x**-2), fullgraph=True)(x)
    wide = x.cpu().float()
    square = (wide * wide).to(dtype).float()
    for g, w in zip(got, (wide.sqrt(), wide.rsqrt(), square * wide, 1 / square), strict=True):
        torch.testing.assert_close(g.cpu(), w.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_factor_is_multiplied_by_the_product_or_quotient(dtype: torch.dtype) -> None:
    """native/cuda/PointwiseOpsKernel.cu, whose last product and sum are one instruction."""
    x, y, z = (torch.randn(4096, device="cuda", dtype=dtype) for _ in range(3))

    def fn(x, y, z):
        return torch.addcmul(x, y, z, value=0.3), torch.addcdiv(x, y, z, value=0.3)

    def once(product: torch.Tensor) -> list[float]:
        factor = Fraction(torch.tensor(0.3, dtype=dtype).item())
        sums = [Fraction(a) + factor * Fraction(p) for a, p in zip(x.tolist(), product.tolist(), strict=True)]
        if dtype is torch.float64:
            return list(map(float, sums))
        return list(map(_to_float32, sums))

    with torch.no_grad():
        got = smelt.compile(fn, fullgraph=True)(x, y, z)
    assert got[0].tolist() == once(y.cpu() * z.cpu())
    assert got[1].tolist() == once(y.cpu() / z.cpu())


def _to_float32(number: Fraction) -> float:
    """Rounded once."""
    near = torch.tensor(float(number))
    around = [near, *(torch.nextafter(near, torch.tensor(end)) for end in (-float("inf"), float("inf")))]
    return min((n.item() for n in around), key=lambda n: abs(Fraction(n) - number))


@pytest.mark.parametrize("dtype", HALVES)
def test_losses_of_a_difference(dtype: torch.dtype) -> None:
    """native/cuda/BinaryMiscOpsKernels.cu: the difference and limits are of half precision, the rest is float."""
    x, y = ((torch.randn(4096, device="cuda") * 2).to(dtype) for _ in range(2))
    for number in (1.0, 0.3):

        def fn(x, y):
            return (
                F.smooth_l1_loss(x, y, reduction="none", beta=number),
                F.huber_loss(x, y, reduction="none", delta=number),
            )

        z = (x.cpu() - y.cpu()).abs().float()
        limit = torch.tensor(number, dtype=dtype).float()
        want = (
            torch.where(z < limit, 0.5 * z * z / limit, z - (0.5 * limit).to(dtype).float()),
            torch.where(z < limit, 0.5 * z * z, limit * (z - (0.5 * limit).to(dtype).float())),
        )
        with torch.no_grad():
            for got, exact in zip(smelt.compile(fn)(x, y), want, strict=True):
                assert torch.equal(got.cpu(), exact.to(dtype))
