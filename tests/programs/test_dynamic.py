"""Programs whose sizes change from call to call, with `dynamic=True`: eager's results at every size, few entries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe

SIZES = ((4, 7), (2, 3), (5, 5), (16, 33), (3, 64), (31, 2), (8, 100), (4, 7))
WITH_ONE = (*SIZES, (1, 9), (6, 1), (1, 1), (9, 17))
Make = Callable[[int, int], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """`make(b, s)` gives the arguments for a pair of sizes; `entries`: at most, for sizes from two on."""

    function: Callable[..., Any]
    make: Make
    entries: int = 2


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def sized(*rest: int) -> Make:
    return lambda b, s: (floats(b, s, *rest),)


def one(*rest: int) -> Make:
    return lambda b, s: (floats(s, *rest),)


class Layer(nn.Module):
    """One of a transformer, written out."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = (
            t.view(b, s, self.heads, d // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        a = (q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5).softmax(-1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def written(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[:, 0] += 1
    return x


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x.exp() if x.shape[1] > 40 else x.log1p()


def in_place(x: torch.Tensor) -> None:
    x.mul_(2).add_(x.shape[0])


def sizes_returned(x: torch.Tensor) -> Any:
    return x.shape, x.size(0) * x.size(1), x.numel(), x.stride(), x.sum()


def causal(q: torch.Tensor) -> torch.Tensor:
    s = q.shape[1]
    mask = torch.arange(s)[:, None] >= torch.arange(s)[None]
    scores = (q @ q.transpose(1, 2)).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ q


LAYER, LINEAR = Layer().eval(), nn.Linear(16, 8)
EMBEDDING = nn.Embedding(50, 16)
PROGRAMS: dict[str, Program] = {
    "one operator": Program(lambda x: x + 1, sized()),
    "several": Program(lambda x: (x * 2 + x.sigmoid()).tanh(), sized(8)),
    "two tensors": Program(lambda x, y: x * y + 1, lambda b, s: (floats(b, s), floats(b, s))),
    "broadcast": Program(lambda x, y: x * y, lambda b, s: (floats(b, s, 8), floats(s, 8))),
    "broadcast rows": Program(lambda x, y: x + y[:, None], lambda b, s: (floats(b, s), floats(b))),
    "transposed": Program(lambda x: x.t() + 1, sized()),
    "transposed sum": Program(lambda x, y: x.t() + y, lambda b, s: (floats(b, s), floats(s, b))),
    "softmax, fixed rows": Program(lambda x: x.softmax(-1), sized(32)),
    "softmax of rows": Program(lambda x: x.softmax(-1), sized()),
    "softmax of columns": Program(lambda x: x.softmax(0), sized()),
    "layer norm": Program(lambda x: F.layer_norm(x, (32,)), sized(32)),
    "layer norm of rows": Program(lambda x: F.layer_norm(x, x.shape[-1:]), sized()),
    "sums": Program(lambda x: (x.sum(), x.sum(0), x.sum(1), x.amax(-1)), sized()),
    "means": Program(lambda x: (x.mean(), x.mean(0), x.mean(1), x.var(1)), sized()),
    "by the size": Program(lambda x: x / x.size(0) + x.shape[1], sized()),
    "view": Program(lambda x: (x + 1).view(-1) * 2, sized()),
    "view of three": Program(lambda x: (x + 1).view(x.shape[0] * x.shape[1], 4, 2).sin(), sized(8)),
    "split heads": Program(lambda x: x.view(*x.shape[:2], 4, 8).transpose(1, 2).contiguous(), sized(32)),
    "flatten": Program(lambda x: x.flatten(1).exp(), sized(8)),
    # Of two rows one is left, which is another program.
    "slices": Program(lambda x: (x[:, 1:] - x[:, :-1], x[1:], x[:, ::2]), sized(8), entries=3),
    "cat": Program(lambda x, y: torch.cat([x, y * 2], 1), lambda b, s: (floats(b, s), floats(b, s))),
    "expand": Program(lambda x: x[:, None].expand(-1, 3, -1) + 1, sized()),
    "stack": Program(lambda x: torch.stack([x, x + 1], 1), sized()),
    "arange": Program(lambda x: torch.arange(x.shape[1]) * x, sized()),
    "real transform": Program(lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[1]), sized()),
    "buckets": Program(lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), sized()),
    "largest of several": Program(
        lambda x, y, z: F.pad(x, (0, max([x.shape[0], y.shape[0], z.shape[0]]))),
        lambda b, s: (floats(b), floats(s), floats(b + s)),
        entries=3,
    ),
    "zeros": Program(lambda x: torch.zeros(x.shape[1], x.shape[0]) + x.t(), sized()),
    "tril": Program(lambda x: x.tril(), sized()),
    "where": Program(lambda x: torch.where(x > 0, x, x.mean()), sized()),
    "linear": Program(lambda x: LINEAR(x).relu(), sized(16)),
    "matmul": Program(lambda x: x @ x.transpose(1, 2) * 0.5, sized(8)),
    "einsum": Program(lambda x: torch.einsum("bsd,btd->bst", x, x).tanh(), sized(8)),
    "embedding": Program(
        lambda i: EMBEDDING(i) + EMBEDDING.weight[0], lambda b, s: (torch.randint(50, (b, s)),)
    ),
    "attention": Program(
        lambda x: F.scaled_dot_product_attention(x, x, x) + 1, lambda b, s: (floats(b, 2, s, 8),)
    ),
    "causal": Program(causal, sized(8)),
    "layer": Program(LAYER, sized(32)),
    "written": Program(written, sized()),
    "written input": Program(in_place, sized()),
    "convolution": Program(
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        lambda b, s: (floats(b, 3, 8, 8), torch.ones(4, 3, 3, 3)),
    ),
    "norm of batches": Program(
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)) + 1, lambda b, s: (floats(b, 4, s),)
    ),
    "cumsum": Program(lambda x: x.cumsum(1), sized()),
    "sort": Program(lambda x: x.sort(-1)[0], sized()),
    "sizes returned": Program(sizes_returned, sized()),
    "by the size's value": Program(by_size, lambda b, s: (floats(b, s).abs(),), entries=3),
    "argument and size": Program(lambda x, n: x * n + x.shape[0], lambda b, s: (floats(b, s), 3)),
    "a list": Program(lambda xs: [x * x.shape[0] for x in xs], lambda b, s: ([floats(b, 4), floats(s, 4)],)),
}


