"""Convolutions and windows over images of any size: one entry, laid out as eager has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt import pipeline
from smelt.graph.memory_format import is_last
from smelt.report import inspect
from smelt.rewrites.channels_last import to_channels_last
from tests.harness.cudnn import convolve_with_cudnn

pytestmark = pytest.mark.simulated_cuda

SIZES = ((2, 3, 32, 40), (3, 3, 40, 32), (4, 3, 48, 48), (5, 3, 64, 56))


@pytest.fixture(autouse=True)
def of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    convolve_with_cudnn(monkeypatch)


class Net(nn.Module):
    """Down by strides and a pool, up by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.norm = nn.BatchNorm2d(16).eval()
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)).relu()
        z = F.max_pool2d(self.second(y).relu(), 2)
        z = F.interpolate(z, scale_factor=2, mode="bilinear")
        return self.last(torch.cat([self.up(z), y], 1))


class Patches(nn.Module):
    """Patches, a depthwise window, a norm of channels, means over windows."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.window = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.window(self.patches(x)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.avg_pool2d(F.pad(y, (1, 1, 1, 1)), 2).mean((2, 3))


def step(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, half: bool) -> list[Tensor]:
    """The result, then the gradients of the image and of parameters."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = call(x)
    out.backward(torch.linspace(-1, 1, out.numel(), device="cuda").to(out.dtype).view(out.shape))
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


def check_same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Laid out alike, and equal within a share of their norms: which element is the largest of a window may depend on
    rounding."""
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert float((a.double() - b.double()).norm()) <= tolerance * float(b.double().norm())


@pytest.mark.parametrize("half", (False, True), ids=("float32", "bfloat16"))
@pytest.mark.parametrize("memory_format", (torch.contiguous_format, torch.channels_last), ids=str)
@pytest.mark.parametrize("make", (Net, Patches))
def test_one_entry(make: Callable[[], nn.Module], memory_format: torch.memory_format, half: bool) -> None:
    torch.manual_seed(0)
    module = make().cuda().to(memory_format=memory_format)
    compiled = smelt.compile(module, dynamic=True)
    for shape in SIZES:
        x = torch.randn(shape).cuda().contiguous(memory_format=memory_format)
        expected = step(module, module, x, half)
        check_same(step(compiled, module, x, half), expected, 0.05 if half else 1e-4)
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)


def test_sizes_become_symbols_when_they_change() -> None:
    module = Net().cuda().eval()
    compiled = smelt.compile(module)
    with torch.no_grad():
        for shape in SIZES:
            x = torch.randn(shape).cuda()
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert len(inspect.entries(compiled)) == 2 and not inspect.reasons(compiled)


def test_images_of_half_precision_are_channels_last_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def seen(graph: Any, *backward: Any) -> Any:
        made.append(to_channels_last(graph, *backward).graph)
        return to_channels_last(graph, *backward)

    monkeypatch.setattr(pipeline, "to_channels_last", seen)
    module = Net().cuda().eval()
    compiled = smelt.compile(module, dynamic=True)
    for shape in SIZES:
        x = torch.randn(shape).cuda()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            found, expected = compiled(x), module(x)
        check_same([found], [expected], 0.05)
    found_in = [node for graph in made for node in graph if node.target is torch.ops.aten.convolution.default]
    assert len(found_in) == 4 and all(is_last(node.args[0].spec) for node in found_in)


def test_numbers_of_a_convolution_that_change() -> None:
    """Torch, which is asked which library computes, takes no symbols; weights that are arguments may have symbolic sizes."""
    x = torch.randn(2, 4, 8, 8).cuda()

    def fn(x: Tensor, weight: Tensor, turned: Tensor, bias: Tensor, n: int) -> tuple[Tensor, ...]:
        each = F.conv2d(x, weight[:, :1], None, n, n, groups=4)
        return (
            F.conv2d(x, weight, bias, (n, 1), n),
            F.conv_transpose2d(x, turned, bias, n, padding=(0, n)),
            each,
        )

    for dynamic in (None, True):
        compiled = smelt.compile(fn, fullgraph=True, dynamic=dynamic)
        for n in (2, 3, 1, 4):
            given = (
                x,
                torch.randn(4, 4, 3, 3).cuda(),
                torch.randn(4, 4, 5, 5).cuda(),
                torch.randn(4).cuda(),
                n,
            )
            torch.testing.assert_close(compiled(*given), fn(*given), rtol=1e-4, atol=1e-4)
