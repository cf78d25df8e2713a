"""Windows, pads, pieces and resizing over images whose sizes change: one entry, and eager's results and gradients."""

from __future__ import annotations

import itertools
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


def fits_or_is_resized(x: torch.Tensor, size: tuple[int, int] | None = (4, 4)) -> torch.Tensor:
    """As models with positions ask: for the number of places first, then for the sides."""
    table = torch.arange(16.0).view(1, 1, 4, 4)
    places, height, width = x.shape[2] * x.shape[3], x.shape[2], x.shape[3]
    if places == 16:
        if size is not None and size[0] == height and size[1] == width:
            return x + table
    if size is None and height == width:
        return x
    return x + F.interpolate(table, (height, width), mode="bilinear")


def fits_in_one_condition(x: torch.Tensor) -> torch.Tensor:
    places, height, width = x.shape[2] * x.shape[3], x.shape[2], x.shape[3]
    if places == 16 and height == width:
        return x * 2
    return x - 1


def fits_as_a_shape(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[2:] == (4, 4) else x - 1


def fits_unless_a_side_differs(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[2:]
    if height != 4 or width != 4:
        x = x - 1
    return x * 2


def fits_or_leaves_at_once(x: torch.Tensor, size: tuple[int, int] = (4, 4)) -> torch.Tensor:
    height, width = x.shape[2:]
    if not (size[0] == height and width == size[1]):
        return x * 3
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        fits_or_is_resized,
        fits_in_one_condition,
        fits_as_a_shape,
        fits_unless_a_side_differs,
        fits_or_leaves_at_once,
    ],
)
@pytest.mark.parametrize("first", [(6, 5), (8, 2), (4, 4)])
def test_which_of_several_comparisons_fails_makes_no_entry(
    function: Callable[..., Any], first: tuple[int, int]
) -> None:
    sizes = [first, (7, 9), (8, 2), (4, 4), (4, 7), (2, 8), (6, 6), (16, 3), (5, 4)]
    check(smelt.compile(function, dynamic=True), function, [(11, 13, *size) for size in sizes], 2)


def test_comparisons_that_lead_to_different_places_have_entries() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] * x.shape[1] == 16:
            if x.shape[0] == 4:
                return x * 2
            return x * 3
        return x * 4

    def g(x: torch.Tensor) -> torch.Tensor:
        n, m = x.shape
        return x * 2 if n * m == 16 and (n == 8 or m == 8) else x * 3

    def h(x: torch.Tensor) -> torch.Tensor:
        n, m = x.shape
        if n == 4 and m != 7:
            return x * 2
        return x * 3 if n != 9 else x

    for function, most in ((f, 3), (g, 4), (h, 4)):
        compiled = smelt.compile(function, dynamic=True)
        check(compiled, function, [(5, 7), (4, 4), (8, 2), (2, 8), (4, 4), (9, 3), (8, 8)], most)