def calls(program: Program, sizes: Sequence[tuple[int, int]]) -> Any:
    compiled = smelt.compile(copy.deepcopy(program.function), dynamic=True)
    with torch.no_grad():
        for number, (b, s) in enumerate(sizes):
            torch.manual_seed(number)
            arguments = program.make(b, s)
            again = copy.deepcopy(arguments)
            want = observe(program.function, arguments, number)
            compare(observe(compiled, again, number), want)
    check_no_failure(compiled)
    return compiled


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_entries_serve_all_sizes(name: str) -> None:
    compiled = calls(PROGRAMS[name], SIZES)
    assert 1 <= len(entries(compiled)) <= PROGRAMS[name].entries


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_one(name: str) -> None:
    calls(PROGRAMS[name], WITH_ONE)


def test_empty_tensors() -> None:
    calls(PROGRAMS["several"], ((4, 7), (0, 3), (5, 0), (0, 0), (6, 2)))
    calls(PROGRAMS["softmax of rows"], ((4, 7), (0, 3), (6, 2)))


def test_group_norm_without_channels() -> None:
    """torch's shape function of the backward divides by their number; some versions of torch refuse them."""
    f = lambda x: nn.functional.group_norm(x, 1).sin()  # noqa: E731
    compiled = smelt.compile(f, dynamic=True)
    for n in (5, 7):
        x = torch.empty(n, 0, 4, requires_grad=True)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)


@pytest.mark.parametrize("shape", [(9, 0, 4, 2), (9, 2, 4, 0), (0, 5, 4, 3)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (3, 1, 0, 2)])
def test_strides_without_elements(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    def picked(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, torch.arange(x.shape[2] - 1, -1, -1)]

    compiled = smelt.compile(picked, dynamic=True)
    for more in (0, 1, 3):
        x = torch.ones([n + more * (n > 2) for n in shape]).permute(order)
        assert compiled(x).stride() == picked(x).stride()


def test_sizes_that_torch_itself_asks_for_as_numbers() -> None:
    """`take_along_dim` does in C++: its shapes are numbers then, and the gap between rows of a part may stay a symbol."""
    f = lambda x: torch.take_along_dim(x, x.argsort(-1), -1) + 1  # noqa: E731
    compiled = smelt.compile(f, dynamic=True)
    for n, more in ((6, 2), (7, 2), (6, 5), (7, 4)):
        x = torch.randn(5, n + more)[1:, more:]
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == 2 and not reasons(compiled)


def test_equal_sizes_at_first_may_differ_later() -> None:
    compiled = calls(PROGRAMS["broadcast"], ((5, 5), (4, 7), (3, 3), (9, 2)))
    assert len(entries(compiled)) <= 2


def test_errors_are_eagers() -> None:
    compiled = smelt.compile(lambda x, y: x + y, dynamic=True)
    assert torch.equal(compiled(torch.ones(4, 3), torch.ones(4, 3)), torch.full((4, 3), 2.0))
    assert torch.equal(compiled(torch.ones(5, 3), torch.ones(5, 3)), torch.full((5, 3), 2.0))
    with pytest.raises(RuntimeError, match=r"size of tensor a \(4\) must match the size of tensor b \(5\)"):
        compiled(torch.ones(4, 3), torch.ones(5, 3))


def test_tensors_that_are_no_rows_are_not_symbolic() -> None:
    compiled = smelt.compile(lambda x: x * 2, dynamic=True)
    for n in (4, 5, 6):
        for x in (torch.randn(n, 3).t(), torch.randn(n, 6)[:, ::2], torch.randn(2 * n, 3)[n:]):
            assert torch.equal(compiled(x), x * 2)


def test_parameters_are_not_symbolic() -> None:
    layer = nn.Linear(16, 8)
    compiled = smelt.compile(layer, dynamic=True)
    with torch.no_grad():
        for n in (3, 5, 17):
            x = torch.randn(n, 16)
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(entries(compiled)) == 1
    layer.weight = nn.Parameter(torch.randn(9, 16))
    layer.bias = nn.Parameter(torch.randn(9))
    torch.testing.assert_close(compiled(torch.ones(3, 16)), layer(torch.ones(3, 16)))
