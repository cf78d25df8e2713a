"""Half precision and a number, as ATen computes it on a GPU: the number as float32, quotients by its reciprocal. What the
simulated device does eagerly is what a CPU does, so what is expected is written out."""

import pytest
import torch

import smelt

pytestmark = pytest.mark.simulated_cuda

HALVES = (torch.bfloat16, torch.float16)


def floored(x: torch.Tensor, number: float, dtype: torch.dtype) -> torch.Tensor:
    """native/cuda/BinaryDivFloorKernel.cu"""
    b = torch.tensor(number)
    rest = torch.fmod(x, b)
    quotient = (x - rest) * (1 / b)
    quotient = torch.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = quotient.floor().to(dtype).float()
    down = torch.where(quotient - down > 0.5, down + 1, down)
    return torch.where(quotient != 0, down, torch.copysign(torch.zeros(()), x * (1 / b)))


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
        *((wide * (1 / number)).trunc(), floored(wide, 0.3, dtype)),
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
