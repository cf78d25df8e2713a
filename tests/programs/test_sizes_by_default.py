"""Sizes that change without a word about them: numbers at first, symbols once they are seen to change, and as marked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.capture.driver.cache_entries import records_of
from smelt.errors import MarkedSizeError
from smelt.report.inspect import entries
from tests.harness.agreement import check_no_failure, compare, observe

# The marks of torch itself, which smelt reads from the tensor.
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic  # isort: skip

Sizes = Sequence[tuple[int, ...]]


def run(f: Callable[..., Any], *shapes: Sizes, **options: Any) -> Any:
    """`f` compiled, after calls with tensors of these shapes; each gives eager's results."""
    compiled = smelt.compile(f, **options)
    for call in shapes:
        inputs = tuple(torch.randn(shape) for shape in call)
        compare(observe(compiled, inputs, 0), observe(f, inputs, 0))
    check_no_failure(compiled)
    return compiled


def guards(compiled: Any) -> list[str]:
    """What each entry says of its tensors and their sizes."""
    return [
        "; ".join(line.split("#")[0].strip() for line in e.guards.splitlines() if "shape" in line)
        for e in entries(compiled)
    ]


def shapes(compiled: Any) -> list[str]:
    """The shapes that each entry takes, as its guards show them."""
    return [text.split("shape=")[1].split(", stride")[0] for text in guards(compiled)]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_only_what_changed_is_symbolic() -> None:
    compiled = run(double, [(4, 16)], [(4, 16)], [(4, 9)], [(4, 33)], [(7, 3)], [(9, 2)], [(2, 2)])
    assert shapes(compiled) == ["[4, 16]", "[4, *]", "[*, *]"]


class Shift(nn.Module):
    def forward(self, x: torch.Tensor, by: int, *more: int, times: int = 2, **rest: int) -> torch.Tensor:
        return (x[:, :by] * times + sum(more)) * rest.get("scale", 1)


def test_ints_are_symbolic_from_the_first_call_on() -> None:
    """With `dynamic=True`; 0 and 1, what is a bool, and ints where another value would be another program are not."""
    f = lambda x, n, dim, flag: (x[:n].sum(dim) * n, flag)  # noqa: E731
    compiled = smelt.compile(f, dynamic=True)
    x = torch.randn(9, 8)
    for n in (3, 5, 7, 4):
        torch.testing.assert_close(compiled(x, n, 0, True), f(x, n, 0, True))
    assert len(entries(compiled)) == 1
    for n, dim, flag in ((1, 0, True), (3, 1, True), (5, 0, False)):
        torch.testing.assert_close(compiled(x, n, dim, flag), f(x, n, dim, flag))
    assert len(entries(compiled)) == 4
    module = Shift()
    compiled = smelt.compile(module, dynamic=True)
    for by, a, times, scale in ((3, 2, 4, 5), (4, 7, 3, 2), (6, 3, 9, 8)):
        given = (x, by, a, a + 1), {"times": times, "scale": scale}
        torch.testing.assert_close(compiled(*given[0], **given[1]), module(*given[0], **given[1]))
    assert len(entries(compiled)) == 1
    compiled = smelt.compile(module)  # by default they are, once they are seen to change
    for times in range(2, 12):
        torch.testing.assert_close(compiled(x, 3, times=times, scale=2), module(x, 3, times=times, scale=2))
    assert len(entries(compiled)) == 2


def test_none_has_an_entry_of_its_own_and_one_where_it_comes_later() -> None:
    compiled = run(double, [(4, 16)], [(5, 16)], [(9, 16)], [(1, 16)], [(0, 16)], [(3, 16)])
    assert shapes(compiled) == ["[*, 16]", "[1, 16]", "[0, 16]"]


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_was_one_before_may_be_one_again(dynamic: bool | None) -> None:
    compiled = run(double, [(1, 16)], [(5, 16)], dynamic=dynamic)
    assert shapes(compiled)[-1].startswith("[1*")
    run_all = [(1, 16), (1, 40), (9, 3)] if dynamic else [(1, 16), (9, 16)]
    for shape in run_all:
        x = torch.randn(shape)
        compare(observe(compiled, (x,), 0), observe(double, (x,), 0))


