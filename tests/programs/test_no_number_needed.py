"""Programs that need no size as a number: an entry serves all sizes, or one for each answer of a comparison."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report.inspect import entries
from tests.harness.agreement import check_no_failure, compare, observe, tensors

SIZES = ((5, 7), (8, 4), (13, 13), (24, 11), (4, 29), (6, 10))
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """`entries`: for SIZES. `trained`: also with gradients, whose backward needs no numbers."""

    function: Callable[[torch.Tensor], Any]
    entries: int = 1
    trained: bool = True


def parts(x: torch.Tensor) -> Any:
    return x[1:, : x.shape[1] // 2], x.t(), x.view(-1), x.unflatten(0, (1, x.shape[0])), x


def parts_of_what_is_made(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, y[: x.shape[0] // 2], y.transpose(0, 1)[1:]


def a_part_that_is_read_further(x: torch.Tensor) -> Any:
    y = x * 2
    part = y[:, 1:]
    return part, part.sin(), y.expand(2, *x.shape)


def written_part(x: torch.Tensor) -> Any:
    y = x * 1
    part = y.narrow(1, 1, x.shape[1] - 1)
    part.mul_(3)
    return y, part


def diagonal_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.diagonal().mul_(3)
    y.diagonal(-1).add_(1)
    return y


def grid(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (torch.linspace(-1, 1, n) for n in x.shape)
    ys, xs = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([xs, ys], -1) * x[..., None]


def centers(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return torch.linspace(0.5, n - 0.5, steps=n, dtype=torch.float64)[:, None] / x.shape[1] * x


def pairs(x: torch.Tensor) -> torch.Tensor:
    products = x @ x.t()
    i, j = torch.triu_indices(x.shape[0], x.shape[0], offset=1)
    return products[i, j]


def triangles(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return [make(n, n, k) for make in (torch.tril_indices, torch.triu_indices) for k in (-2, -1, 0, 1, 2)]


def windows(x: torch.Tensor) -> Any:
    makers = torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window
    return [make(x.shape[1]) for make in makers]


def rounded(x: torch.Tensor) -> Any:
    n, m = x.shape
    return x[: math.ceil(n / 3)], x[:, int(m * 0.25) :], x.new_ones(math.floor(1.5 * n), int(m / 2.0) + 1)


def sizes_in_tensors(x: torch.Tensor) -> Any:
    h, w = x.shape
    return (
        torch.tensor([h, w]),
        torch.tensor(((h, 1), (w, 2)), dtype=torch.float32),
        torch.as_tensor(x.shape),
        x / torch.tensor([h / 2, w]).norm(),
    )


def sizes_computed_in_tensors(x: torch.Tensor) -> Any:
    half = torch.div(x.shape[0], 2, rounding_mode="floor")
    shape = torch.tensor(x.shape)
    rows, columns = (2 * shape - 1).tolist()
    last = int(shape[1] // 3 + half)
    return x[:half], torch.zeros(half, rows - columns % 2), x.new_ones(last).cumsum(0), x.repeat(2, 2)[:rows]


def sizes_written_in_tensors(x: torch.Tensor) -> Any:
    n = torch.tensor(x.shape[0])
    n += 3
    return torch.ones(n.item()) + x.sum()


def counted_down(x: torch.Tensor) -> Any:
    n, m = x.shape
    return torch.arange(n, -m, -3), torch.arange(2 * n + m, n // 2, -2), torch.arange(n - 1, -1, -1) * x.t()


def slices(x: torch.Tensor) -> Any:
    first = slice(1, x.shape[0] - 1)
    return x[first], x[first, slice(x.shape[1] // 2)], first.stop, [first, slice(None, x.shape[1], 2)]


MULTIPLE = np.lcm(4, 6)


def padded_to_a_multiple(x: torch.Tensor) -> Any:
    """As Reformer does."""
    n = x.shape[1]
    left = None
    if n % MULTIPLE != 0 and n > 3:
        left = MULTIPLE - n % MULTIPLE
        x = torch.cat([x, x.new_full((x.shape[0], left), 2.0)], 1)
    return x.view(x.shape[0], -1, 12).sum(1), left, F.pad(x, (0, left))


def products_of_sizes(x: torch.Tensor) -> Any:
    count = np.prod(x.shape)
    return x.reshape(count) * 2, count, x.view(-1)[: np.prod(list(x.shape)) - 1], np.prod(x.shape[:1]) * 2


def ints_of_numpy(x: torch.Tensor) -> Any:
    n = np.int64(x.shape[0])
    kinds = isinstance(n, int), isinstance(n, np.integer), type(n) is np.int64, type(n < 100), bool(n), n != 2
    computed = n, n + 1, 2 * n, x.shape[1] - np.int64(1), n * n, int(n), float(n)
    count = n
    count += 3
    tensors = x[: n - 1], x * n, n - x, x < n, torch.tensor(n), torch.full((2, n), 1.0), torch.arange(n)
    return kinds, computed, count, tensors, x.repeat(n, 1), list(range(n))


def pooled(x: torch.Tensor) -> Any:
    values, indices = F.max_pool1d(x.view(x.shape[0], 1, -1), 2, 1, return_indices=True)
    return values, indices, F.max_pool1d(x, 3, stride=1, padding=1)


def pieces_in_memory(x: torch.Tensor) -> Any:
    n, m = x.shape
    return x.as_strided((n - 1, 2), (m, 1)), (x * 2).view(-1).as_strided((m,), (1,)) + 1


def overlapping(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1).as_strided((x.numel() - 2, 3), (1, 1)).sum(1)


def overlapping_from_the_second(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).view(-1).as_strided((x.numel() - 3, 3), (1, 1), 1).sum(1)


def chunks_with_what_surrounds_them(x: torch.Tensor) -> torch.Tensor:
    padded = F.pad(x.repeat(1, 2)[..., None].expand(-1, -1, 3), (0, 0, 2, 2))
    row, place, feature = padded.stride()
    return padded.as_strided((x.shape[0], x.shape[1], 6, 3), (row, 2 * place, place, feature)).sin()


def chunks_and_halves_of_two(x: torch.Tensor) -> Any:
    """Of rows that are not beside each other in memory."""
    wide = x.t().repeat(4, 1)[..., None].expand(-1, -1, 3).contiguous().transpose(0, 1)
    chunks = wide.view(x.shape[0], torch.div(wide.shape[1], 4, rounding_mode="trunc"), 4, 3)
    (rows, count, width, features), (row, chunk, *inner) = chunks.shape, chunks.stride()
    made = chunks.as_strided((rows, count * 2 - 1, width, features), (row, chunk // 2, *inner))
    return made.exp(), made.stride(), chunks.as_strided((rows, count, 2), (row, chunk, inner[0])) * 2


def rows_of_two(x: torch.Tensor) -> Any:
    """Windows side by side: as they lie in `x`, unless a column is left over."""
    pairs = x.unfold(-1, 2, 2)
    return pairs, pairs.stride(), pairs.contiguous(), pairs.is_contiguous()


def texts(x: torch.Tensor) -> Any:
    log.debug("debug %s", x.shape)
    log.debug(f"debug {x.shape}")
    if x.dim() != 2:
        raise ValueError(f"two dimensions, not {x.shape}")
    return x + 1, f"{x.shape} {x.shape[1:]!r:>20}", f"{x.size()} {x.shape[0]:>4}", str((x.shape, 1))


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError(f"a shape of {x.shape}")
    except ValueError:
        return x + 1


PROGRAMS = {
    "views": Program(parts),
    "views of what is made": Program(parts_of_what_is_made),
    "a view that is read further": Program(a_part_that_is_read_further),
    "a view that is written": Program(written_part),
    "unflatten": Program(lambda x: x.repeat(1, 2).unflatten(1, (2, -1)) * 2),
    "unflatten by a divisor": Program(
        lambda x: F.pad(x, (0, -x.shape[1] % 2)).unflatten(1, (-1, 2)) * 2, entries=2
    ),
    # of rows that are fewer than columns, or not
    "diagonal": Program(lambda x: (x.diagonal(), x.diagonal() * 2), entries=2),
    "diagonals beside": Program(lambda x: (x * 2).diagonal(1).sum() + x.diagonal(-1).sin(), entries=3),
    "diagonal of some dimensions": Program(lambda x: x.expand(3, -1, -1).diagonal(0, -1, 1), entries=2),
    "a copy of a diagonal": Program(lambda x: torch.diag(x) + 1, entries=2),
    "a diagonal that is written": Program(diagonal_written, entries=3),
    "linspace": Program(lambda x: torch.linspace(0, 1, x.shape[0])[:, None] * x),
    "logspace": Program(lambda x: torch.logspace(0, 1, x.shape[0], base=2.0)[:, None] * x),
    "linspace up to a size": Program(lambda x: torch.linspace(-1, x.shape[1], 5)),
    "a grid": Program(grid),
    "centers of pixels": Program(centers),
    "pairs": Program(pairs),
    "triangles": Program(triangles),
    "windows": Program(windows),
    "rounded sizes": Program(rounded),
    "sizes in tensors": Program(sizes_in_tensors),
    "windows of the last dimension": Program(rows_of_two, entries=2),
    "sizes computed in tensors": Program(sizes_computed_in_tensors),
    "sizes written in tensors": Program(sizes_written_in_tensors),
    "counting down": Program(counted_down),
    "slices": Program(slices),
    # of one, two or three parts
    "padding to a multiple of NumPy's": Program(padded_to_a_multiple, entries=3),
    "products of sizes by NumPy": Program(products_of_sizes),
    "NumPy's ints": Program(ints_of_numpy),
    "pools along one dimension": Program(pooled),
    "the larger size": Program(lambda x: (torch.arange(max(x.shape)), x[:, : min(list(x.shape))]), entries=3),
    "strides": Program(pieces_in_memory),
    "strides that overlap": Program(overlapping),
    "windows of padded rows": Program(chunks_with_what_surrounds_them),
    "windows over chunks": Program(chunks_and_halves_of_two),
    "block diagonal": Program(lambda x: torch.block_diag(x, x * 2), trained=False),
    "vmap": Program(lambda x: torch.vmap(lambda row: row.softmax(0) + row.mean())(x)),
    "vmap of gradients": Program(
        lambda x: torch.vmap(torch.func.grad(lambda row: row.tanh().sum()))(x), entries=2
    ),
    "complex numbers": Program(lambda x: torch.complex(x, x * 2).abs(), trained=False),
    "texts": Program(texts),
    "an error that is caught": Program(caught),
}


def calls(function: Callable[..., Any], grad: bool) -> Any:
    """`function`, compiled, after calls with SIZES: results, and gradients, are those of eager."""
    compiled = smelt.compile(function, dynamic=True)
    for number, size in enumerate(SIZES):
        x = torch.randn(size, requires_grad=grad)
        again = x.detach().clone().requires_grad_(grad)
        want, got = observe(function, (x,), number), observe(compiled, (again,), number)
        compare(got, want)
        for seen in (want, got):
            differentiable = [t for t in tensors(seen.result) if t.requires_grad]
            if differentiable:
                torch.stack([(t * t.detach()).sum() for t in differentiable]).sum().backward()
        torch.testing.assert_close(again.grad, x.grad)
    check_no_failure(compiled)
    return compiled


EINOPS: dict[str, Callable[[Any], Callable[[torch.Tensor], Any]]] = {
    "transposed": lambda einops: lambda x: einops.rearrange(x, "b n -> n b") + 1,
    "split and merged": lambda einops: (
        lambda x: einops.rearrange(x.repeat(1, 4), "b (h n) -> (b h) n", h=4).softmax(-1)
    ),
    "a new axis": lambda einops: lambda x: einops.rearrange(x, "b (n one) -> b one n", one=1).sin(),
    "reduced": lambda einops: (
        lambda x: (
            einops.reduce(x, "b n -> b", "mean"),
            einops.reduce(x, "b n -> n ()", "max"),
        )
    ),
    "repeated": lambda einops: lambda x: einops.repeat(x, "b n -> b (n k)", k=x.shape[0]) * 2,
}


@pytest.mark.parametrize("grad", [False, True], ids=["", "trained"])
@pytest.mark.parametrize("name", EINOPS)
def test_einops(name: str, grad: bool) -> None:
    function = EINOPS[name](pytest.importorskip("einops"))
    assert len(entries(calls(function, grad))) == 1


@pytest.mark.parametrize("grad", [False, True], ids=["", "trained"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_entries_serve_all_sizes(name: str, grad: bool) -> None:
    program = PROGRAMS[name]
    compiled = calls(program.function, grad)
    if program.trained or not grad:
        assert 1 <= len(entries(compiled)) <= program.entries


def test_a_number_that_only_a_backward_needs() -> None:
    """torch's C++ code asks for it while the backward is recorded: it must not be taken for the same at other sizes."""
    compiled = calls(overlapping_from_the_second, grad=True)
    assert len(entries(compiled)) == len(SIZES)


