"""Windows, pads, pieces and resizing over images whose sizes change: one entry, and eager's results and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure

# Batch, height and width; squares are among them, and odd numbers beside even ones.
SIZES = [(2, 32, 37), (3, 40, 29), (4, 33, 42), (5, 40, 40), (3, 36, 64)]


class Seeded(nn.Module):
    """A function of images with parameters."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.parts)


def padded_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    down, right = (n - m for n, m in zip(x.shape[2:], y.shape[2:]))
    return F.pad(y, [right // 2, right - right // 2, down // 2, down - down // 2])


def strides_and_shortcuts(x: torch.Tensor, *convolutions: nn.Module) -> torch.Tensor:
    first, beside, *blocks = convolutions
    x = F.max_pool2d(first(x).relu(), 3, stride=2, padding=1)
    for block in blocks:
        x = (beside(x) + block(x)).relu()
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def network() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 4, 7, stride=2, padding=3), nn.Conv2d(4, 4, 1, stride=2),
        *(nn.Conv2d(4, 4, 3, stride=2, padding=1) for _ in range(2)),
    ]  # fmt: skip


def windows_of(x: torch.Tensor) -> torch.Tensor:
    """Windows of 4 x 4 pixels, after padding to multiples of 4."""
    height, width = x.shape[2:]
    x = F.pad(x, (0, -width % 4, 0, -height % 4))
    b, c, h, w = x.shape
    return x.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, 4, 4)


def same_padding(x: torch.Tensor) -> torch.Tensor:
    """As many columns as there are steps of 2, rounded up; the padding is computed with floats."""
    pads = [max((math.ceil(n / 2) - 1) * 2 + 5 - n, 0) for n in x.shape[2:]]
    x = F.pad(x, (pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2))
    return F.avg_pool2d(x, 5, stride=2)


def padded_again(x: torch.Tensor) -> torch.Tensor:
    """Halves that are padded to multiples of 2, and then windows."""
    for _ in range(2):
        x = F.pad(x, (0, -x.shape[3] % 2, 0, -x.shape[2] % 2))
        x = x[..., ::2, ::2]
    return windows_of(x)


def last_of_few(x: torch.Tensor, down: nn.Module) -> torch.Tensor:
    """Of a map with few rows: for small images, none are left."""
    x = down(down(down(x)))
    return x / (x[:, :, -1:] ** 2 + 1)


def attention_over_windows(x: torch.Tensor) -> torch.Tensor:
    windows = windows_of(F.max_pool2d(x.repeat(1, 4, 1, 1), 2)).flatten(2).transpose(1, 2)
    q, k, v = windows.reshape(windows.shape[0], 16, 3, 1, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v)