def test_what_was_not_decided_is_asked_again() -> None:
    """That not both sides are 4 says nothing of either."""

    def f(x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape
        x = x * 2 if height == 4 and width == 4 else x * 3
        x = x + 1 if height == 4 else x + 2
        return x - 1 if width == 4 else x - 2

    check(smelt.compile(f, dynamic=True), f, [(5, 7), (4, 6), (6, 4), (4, 4), (9, 3)], 4)


def written_in_place(x: torch.Tensor, *convolutions: nn.Module) -> torch.Tensor:
    """Maps of which little would be left of the smallest images."""
    for convolution in convolutions:
        x = convolution(x).relu_()
    return x


def test_writes_of_maps_that_small_images_have_none_of() -> None:
    torch.manual_seed(0)
    model = Seeded(written_in_place, *(nn.Conv2d(3, 3, 3, stride=s) for s in (2, 1, 1, 2, 1)))
    check(smelt.compile(model, dynamic=True), model, [(2, 3, 40, 43), (3, 3, 36, 50), (2, 3, 61, 44)], 1)


def cropped_windows(x: torch.Tensor, down: nn.Module) -> torch.Tensor:
    """A map in windows of 5, of which one goes over all of a small map; what was padded is cut off again. It is
    channels-last then, which cannot be seen of a map of one pixel."""
    x = down(x).permute(0, 2, 3, 1).contiguous()
    b, h, w, c = x.shape
    x = F.pad(x, (0, 0, 0, -w % 5, 0, -h % 5))
    _, high, wide, _ = x.shape
    windows = x.view(b, high // 5, 5, wide // 5, 5, c).transpose(2, 3).reshape(-1, 25, c)
    x = (windows * 2).view(b, high // 5, wide // 5, 5, 5, c).transpose(2, 3).reshape(b, high, wide, c)
    x = x[:, :h, :w].contiguous().permute(0, 3, 1, 2)
    return x + x.sin()


def test_windows_that_are_cut_off() -> None:
    """One entry where one window goes over all of a map, another for more."""
    torch.manual_seed(0)
    model = Seeded(cropped_windows, nn.Conv2d(3, 4, 3, stride=8, padding=1))
    compiled = smelt.compile(model, dynamic=True)
    check(compiled, model, [(2, 3, 32, 32), (3, 3, 24, 24), (5, 3, 16, 16)], 1)
    check(compiled, model, [(2, 3, 48, 48), (3, 3, 64, 64), (2, 3, 96, 96)], 2)


def test_strides_that_change_the_number_of_windows() -> None:
    """Of an image without a batch, whose results are squeezed: a stride that is large leaves one row."""
    w, x = torch.randn(2, 2, 3, 3), torch.randn(4, 8, 8)
    f = lambda x, stride: torch.conv2d(x, w, None, stride, (2, 1), (4, 4), 2)  # noqa: E731
    for dynamic in (None, True):
        compiled = smelt.compile(f, dynamic=dynamic)
        for stride in (2, 3, 1, 4, 9):
            torch.testing.assert_close(compiled(x, (stride, 2)), f(x, (stride, 2)))


def distances(size: int, table: torch.Tensor) -> torch.Tensor:
    """Rows of a table for distances between `size` places, resized to as many as there are."""
    count = int(2 * max(size, size) - 1)
    if table.shape[0] != count:
        table = F.interpolate(table.t()[None], size=count, mode="linear").reshape(-1, count).t()
    at = torch.arange(size, dtype=torch.float32) * max(size / size, 1.0)
    return table[(at[:, None] - at[None] + (size - 1) * max(size / size, 1.0)).long()]


def test_tables_of_relative_positions() -> None:
    """An entry where the table fits, and one where it is resized."""
    table = torch.randn(27, 8)
    f = lambda x: distances(x.shape[1], table) + x.sum()  # noqa: E731
    check(smelt.compile(f, dynamic=True), f, [(11, 10), (7, 12), (9, 14), (11, 14), (5, 20), (5, 9)], 2)


def test_an_operator_without_a_shape_function() -> None:
    """It asks for real tensors."""
    w = torch.randn(4, 3, 3, 3)
    f = lambda x: torch.mkldnn_convolution(x, w, None, [1, 1], [2, 1], [1, 1], 1).relu()  # noqa: E731
    compiled = smelt.compile(f, fullgraph=True)
    for n in (8, 9, 12):
        x = torch.randn(2, 3, n, n + 1)
        torch.testing.assert_close(compiled(x), f(x))


PADS = (
    (-1, 1, -1, 1),
    (-2, 1, -2, 1),
    (-1, 1, -2, -2),
    (-1, 0, 0, -1),
    (2, 3, -2, 1),
    (0, -2, -2, 0),
    (0, 0, 2, -4),
    (4, 6, 1, 0),
)


@pytest.mark.parametrize("mode", ["replicate", "reflect", "constant"])
def test_pads_of_both_signs_are_symbols(mode):
    """Widths and pads add up in many ways; a fit from samples must not take one for another."""

    def f(x, pads):
        return F.pad(x, pads, mode=mode)

    compiled = smelt.compile(f, dynamic=True)
    for shape, pads in itertools.product(((6, 2, 6, 7), (3, 4, 9, 9)), PADS):
        x = torch.randn(shape, requires_grad=True)
        want, got = f(x, pads), compiled(x, pads)
        assert got.shape == want.shape and got.stride() == want.stride() and torch.equal(got, want)
        tangent = torch.randn_like(want)
        wanted, found = (torch.autograd.grad(out, x, tangent)[0] for out in (want, got))
        torch.testing.assert_close(found, wanted)