READ_TEXTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "compared": lambda x: x + 1 if f"{x.shape}" == "torch.Size([5, 7])" else x - 1,
    "a key": lambda x: {f"{x.shape[0]}": x + 1},
    "length": lambda x: x * len(str(x.shape)),
}


# What is computed of a `numpy.int64` that needs its number.
READ_INTS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "quotients": lambda n, x: (n / 2, n // n, n % n, divmod(n, 3), x + 1),
    "powers": lambda n, x: (n**2, 2**n, n << 1, n & 3, x + 1),
    "texts": lambda n, x: (f"{n} {n!r} {n:>4}", str(n), x + 1),
    "places": lambda n, x: ([1, 2, 3][n - n], range(100)[n], (1,) * n, x + 1),
    "functions": lambda n, x: (max(n, 3), np.sqrt(n), abs(n), -n, round(n), np.add(n, 1), x + 1),
    "attributes": lambda n, x: (n.item(), n.dtype, n.real, n.astype(np.float32), x + 1),
    "floats": lambda n, x: (n + 0.5, n < 5.5, n * np.float64(2), x + 1),
    "loops": lambda n, x: sum(x * i for i in range(n)),
    "what does not fit": lambda n, x: (n * (1 << 61) if n < 2 else 0, n + (1 << 61), x + 1),
}


@pytest.mark.parametrize("name", READ_INTS)
def test_ints_of_numpy_that_are_read_are_numbers(name: str) -> None:
    calls(lambda x: READ_INTS[name](np.int64(x.shape[0]), x), grad=False)


def test_an_int_of_numpy_behind_a_break() -> None:
    def f(x: torch.Tensor) -> Any:
        n = np.int64(x.shape[0]) * 2
        if float(x.sum()) > -1e9:
            x = x + 1
        return x[: n // 2] * n, n

    calls(f, grad=True)


@pytest.mark.parametrize("name", READ_TEXTS)
def test_sizes_in_texts_that_are_read_are_numbers(name: str) -> None:
    compiled = calls(READ_TEXTS[name], grad=False)
    assert len(entries(compiled)) == len(set(SIZES))


def test_an_error_that_shows_a_shape() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 6:
            raise ValueError(f"too many rows: {x.shape}")
        return x + 1

    compiled = smelt.compile(f, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