def positions(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return rows * x.shape[3] + columns


PROGRAMS: dict[str, tuple[Callable[..., Any], list[nn.Module]]] = {
    "strides": (strides_and_shortcuts, network()),
    "transposed": (lambda x, up: up(F.avg_pool2d(x, 2)), [nn.ConvTranspose2d(3, 2, 2, stride=2)]),
    "padded": (lambda x: padded_to(x, F.max_pool2d(x, 2)), []),
    "padded to multiples": (windows_of, []),
    "twice as large": (lambda x, up: up(x) + 1, [nn.Upsample(scale_factor=2)]),
    "one and a half": (
        lambda x: F.interpolate(x, scale_factor=(1.5, 2), mode="bicubic", align_corners=False),
        [],
    ),
    "half": (lambda x: F.interpolate(x, scale_factor=0.5, recompute_scale_factor=True), []),
    "to a size": (
        lambda x: F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:], mode="bilinear", align_corners=True),
        [],
    ),
    "to a size of its own": (lambda x: F.interpolate(x, (x.shape[2] * 2, 7)), []),
    "smoothed": (
        lambda x: F.interpolate(x, (x.shape[2] // 2, x.shape[3] // 3), mode="bilinear", antialias=True),
        [],
    ),
    "normalized": (lambda x, norm: norm(F.max_pool2d(x, 2)), [nn.BatchNorm2d(3)]),
    "ceil": (lambda x: F.avg_pool2d(x, 3, ceil_mode=True), []),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 3)), []),
    "columns": (lambda x: F.unfold(x, 3, padding=1), []),
    "folded": (lambda x: F.fold(F.unfold(x, 3), x.shape[2:], 3), []),
    "views of windows": (lambda x: x.unfold(2, 3, 2) * 2, []),
    "shuffled": (lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), []),
    "repeated": (lambda x: x.repeat(1, 2, x.shape[2], 1).sum(2), []),
    "halves": (lambda x: torch.cat(x.chunk(2, 3)[::-1], 3), []),
    "thirds": (lambda x: x.split((x.shape[2] + 2) // 3, 2)[1] + 1, []),
    "positions": (lambda x: (positions(x), x * 2), []),
    "a grid": (lambda x: F.grid_sample(x, torch.ones(x.shape[0], 5, x.shape[3], 2), align_corners=False), []),
    "padded as steps need": (same_padding, []),
    "padded again and again": (padded_again, []),
    "the last of few rows": (last_of_few, [nn.Conv2d(3, 3, 3, stride=2)]),
    "windows attend": (attention_over_windows, []),
    "fractions": (
        lambda x: x[:, :, : int(x.shape[2] * 0.5), : math.floor(x.shape[3] / 3)].sum(1) * math.ceil(1.25),
        [],
    ),
    "lists of sizes": (lambda x: x.reshape([x.shape[0]] + [x.shape[2] * 3, x.shape[3]]) * 2, []),
    "rows normalized": (lambda x: F.layer_norm(x, x.shape[2:]), []),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_one_entry_for_all_images(name: str, grad: bool) -> None:
    function, parts = PROGRAMS[name]
    torch.manual_seed(0)
    model = Seeded(function, *parts)
    compiled = smelt.compile(model, dynamic=True)
    for b, h, w in SIZES:
        x = torch.randn(b, 3, h, w, requires_grad=grad)
        running = {k: v.clone() for k, v in model.named_buffers()}
        with torch.set_grad_enabled(grad):
            got = leaves(compiled(x))
            for k, v in model.named_buffers():
                v.copy_(running[k])
            want = leaves(model(x))
        for g, e in zip(got, want, strict=True):
            torch.testing.assert_close(g, e, atol=1e-4, rtol=1e-4)
        if grad:
            check_gradients(got, want, [x, *model.parameters()])
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1 and not reasons(compiled)


def leaves(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def check_gradients(got: list[torch.Tensor], want: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Of the same random combination of results."""
    grads = []
    for results in (got, want):
        generator = torch.Generator().manual_seed(1)
        used = [t for t in results if t.requires_grad]
        tangents = [torch.randn(t.shape, generator=generator) for t in used]
        grads.append(torch.autograd.grad(used, inputs, tangents))
    for g, e in zip(*grads, strict=True):
        torch.testing.assert_close(g, e, atol=1e-3, rtol=1e-3)


def test_images_too_small_for_a_window_have_an_entry_of_their_own() -> None:
    """Or eager's error."""
    convolution = nn.Conv2d(3, 4, 5)
    compiled = smelt.compile(convolution, dynamic=True)
    for size in (9, 12, 6, 5, 30):
        x = torch.randn(2, 3, size, 11)
        torch.testing.assert_close(compiled(x), convolution(x))
    assert len(entries(compiled)) == 2
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        compiled(torch.randn(2, 3, 4, 11))


def test_the_number_of_pieces_is_a_guard() -> None:
    compiled = smelt.compile(lambda x: len(x.split(4, 1)) * x, dynamic=True)
    for n in (10, 12, 11, 16, 15, 30):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), len(x.split(4, 1)) * x)
    assert len(entries(compiled)) == 3


def test_what_a_fixed_size_decides_is_one_number() -> None:
    """A range over one size leaves the others symbols."""
    compiled = smelt.compile(lambda x: sum(x[:, i] for i in range(x.shape[1])) * x.shape[0], dynamic=True)
    for b, n, m in ((3, 5, 7), (4, 5, 9), (6, 5, 11), (2, 4, 3), (8, 4, 2)):
        x = torch.randn(b, n, m)
        torch.testing.assert_close(compiled(x), sum(x[:, i] for i in range(n)) * b)
    assert len(entries(compiled)) == 2


def test_an_assertion_that_holds_shows_no_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[1] > 3, f"only {x.shape[1]} columns")
        return x + 1

    compiled = smelt.compile(f, dynamic=True)
    for n in (5, 9, 4):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), x + 1)
    assert len(entries(compiled)) == 1
    with pytest.raises(AssertionError, match="only 3 columns"):
        compiled(torch.randn(2, 3))