def positioned(x: torch.Tensor) -> torch.Tensor:
    position = torch.arange(x.shape[1])[None]
    if position.shape[0] != x.shape[0]:
        position = position.expand(x.shape[0], -1)
    return x * position.cos()


ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()
LIKE_ANY: dict[str, tuple[Callable[..., Any], Callable[[int], Sizes]]] = {
    "linear": (nn.Linear(16, 8), lambda n: [(n, 16)]),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1), lambda n: [(n, 3, 8, 9)]),
    "images, batch and height": (lambda x: x.relu().mean((2, 3)), lambda n: [(n, 3, n + 5, 9)]),
    "normalized": (nn.LayerNorm(16), lambda n: [(n, 4, 16)]),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda n: [(n, 2, 5, 8)]),
    "by sizes": (lambda x: x.reshape(x.shape[0], x.shape[1] // 2, 2) / x.shape[0], lambda n: [(n, 16)]),
    "a mask": (lambda x, m: (x @ x.mT + m).softmax(-1) @ x, lambda n: [(n, 5, 8), (n, 1, 5)]),
    "sums": (lambda x: (x.sum(0), x.sum(1), x.amax(1)), lambda n: [(n, 16)]),
    "views": (lambda x: (x.view(-1, 4).sin(), x.t() * 2, x[:, 1:] + 1), lambda n: [(n, 16)]),
    "a shape": (lambda x: F.layer_norm(x, x.shape[1:]), lambda n: [(n, n + 3)]),
    "another size": (lambda x, y: x @ y, lambda n: [(n, 7), (7, 3 + n)]),
    "expanded unless it is one": (positioned, lambda n: [(n, 4)]),
    "copied unless it is one": (lambda x: x.transpose(0, 1).contiguous().sin(), lambda n: [(n, 4, 3)]),
    "reshaped, with a copy unless it is one": (
        lambda x: x.transpose(0, 1).reshape(x.shape[1], -1).sin(),
        lambda n: [(n, 4, 3)],
    ),
    "a shape as an argument": (lambda x, y: y.reshape(x[:, :2, :3].shape) + 1, lambda n: [(n, 4, 4), (n, 6)]),
    "in another order": (lambda x: (x.t().contiguous().sin(), x.cos().view(-1)), lambda n: [(n, 4)]),
}


@pytest.mark.parametrize("name", LIKE_ANY)
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_that_is_the_same_for_one_serves_it(name: str, grad: bool) -> None:
    """Six calls, of which every other has a batch of one: the first entry is of numbers, the second of all sizes."""
    f, sizes = LIKE_ANY[name]
    compiled = smelt.compile(f, dynamic=True)
    for n in (1, 4, 1, 7, 2, 1):
        inputs = tuple(torch.randn(shape, requires_grad=grad) for shape in sizes(n))
        compare(observe(compiled, inputs, 0), observe(f, inputs, 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == 2
    assert "1*" in shapes(compiled)[-1]


UNLIKE_ANY: dict[str, tuple[Callable[..., Any], Callable[[int], Sizes]]] = {
    "broadcast": (lambda x, y: x * y, lambda n: [(n, 4), (5, 4)]),
    "squeezed": (lambda x: x.squeeze(0) * 2, lambda n: [(n, 4)]),
    "compared": (lambda x: x * 2 if x.shape[0] > 1 else x * 3, lambda n: [(n, 4)]),
    "returned": (lambda x: (x * 2, x.shape[0] == 1), lambda n: [(n, 4)]),
    "unrolled": (lambda x: [row * 2 for row in x], lambda n: [(n, 4)]),
    "in order for one row": (lambda x: ATTENTION(x, x, x)[0], lambda n: [(n, 5, 8)]),
    "laid out in another way": (lambda x: x.t() + torch.ones(4, 1), lambda n: [(n, 4)]),
    "a copy of an input, or the input": (lambda x: x.t().contiguous(), lambda n: [(n, 4)]),
    "a reshaped input, or a view of it": (
        lambda x: x.transpose(0, 1).reshape(x.shape[1], -1),
        lambda n: [(n, 4, 3)],
    ),
    "a copy of a result, or the result": (
        lambda x: (y := x.sin(), y.t().contiguous()),
        lambda n: [(n, 4)],
    ),
    "written, or its copy": (
        lambda x: (y := x.sin(), y.t().contiguous().add_(1), y + 1)[1:],
        lambda n: [(n, 4)],
    ),
    "what is left": (lambda x: x[1:] * 2 if x.shape[0] > 1 else x, lambda n: [(n, 4)]),
}


@pytest.mark.parametrize("name", UNLIKE_ANY)
def test_a_graph_that_is_another_for_one_does_not(name: str) -> None:
    f, sizes = UNLIKE_ANY[name]
    compiled = smelt.compile(f)
    for n in (1, 5, 1, 5):
        inputs = tuple(torch.randn(shape) for shape in sizes(n))
        compare(observe(compiled, inputs, 0), observe(f, inputs, 0))
    check_no_failure(compiled)
    assert not any("1*" in text for text in guards(compiled))


def test_a_size_that_is_marked_to_be_one_at_times() -> None:
    x = torch.randn(4, 16)
    smelt.mark_dynamic(x, 0, min=1)
    compiled = smelt.compile(double)
    compiled(x)
    assert shapes(compiled) == ["[1*, 16]"]
    one = torch.randn(1, 16)
    torch.testing.assert_close(compiled(one), double(one))
    assert len(entries(compiled)) == 1


def test_rows_that_do_not_lie_as_those_of_one_are_not_taken_for_one() -> None:
    """A stride over one row may be any; results have eager's."""
    compiled = run(double, [(1, 16)], [(5, 16)])
    x = torch.randn(8, 16)[::2][:1]
    result, expected = compiled(x), double(x)
    assert torch.equal(result, expected) and result.stride() == expected.stride()


def test_the_height_and_the_width_of_square_pictures_are_two() -> None:
    pool = lambda x: x.mean((2, 3))  # noqa: E731
    compiled = run(pool, [(2, 3, 8, 8)], [(2, 3, 9, 9)], [(2, 3, 11, 11)], [(2, 3, 7, 5)])
    assert shapes(compiled) == ["[2, 3, 8, 8]", "[2, 3, *, *]"]
    assert "==" not in guards(compiled)[1]


def test_two_square_pictures_are_as_high_and_as_wide_as_each_other() -> None:
    f = lambda x, y: (x + y).mean((1, 2))  # noqa: E731
    compiled = run(f, [(3, 8, 8), (3, 8, 8)], [(3, 6, 9), (3, 6, 9)], [(3, 9, 4), (3, 9, 4)], dynamic=True)
    assert len(entries(compiled)) == 1


def test_sides_that_an_operator_wants_equal_are_one() -> None:
    for f in (lambda x: x @ x, lambda x: x + x.t(), lambda x: x + torch.eye(x.shape[0])):
        compiled = run(f, [(8, 8)], [(5, 5)], [(6, 6)], dynamic=True)
        assert len(entries(compiled)) == 1
        with pytest.raises(RuntimeError):
            compiled(torch.randn(3, 4))


def test_without_dynamic_each_size_is_a_number() -> None:
    compiled = run(double, [(4, 16)], [(4, 9)], [(4, 33)], dynamic=False)
    assert shapes(compiled) == ["[4, 16]", "[4, 9]", "[4, 33]"]


def test_sizes_that_were_equal_before_are_one() -> None:
    f = lambda x, y: x + y  # noqa: E731
    compiled = run(f, [(4, 8), (4, 8)], [(5, 5), (5, 5)], [(6, 3), (6, 3)], [(3, 9), (3, 9)])
    assert len(entries(compiled)) == 2
    assert "L['x'].shape[0] == L['y'].shape[0]" in guards(compiled)[1]


def test_sizes_that_differed_before_are_two_though_they_are_equal_now() -> None:
    compiled = run(double, [(4, 8)], [(5, 5)], [(6, 3)], [(7, 7)])
    assert len(entries(compiled)) == 2 and "==" not in guards(compiled)[1]


def joined(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    return x * 2 if y is None else torch.cat([y, x], 1)


def test_sizes_that_an_operator_wants_equal_are_one_whatever_they_were_before() -> None:
    compiled = smelt.compile(joined)
    for batch, length in ((4, None), (4, 3), (1, None), (6, 3), (7, 3), (5, 3)):
        x, y = torch.randn(batch, 2), None if length is None else torch.randn(batch, length)
        torch.testing.assert_close(compiled(x, y), joined(x, y))
    check_no_failure(compiled)
    last = guards(compiled)[-1]  # the batch of x was 1, too, that of y was not
    assert "shape=[1*, 2]" in last and "shape=[1*, 3]" in last
    assert "L['x'].shape[0] == L['y'].shape[0]" in last or "L['y'].shape[0] == L['x'].shape[0]" in last
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        compiled(torch.randn(3, 2), torch.randn(4, 3))


def test_a_number_that_must_be_a_size_is_that_size() -> None:
    f = lambda x, n: x + torch.zeros(n)  # noqa: E731
    compiled = smelt.compile(f)
    for n in (4, 6, 7, 9, 12):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert len(entries(compiled)) == 2
    for n in (1, 5):  # of which 5 is an error
        compare(observe(compiled, (x, n), 0), observe(f, (x, n), 0))


def test_a_size_that_the_program_needs_stays_a_number() -> None:
    linear = nn.Linear(16, 8)
    compiled = run(lambda x: linear(x), [(4, 16)], [(5, 16)], [(9, 16)])
    assert shapes(compiled) == ["[4, 16]", "[*, 16]"]


def test_a_resume_function_knows_what_changed() -> None:
    def f(x: torch.Tensor, more: bool) -> torch.Tensor:
        x = x * 2
        if more:
            smelt.graph_break()
            x = x.sum(-1, keepdim=True) * x
        return x + 1

    compiled = smelt.compile(f)
    for shape, more in (((4, 16), False), ((5, 9), False), ((5, 9), True), ((7, 3), True)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, more), f(x, more))
    found = {name: len(record.entries) for name, record in records_of(compiled.__wrapped__.__code__)}
    assert [n for name, n in found.items() if name.startswith("resume")] == [1]


def test_gradients() -> None:
    layer = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
    compiled = smelt.compile(lambda x: layer(x).square().sum(), fullgraph=True)
    for b in (4, 7, 33, 2, 1, 7):
        x = torch.randn(b, 16, requires_grad=True)
        got = torch.autograd.grad(compiled(x), (x, *layer.parameters()))
        want = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert len(entries(compiled)) == 3


# ---- layouts

STRIDED: dict[str, tuple[Callable[[int, int], torch.Tensor], str]] = {
    "transposed": (lambda b, s: torch.randn(s, b).t(), "stride=[1, *]"),
    "columns": (lambda b, s: torch.randn(b, s + 3)[:, 1:-2], "stride=[+, 1]"),
    "columns of one table": (lambda b, s: torch.randn(40, 40)[:b, :s], "stride=[40, 1]"),
    "rows": (lambda b, s: torch.randn(b + 2, s)[1:-1], "stride=[*, 1]"),
    "every other": (lambda b, s: torch.randn(b, 2 * s)[:, ::2], "stride=[*, 2]"),
    "heads": (lambda b, s: torch.randn(b, s, 4, 8).transpose(1, 2), "stride=[*, 8, 32, 1]"),
    "channels last": (
        lambda b, s: torch.randn(b, 3, s, s + 1).contiguous(memory_format=torch.channels_last),
        "stride=[*, 1, *, 3]",
    ),
    "expanded": (lambda b, s: torch.randn(s).expand(b, s), "stride=[0, 1]"),
}
LAYOUT_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "map": lambda x: x * 2 + 1,
    "views": lambda x: (x[1:], x.flatten(), x.transpose(0, 1)),
    "like": lambda x: (torch.zeros_like(x) + x.stride(0), x.is_contiguous(), x.storage_offset()),
    "rows": lambda x: x.softmax(-1) @ x.transpose(-1, -2),
}


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("program", LAYOUT_PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_layouts(layout: str, program: str, dynamic: bool | None) -> None:
    make, expected = STRIDED[layout]
    f = LAYOUT_PROGRAMS[program]
    compiled = smelt.compile(f, dynamic=dynamic)
    for b, s in ((4, 16), (5, 9), (7, 12), (3, 7), (8, 8), (9, 21)):
        x = make(b, s)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) <= 2  # the four heads are as many as the first images
    assert dynamic or expected in guards(compiled)[-1]


def test_writes_of_strided_inputs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x[1:] + 1

    compiled = smelt.compile(f)
    for b, s in ((4, 16), (5, 9), (7, 12), (3, 7)):
        whole, other = torch.zeros(2, s, b + 1).normal_(generator=torch.manual_seed(b)).unbind()
        other.copy_(whole)
        torch.testing.assert_close(compiled(whole[:, 1:].t()), f(other[:, 1:].t()))
        torch.testing.assert_close(whole, other, rtol=0, atol=0)
    assert len(entries(compiled)) == 2


def halves(n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, 6).chunk(2, 1)


def a_row_of_it(n: int) -> tuple[torch.Tensor, ...]:
    x = torch.randn(n, 4)
    return x, x[n // 2]


def of_another_dtype(n: int) -> tuple[torch.Tensor, ...]:
    x = torch.randn(n, 4)
    return x, x.view(torch.int32)


SHARED: dict[str, tuple[Callable[[int], tuple[torch.Tensor, ...]], Callable[..., Any]]] = {
    "halves": (halves, lambda x, y: x * y + 1),
    "both given back as views": (halves, lambda x, y: (x[None], y.t(), x + y)),
    "joined": (halves, lambda x, y: torch.cat([x, y]).sin()),
    "a row": (a_row_of_it, lambda x, row: x * row.sum() + row),
    "queries, keys and values": (
        lambda n: torch.randn(3, 2, 4, n, 8).unbind(),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    ),
    "of another dtype": (of_another_dtype, lambda x, y: (x * 2, y & 1)),
    "a third one is written": (
        lambda n: (*halves(n), torch.zeros(n, 3)),
        lambda x, y, z: (z.add_(x), x * y + z),
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SHARED)
def test_inputs_that_share_memory(name: str, dynamic: bool | None) -> None:
    make, f = SHARED[name]
    compiled = smelt.compile(f, dynamic=dynamic)
    for n in (7, 5, 12, 9):
        torch.manual_seed(n)
        given = make(n)
        torch.manual_seed(n)
        same = make(n)
        compare(observe(compiled, given, 0), observe(f, same, 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == (1 if dynamic else 2)


def test_gradients_of_inputs_that_share_memory() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.exp() * y).sum(1)

    compiled = smelt.compile(f, dynamic=True)
    for n in (4, 7, 12):
        x = torch.randn(n, 6, requires_grad=True)
        got, want = (torch.autograd.grad(g(*x.chunk(2, 1)).sum(), x)[0] for g in (compiled, f))
        torch.testing.assert_close(got, want)
    assert len(entries(compiled)) == 1


def test_what_is_written_shares_memory_with_none_of_the_others() -> None:
    """Two that are read may share theirs; of those, too, each is compared with what is written."""

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        z.add_(1)
        return x * y

    def calls(n: int) -> list[tuple[torch.Tensor, ...]]:
        x, y, z = torch.randn(3, n, 4)
        a, b, c = (torch.randn(n, 4) for _ in range(3))
        both = torch.randn(2, n, 4)
        return [(*both, a), (a, b, c), (both[0], a, both[1]), (a, both[0], both[1]), (x, y, z), (a, a[:], b)]

    compiled = smelt.compile(f, dynamic=True)
    for n in (3, 5):
        torch.manual_seed(n)
        ours = calls(n)
        torch.manual_seed(n)
        theirs = calls(n)
        for given, same in zip(ours, theirs, strict=True):
            compare(observe(compiled, given, 0), observe(f, same, 0))


# ---- numbers that are sizes

NUMBERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "new": lambda x, n: x.new_zeros(n, 2) + n,
    "slice": lambda x, n: x[:, :n] * 2,
    "slice from": lambda x, n: (x[:, n:], x[:, -n:]),
    "slice of half": lambda x, n: x[:, : n // 2 + 1] * n,
    "arange": lambda x, n: torch.arange(n) * x[0, 0],
    "expand": lambda x, n: x[:, None].expand(-1, n, -1) + 1,
    "row": lambda x, n: x[:, n - 1] + n,
    "size and number": lambda x, n: x.repeat(1, n)[:, n : n + x.shape[0]],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_as_sizes(name: str) -> None:
    f = NUMBERS[name]
    compiled = smelt.compile(f)
    for b, n in ((4, 16), (5, 9), (6, 12), (3, 7), (8, 21), (9, 2)):
        x = torch.randn(b, 40)
        compare(observe(compiled, (x, n), 0), observe(f, (x, n), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == 2
    for n in (1, 0, -1, -3, True):  # none of these is a size from two on
        x = torch.randn(4, 40)
        compare(observe(compiled, (x, n), 0), observe(f, (x, n), 0))


def test_gradients_where_a_number_is_a_size() -> None:
    f = lambda x, n: (x[:, :n] ** 2).sum(1)  # noqa: E731
    compiled = smelt.compile(f, fullgraph=True)
    for n in (16, 9, 12, 7):
        x = torch.randn(4, 40, requires_grad=True)
        got, want = (torch.autograd.grad(g(x, n).sum(), x) for g in (compiled, f))
        torch.testing.assert_close(got, want)
    assert len(entries(compiled)) == 2


def test_an_attribute_that_counts_places() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.at = nn.Embedding(64, 8), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = torch.arange(self.at, self.at + x.shape[1])
            self.at += x.shape[1]
            return self.table(places) + x

    torch.manual_seed(0)
    eager, model = Positions(), Positions()
    model.load_state_dict(eager.state_dict())
    compiled = smelt.compile(model)
    for n in (3, 9, 12, 7, 2, 11):
        x = torch.randn(2, n, 8)
        torch.testing.assert_close(compiled(x), eager(x))
    assert model.at == eager.at == 44
    assert len(entries(compiled)) <= 3


# ---- sizes that are divided

DIVIDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "pairs": lambda x: x.view(x.shape[0] // 2, 2, x.shape[1]).sum(1),
    "if even": lambda x: x.unflatten(0, (-1, 2)) if x.shape[0] % 2 == 0 else x * 2,
    "windows": lambda x: (
        x.view(x.shape[0] // 2, 2, x.shape[1] // 3, 3).transpose(1, 2) if x.shape[1] % 3 == 0 else x + 1
    ),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_divided_sizes(name: str) -> None:
    f = DIVIDED[name]
    compiled = smelt.compile(f, dynamic=True)
    for b, s in ((4, 6), (12, 9), (8, 12), (6, 21), (30, 3), (2, 33)):
        x = torch.randn(b, s)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) <= 3  # twos of pairs are 1, which is a number
    for b, s in ((5, 7), (7, 9), (9, 9), (4, 7), (3, 3), (1, 3), (2, 2)):
        x = torch.randn(b, s)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))


# ---- marks

MARKS = {
    "smelt": smelt.mark_dynamic,
    "torch": mark_dynamic,
    "torch, perhaps": maybe_mark_dynamic,
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_marked_sizes_are_symbolic_at_once(mark: Callable[..., None]) -> None:
    x = torch.randn(4, 16)
    mark(x, 1)
    compiled = smelt.compile(double)
    for t in (x, torch.randn(4, 5), torch.randn(4, 99)):
        torch.testing.assert_close(compiled(t), double(t))
    assert shapes(compiled) == ["[4, *]"]


@pytest.mark.parametrize("mark", [smelt.mark_dynamic, mark_dynamic])
def test_marked_ranges_are_guarded_and_known(mark: Callable[..., None]) -> None:
    f = lambda x: x * 2 if x.shape[0] <= 512 else x  # noqa: E731
    compiled = smelt.compile(f)
    x = torch.randn(100)
    mark(x, 0, min=50, max=512)
    for t in (x, torch.randn(50), torch.randn(512), torch.randn(49), torch.randn(513)):
        torch.testing.assert_close(compiled(t), f(t))
    first = guards(compiled)[0]
    assert "L['x'].shape[0] >= 50" in first and first.count("<= 512") == 1
    assert len(entries(compiled)) == 3


@pytest.mark.parametrize("mark", [smelt.mark_static, mark_static])
def test_marked_sizes_stay_numbers(mark: Callable[..., None]) -> None:
    compiled = smelt.compile(double, dynamic=True)
    for shape in ((4, 16), (5, 16), (6, 9)):
        x = torch.randn(shape)
        mark(x, 0)
        torch.testing.assert_close(compiled(x), double(x))
    assert shapes(compiled) == ["[4, *]", "[5, *]", "[6, *]"]


@pytest.mark.parametrize("dims", [(0,), ([0, 1],), ()])
def test_sizes_marked_inside_stay_numbers(dims: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        mark_static(x, *dims)
        return double(x)

    compiled = smelt.compile(f, dynamic=True, fullgraph=True)
    for shape in ((4, 16), (5, 16), (5, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), double(x))
    assert shapes(compiled) == (["[4, *]", "[5, *]"] if dims == (0,) else ["[4, 16]", "[5, 16]", "[5, 9]"])


def test_a_marked_parameter() -> None:
    table = nn.Parameter(torch.randn(10, 4))
    smelt.mark_dynamic(table, -2)
    compiled = smelt.compile(lambda t: t.exp())
    other = nn.Parameter(torch.randn(7, 4))
    for t in (table, other):
        torch.testing.assert_close(compiled(t), t.exp())
    assert shapes(compiled) == ["[*, 4]"]


LINEAR = nn.Linear(16, 8)


def a_product(t: torch.Tensor) -> torch.Tensor:
    return LINEAR(t)


def a_list(t: torch.Tensor) -> torch.Tensor:
    return t + len([t] * t.shape[1])


def a_table(t: torch.Tensor) -> torch.Tensor:
    return t * {16: 1.5, 8: 2.0}[t.shape[1]]


@pytest.mark.parametrize("mark", [smelt.mark_dynamic, mark_dynamic])
@pytest.mark.parametrize("f", [a_product, a_list, a_table])
def test_a_mark_that_the_program_does_not_keep(f: Any, mark: Callable[..., None]) -> None:
    """The error names tensor, dimension and line, at each call; calls without the mark compile."""
    compiled, line = smelt.compile(f), f.__code__.co_firstlineno + 1
    x = torch.randn(4, 16)
    mark(x, (0, 1))
    for _ in range(2):
        text = rf"dimension 1 of L\['t'\] is marked .* to 16 at .*test_sizes_by_default.py:{line} in {f.__name__}"
        with pytest.raises(MarkedSizeError, match=text):
            compiled(x)
    for t in (x.detach().clone(), torch.randn(5, 16)):
        torch.testing.assert_close(compiled(t), f(t))
    hinted = torch.randn(3, 16)
    maybe_mark_dynamic(hinted, 1)
    torch.testing.assert_close(smelt.compile(f)(hinted), f(hinted))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.reshape(2, -1).sum(1),
        lambda x: x.view(-1, 4) * 2,
        lambda x: torch.nn.functional.glu(x, 0),
        lambda x: torch.nn.functional.group_norm(x.view(1, -1, 1), 2),
    ],
    ids=range(4),
)
def test_marked_sizes_that_must_be_multiples(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for size in (8, 12, 20, 16):
        x = torch.randn(size)
        mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(entries(compiled)) == 1


def test_a_mark_that_the_layout_does_not_keep(caplog: pytest.LogCaptureFixture) -> None:
    compiled = smelt.compile(double)
    with caplog.at_level(logging.WARNING, "smelt"):
        for columns in (16, 15):
            x = torch.randn(40).as_strided((3, columns), (2, 1))
            smelt.mark_dynamic(x, 1)
            torch.testing.assert_close(compiled(x), double(x))
    (told,) = [r.getMessage() for r in caplog.records]
    assert "L['x'].shape[1]" in told and "compiled as 16" in told


def test_a_mark_breaks_the_graph_and_is_made() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        smelt.mark_dynamic(x, 0)
        return x + 1

    x = torch.randn(4, 16)
    torch.testing.assert_close(smelt.compile(f)(x), x + 1)
    y = torch.randn(5, 16)
    compiled = smelt.compile(double)
    compiled(x), compiled(y)
    assert shapes(compiled) == ["[*, 16]"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: smelt.mark_dynamic([1], 0), TypeError, "tensor must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: smelt.mark_dynamic(torch.ones(2), 1), IndexError, "dim 1 of a tensor of 1 dimensions"),
        (lambda: smelt.mark_dynamic(torch.ones(2), "a"), TypeError, "dim must be an int"),  # type: ignore[arg-type]
        (lambda: smelt.mark_dynamic(torch.ones(2), True), TypeError, "dim must be an int"),
        (
            lambda: smelt.mark_dynamic(torch.ones(2), 0, min=3),
            ValueError,
            "dim 0 has size 2, which is not from 3",
        ),
        (lambda: smelt.mark_dynamic(torch.ones(2), 0, min=4, max=3), ValueError, "min must be at most max"),
        (lambda: smelt.mark_dynamic(torch.ones(2), 0, max=2.5), TypeError, "max must be an int"),  # type: ignore[arg-type]
        (lambda: smelt.mark_static(3), TypeError, "smelt.mark_static: tensor must be"),  # type: ignore[arg-type]
        (lambda: smelt.mark_static(torch.ones(2), -2), IndexError, "dim -2 of a tensor"),
    ],
)
def test_wrong_marks(call: Callable[[], None], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def padded_to_eights(x: torch.Tensor) -> torch.Tensor:
    length = (x.shape[1] + 7) // 8 * 8
    return nn.functional.pad(x, (0, length - x.shape[1])).view(x.shape[0], length // 8, 8).amax(2)


def padded_by_the_rest(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (0, -x.shape[1] % 16)).view(x.shape[0], -1, 16).sum(2)


def whole_rows_and_the_rest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = x.shape[1] // 8 * 8
    return x[:, :whole].reshape(x.shape[0], -1, 8).sum(2), x[:, whole:] * 2


LENGTHS = (7, 19, 12, 30, 5, 31, 26, 33, 43, 21, 53, 22)  # no multiples of 8


@pytest.mark.parametrize(
    ("program", "most"),
    [(padded_to_eights, 3), (padded_by_the_rest, 3), (whole_rows_and_the_rest, 5)],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_not_each_remainder_has_an_entry(program: Callable[..., Any], most: int) -> None:
    compiled = run(program, *([(4, n)] for n in LENGTHS))
    assert len(entries(compiled)) <= most


def test_what_is_left_is_a_symbol_unless_it_is_nothing() -> None:
    compiled = run(whole_rows_and_the_rest, *([(4, n)] for n in (25, 22, 43, 31, 16, 32, 64)), dynamic=True)
    said = " ".join(guards(compiled))
    assert "(L['x'].shape[1] % 8) == 1" in said and "(L['x'].shape[1] % 8) == 0" in said
    assert "not ((L['x'].shape[1] % 8) == 0)" in said
    assert len(entries(compiled)) == 3


def stored_at_steps(x: torch.Tensor, k: int) -> torch.Tensor:
    y = x * 1
    y[::k].mul_(3)
    return y


STEPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "slice": lambda x, k: x[:, 1::k] * 2,
    "stored": stored_at_steps,
    "range": lambda x, k: torch.arange(0, 40, k) + 1,
    "range down": lambda x, k: torch.arange(40, 0, -k) + 1,
    "triangle": lambda x, k: torch.tril_indices(6, 5, k - 3).contiguous() + 1,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_numbers(name: str, dynamic: bool | None) -> None:
    """They are no sizes, though they decide some: of the large numbers that are tried, all would leave a single element."""
    f = STEPS[name]
    compiled = smelt.compile(f, dynamic=dynamic)
    steps = (2, 3, 4, 7, 1, 3, 2)
    x = torch.randn(8, 9)
    for k in steps:
        compare(observe(compiled, (x, k), 0), observe(f, (x, k), 0))
    check_no_failure(compiled)
    assert len(entries(compiled)) == len(set(steps))
