"""Lengths that change, as models of text work with them: chunks of fixed length, loops over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries
from tests.harness.agreement import check_no_failure, compare, observe, same

CHUNK = 8


def entries_over(f: Callable[..., Any], lengths: Sequence[int], dynamic: bool | None = True) -> list[int]:
    """How many entries there are after a call with each of these lengths, which gives eager's results."""
    compiled, counts = smelt.compile(f, dynamic=dynamic), []
    for n in lengths:
        inputs = (torch.randn(11, n, 16),)
        compare(observe(compiled, inputs, 0), observe(f, inputs, 0))
        counts.append(len(entries(compiled)))
    check_no_failure(compiled)
    return counts


def padded(x: torch.Tensor) -> torch.Tensor:
    """In chunks, the last one filled up."""
    return F.pad(x, (0, 0, 0, (CHUNK - x.shape[1] % CHUNK) % CHUNK)).reshape(
        x.shape[0], -1, CHUNK, x.shape[2]
    )


def sums_of_chunks(x: torch.Tensor) -> torch.Tensor:
    return padded(x).cumsum(2).reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]


def scan_of_chunks(x: torch.Tensor) -> torch.Tensor:
    chunks = padded(x)
    state, made = x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(chunks)
    for i in range(chunks.shape[1]):
        made[:, i] = chunks[:, i] * state[:, None]
        state = state + chunks[:, i].sum(1)
    return made.reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]


@pytest.mark.parametrize("program", [sums_of_chunks, scan_of_chunks])
def test_one_chunk_is_one_entry(program: Callable[..., Any]) -> None:
    assert entries_over(program, [5, 3, 7, 2, 6]) == [1] * 5


def test_chunks_of_any_number() -> None:
    """As long as none is left over, or some is: the end that is cut off is nothing, or something."""
    assert entries_over(sums_of_chunks, [9, 29, 70, 15, 3, 41]) == [1, 1, 1, 1, 2, 2]


def test_a_loop_over_chunks_is_an_entry_for_each_number_of_them() -> None:
    assert entries_over(scan_of_chunks, [20, 21, 18, 30, 27, 5, 23, 31]) == [1, 1, 1, 2, 2, 3, 3, 3]


def test_by_default_too() -> None:
    assert entries_over(scan_of_chunks, [20, 21, 18, 30, 27, 23, 31], dynamic=None) == [1, 2, 2, 3, 3, 3, 3]


def test_a_loop_over_half_the_length() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[1] // 2):
            x = x + i
        return x

    assert entries_over(f, [12, 13, 14, 15, 12]) == [1, 1, 2, 2, 2]


def test_a_loop_over_the_length_needs_a_number() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[1] - 1):
            x = x + i
        return x

    assert entries_over(f, [12, 13, 12]) == [1, 2, 2]


def test_a_length_that_is_needed_itself_has_no_range() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[1] // 4):
            x = x + i
        return x * sum(range(x.shape[1]))

    assert entries_over(f, [12, 13, 12]) == [1, 2, 2]