def check(compiled: Any, function: Any, sizes: list[tuple[int, ...]], most: int) -> None:
    """Eager's results; at most so many entries."""
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), function(x), atol=1e-4, rtol=1e-4)
    check_no_failure(compiled)
    assert len(entries(compiled)) <= most and not reasons(compiled)


class Positions(nn.Module):
    """Positions are added to pixels: as they are where they fit, else resized."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2:] == self.table.shape[2:]:
            return x + self.table
        return x + F.interpolate(self.table, x.shape[2:], mode="bilinear")


def test_what_one_way_needs_as_numbers_another_does_not() -> None:
    """The first image fits, so that its sizes are numbers; all others have one entry."""
    model = Positions()
    sizes = [(2, 3, 4, 4), (3, 3, 7, 4), (2, 3, 6, 6), (5, 3, 8, 9), (2, 3, 4, 4)]
    check(smelt.compile(model, dynamic=True), model, sizes, 2)


def test_sizes_that_differed_are_not_taken_for_one() -> None:
    """A square image comes second, after one whose batch is a number."""
    compiled = smelt.compile(lambda x: x.flatten(2) * 2, dynamic=True)
    check(compiled, lambda x: x.flatten(2) * 2, [(1, 3, 8, 6), (4, 3, 9, 9), (2, 3, 9, 7)], 2)


def halved(x: torch.Tensor) -> torch.Tensor:
    """What comes up is as large as what went down for even sizes only."""
    return x + F.interpolate(F.max_pool2d(x, 2), scale_factor=2)


def test_sizes_that_fit_as_multiples_have_one_entry() -> None:
    """The operator that does not take others names no size itself."""
    check(smelt.compile(halved, dynamic=True), halved, [(2, 3, 8, 6), (3, 3, 10, 12), (4, 3, 16, 6)], 2)
    with pytest.raises(RuntimeError, match="must match the size"):
        smelt.compile(halved, dynamic=True)(torch.randn(2, 3, 7, 6))


def windows_if_needed(x: torch.Tensor) -> torch.Tensor:
    down, right = -(x.shape[2] // 4) % 2, -(x.shape[3] // 4) % 2
    y = F.avg_pool2d(x, 4)
    return F.pad(y, (0, right, 0, down)) if down or right else y


def test_divided_again_by_as_much_more() -> None:
    """A multiple of 4 of which a quarter is even is one of 8."""
    sizes = [(2, 3, 16, 24), (3, 3, 32, 16), (4, 3, 40, 48)]
    check(smelt.compile(windows_if_needed, dynamic=True), windows_if_needed, sizes, 2)


def quarters(x: torch.Tensor) -> torch.Tensor:
    y = F.max_pool2d(x, 4)
    return y.flatten(2).view(y.shape[0], -1, y.shape[2], y.shape[3]) + 1


def test_a_quotient_that_was_compared_is_no_zero() -> None:
    """So that it may divide: how many channels are left is a number."""
    check(smelt.compile(quarters, dynamic=True), quarters, [(2, 3, 8, 12), (3, 3, 20, 17), (4, 3, 33, 8)], 1)
