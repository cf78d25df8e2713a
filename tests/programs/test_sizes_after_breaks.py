"""What is known of sizes before a graph break is known behind it: which change, which are one, which follow from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.capture.driver.cache_entries import records_of
from tests.harness.agreement import check_no_failure, compare, observe

LINEAR = nn.Linear(6, 4)
SHAPES = ((5, 8, 6), (4, 9, 6), (3, 3, 6), (7, 2, 6), (6, 21, 6), (4, 4, 6))


def doubled_length(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    y = torch.cat([x, x.sin()], 1)
    smelt.graph_break()
    return (y[:, n:] + x) * n


def shape_kept(x: torch.Tensor) -> torch.Tensor:
    shape = x.shape
    flat = x.reshape(-1) * 2
    smelt.graph_break()
    return flat.view(shape) + flat.view(-1, shape[-1]).sum()


def number_kept(x: torch.Tensor) -> torch.Tensor:
    length, mean = x.shape[1], x.mean(1)
    x = x * 2
    smelt.graph_break()
    return x + torch.arange(length)[:, None] + mean[:, None]


def features_known(x: torch.Tensor) -> torch.Tensor:
    """The last size is a number in the first graph, and so behind the break."""
    x = LINEAR(x)
    smelt.graph_break()
    return x.view(x.shape[0], x.shape[1], 2, 2).transpose(1, 2) * x.shape[1]


def padded(x: torch.Tensor) -> torch.Tensor:
    more = -x.shape[1] % 4
    y = F.pad(x, (0, 0, 0, more))
    mask = torch.ones(x.shape[:2])
    smelt.graph_break()
    return y[:, : y.shape[1] - more] * mask[:, :, None] + more


def in_containers(x: torch.Tensor) -> torch.Tensor:
    held, sizes = [x * 2, (x.sum(2), x.shape[1])], {"batch": x.shape[0]}
    smelt.graph_break()
    y, (total, n) = held
    return (y + total[:, :, None] + torch.arange(n)[:, None]) * torch.ones(sizes["batch"], n, 1)


def in_a_cell(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]

    def places() -> torch.Tensor:
        return torch.arange(n)

    x = x * 2
    smelt.graph_break()
    return x + places()[:, None]


def below_a_call(x: torch.Tensor) -> torch.Tensor:
    n, y = x.shape[1], torch.cat([x, x], 1)

    def inner(z: torch.Tensor) -> torch.Tensor:
        z = z * 2
        smelt.graph_break()
        return z + 1

    z = inner(x)
    return y[:, :n] + z


def remainder_kept(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    rows = x[:, : n // 4 * 4].reshape(x.shape[0], -1, 4, x.shape[2]).sum(2)
    left = n % 4
    smelt.graph_break()
    return rows.repeat_interleave(4, 1) + x[:, : n - left] * left


PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    doubled_length, shape_kept, number_kept, features_known, padded, in_containers, in_a_cell, below_a_call,
]  # fmt: skip


def most_entries(compiled: Any) -> dict[str, int]:
    return {name: len(record.entries) for name, record in records_of(compiled.__wrapped__.__code__)}


def run(f: Callable[..., Any], shapes: Any, dynamic: bool | None, grad: bool = False) -> Any:
    compiled = smelt.compile(f, dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape, requires_grad=grad)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
    return compiled


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_one_entry_from_the_first_call_on(f: Callable[..., Any], grad: bool) -> None:
    """Where the first sizes differ from each other, and no others are special."""
    found = most_entries(run(f, SHAPES, dynamic=True, grad=grad))
    expected = 3 if f is padded else 1  # as without a break: multiples, other sizes, and those below 4
    assert max(found.values()) <= expected, found


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_by_default_one_with_numbers_and_one_with_symbols(f: Callable[..., Any]) -> None:
    found = most_entries(run(f, SHAPES, dynamic=None))
    assert max(found.values()) <= (3 if f is padded else 2), found


def test_sizes_that_are_equal_by_chance_are_two_behind_the_break_if_they_were_before() -> None:
    compiled = run(doubled_length, [(4, 9, 6), (8, 4, 6), (3, 3, 6)], dynamic=True)
    assert most_entries(compiled) == {"doubled_length": 1, "resume_in_doubled_length_at_24": 1}


def test_two_ways_to_one_place() -> None:
    """A resume function that is handed sizes that are one, by one way, and such as are not, by another."""

    def f(x: torch.Tensor, same: bool) -> torch.Tensor:
        y = x * 2 if same else torch.cat([x, x], 0)
        smelt.graph_break()
        return x.sum() + y

    compiled = smelt.compile(f, dynamic=True)
    for shape, same in (((4, 3), True), ((5, 6), False), ((7, 2), True), ((3, 8), False), ((6, 5), True)):
        x = torch.randn(shape)
        compare(observe(compiled, (x, same), 0), observe(f, (x, same), 0))
    check_no_failure(compiled)
    assert max(most_entries(compiled).values()) <= 2


def test_a_remainder_makes_no_more_entries_than_before_the_break() -> None:
    first, behind = most_entries(run(remainder_kept, SHAPES, dynamic=True)).values()
    assert first == behind == 4