def test_two_ranges_of_one_length() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[1] // 4):
            x = x + i
        for i in range(x.shape[1] // 6):
            x = x * i
        return x

    assert entries_over(f, [12, 13, 15, 17, 18, 19, 14]) == [1, 1, 1, 2, 3, 3, 3]


def test_a_range_that_is_known_too_late() -> None:
    """What is left of a length below 16 is the length, but it was there before that was asked (PEGASUS-X's backward)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        left = x.new_ones(x.shape[0], x.shape[1] % 16, x.shape[2])
        if x.shape[1] < 16:
            left = left * x
        return left + 1

    assert entries_over(f, [15, 11, 14, 7, 35, 20]) == [1, 1, 1, 1, 2, 2]


def test_gradients() -> None:
    compiled = smelt.compile(lambda x: scan_of_chunks(x).square().sum(), dynamic=True, fullgraph=True)
    for n in (20, 18, 23):
        x = torch.randn(11, n, 16, dtype=torch.float64, requires_grad=True)
        got = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(got, torch.autograd.grad(scan_of_chunks(x).square().sum(), x))
    assert len(entries(compiled)) == 1


def _grown(x: torch.Tensor) -> torch.Tensor:
    shape = [x.shape[0]]
    shape += [x.shape[1], 2]
    return x.new_zeros(shape)


# What is made of lengths on the way to a shape, and decided by them.
PYTHON: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuples joined": lambda x: x.new_zeros((x.shape[0],) + (x.shape[1], 3)),
    "lists joined": lambda x: x.reshape([-1] + [x.shape[1] * x.shape[2]]),
    "a tuple and a shape": lambda x: ((x.shape[1] * 2,) + x.shape, x.shape[:1] + (x.shape[1] - 1,)),
    "repeated": lambda x: (x.new_zeros([x.shape[1]] * 2), x.new_zeros((x.shape[1],) * x.dim())),
    "a list that grows": _grown,
    "a sum of tuples": lambda x: F.pad(x, sum([(0, 0), (0, -x.shape[1] % 4)], ())),
    "in a tuple": lambda x: x if 0 in (x.shape[1], 4) else x * 2,
    "a shape that is compared": lambda x: x * 2 if x.shape == (11, x.shape[1], 16) != x.shape[:2] else x,
    "rounded up": lambda x: x.new_zeros(math.ceil(x.shape[1] / 4) * 4 - x.shape[1] + 2),
    "rounded down": lambda x: (x.new_zeros(math.floor((x.shape[1] + 1) / 2)), x[:, : int(x.shape[1] / 2)]),
    "made an int": lambda x: (
        x.new_zeros(int(2 * max(x.shape[1], 2) - 1)),
        x[:, : round(x.shape[1]) - 1] * 2,
    ),
    "rounded, as it is": lambda x: x.reshape(-1, math.ceil(math.floor(math.trunc(x.shape[1])))),
    "complex": lambda x: (torch.fft.fftn(x, dim=(1, 2)).real * 2, torch.fft.fft(x).imag[:, 1:]),
    "complex from pairs": lambda x: torch.view_as_complex(torch.stack([x, x * 2], -1)).abs(),
}


@pytest.mark.parametrize("name", PYTHON)
def test_lengths_in_python(name: str) -> None:
    assert entries_over(PYTHON[name], [12, 14, 9, 35]) == [1] * 4


def test_a_range_rounded_up() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(math.ceil(x.shape[1] / 8)):
            x = x + i
        return x

    assert entries_over(f, [12, 14, 9, 35, 40]) == [1, 1, 1, 2, 2]


def test_views_of_complex_numbers_are_written_through() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.fft(x)
        z.real.mul_(2)
        torch.view_as_real(z)[:, 1:].add_(1)
        return torch.view_as_real(z) + 1

    assert entries_over(f, [12, 14, 9]) == [1] * 3


def test_a_condition_that_only_data_decide_needs_no_numbers() -> None:
    """The graph breaks there, for all sizes."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return (y + 1) * 3 if (y.sum(-1) > 0).flatten().any() else y

    assert entries_over(f, [12, 14, 9]) == [1] * 3


def test_a_condition_on_few_elements_needs_their_number() -> None:
    f = lambda x: x * 2 if (x > -9).all() else x  # noqa: E731
    compiled = smelt.compile(f, dynamic=True, fullgraph=True)
    for n in (4, 5, 4):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(entries(compiled)) == 2


# Options of a recurrent network, and whether it is given its first state.
NETWORKS: dict[str, tuple[dict[str, Any], bool]] = {
    "one layer": ({}, False),
    "batches first": ({"batch_first": True}, True),
    "both directions": ({"bidirectional": True, "num_layers": 2, "batch_first": True}, False),
    "without biases": ({"bias": False}, True),
    "with dropout": ({"num_layers": 2, "dropout": 0.3}, False),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("train", [False, True])
def test_recurrent_networks_over_any_batch_and_length(name: str, train: bool) -> None:
    options, given = NETWORKS[name]
    network = nn.LSTM(6, 5, **options).train(train)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    compiled = smelt.compile(network, dynamic=True)
    for first, second in ((4, 7), (3, 9), (11, 2), (5, 5), (6, 13)):
        batch = first if options.get("batch_first") else second
        x = torch.randn(first, second, 6, requires_grad=train)
        state = tuple(torch.randn(layers, batch, 5) for _ in range(2)) if given else None
        results = []
        for function in (compiled, network):
            torch.manual_seed(1)
            with torch.set_grad_enabled(train):
                outputs, last = function(x, state)
            made = [outputs, *last]
            if train:
                loss = sum((i + 1) * t.square().sum() for i, t in enumerate(made))
                made += torch.autograd.grad(loss, [x, *network.parameters()])
            results.append(made)
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("kind", "dtype"), [(nn.GRU, torch.float32), (nn.GRU, torch.float64), (nn.LSTM, torch.float64)]
)
def test_recurrent_networks_over_any_batch(kind: type[nn.RNNBase], dtype: torch.dtype, name: str) -> None:
    """Of one length: the graph has its steps."""
    options, given = NETWORKS[name]
    network = kind(6, 5, **options).to(dtype)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    compiled = smelt.compile(network, dynamic=True)
    for batch in (4, 3, 11):
        shape = (batch, 5, 6) if options.get("batch_first") else (5, batch, 6)
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        zeros = [torch.randn(layers, batch, 5, dtype=dtype) for _ in range(2 if kind is nn.LSTM else 1)]
        state = None if not given else tuple(zeros) if kind is nn.LSTM else zeros[0]
        results = []
        for function in (compiled, network):
            torch.manual_seed(1)
            outputs, last = function(x, state)
            made = [outputs, *(last if isinstance(last, tuple) else [last])]
            loss = sum((i + 1) * t.square().sum() for i, t in enumerate(made))
            results.append(made + [*torch.autograd.grad(loss, [x, *network.parameters()])])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    check_no_failure(compiled)
    assert len(entries(compiled)) == 1


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.GRUCell, nn.LSTMCell])
def test_recurrent_networks_under_autocast(kind: type[nn.Module]) -> None:
    """Without AVX-512, oneDNN has no LSTM of bfloat16: eager raises, and compiled code as eager does."""
    network = kind(6, 5)

    def outcome(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor | str:
        try:
            return function(x)
        except RuntimeError as error:
            return str(error)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found = network(x)
        return found[0] if isinstance(found, tuple) else found

    compiled = smelt.compile(f, dynamic=True)
    for batch in (4, 3, 11):
        x = torch.randn(*(() if "Cell" in kind.__name__ else (5,)), batch, 6)
        want = outcome(f, x)
        assert isinstance(want, torch.Tensor) or (kind is nn.LSTM and "primitive" in want)
        same(outcome(compiled, x), want)
    assert len(entries(compiled)) == 1


def test_a_recurrent_network_refuses_other_features() -> None:
    network = nn.LSTM(6, 5)
    compiled = smelt.compile(network, dynamic=True)
    compiled(torch.randn(4, 7, 6))
    with pytest.raises(RuntimeError, match="Expected 6, got 5"):
        compiled(torch.randn(4, 7, 5))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        compiled(torch.randn(4, 7, 6), (torch.zeros(1, 3, 5), torch.zeros(1, 3, 5)))
