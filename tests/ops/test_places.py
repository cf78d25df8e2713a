"""Indices that are known when a graph is lowered: what they read is read as it is, and what cannot raise need not run."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.harness.scheduled import check, externs, kernels, scheduled

aten = torch.ops.aten


def columns(n: int, **options) -> torch.Tensor:
    return torch.arange(n, **options)


KNOWN = {
    "a row of places": lambda x: x[columns(5)],
    "all dimensions": lambda x: x[columns(6)[:, None], columns(7)],
    "turned": lambda x: x[columns(6), columns(7)[:, None]],
    "further on": lambda x: x[columns(4) + 2, columns(4) + 3],
    "from the end": lambda x: x[5 - columns(6)],
    "every second": lambda x: x[torch.arange(0, 6, 2)],
    "int32": lambda x: x[columns(6, dtype=torch.int32)],
    "a table of places": lambda x: x[(columns(2)[:, None] * 3 + columns(3))],
    "one place": lambda x: x[torch.zeros(4, dtype=torch.int64), columns(4)],
    "with what is computed": lambda x: x.sin()[columns(6)[:, None], columns(7)] * 2,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_places_are_read_by_kernels(name):
    check(KNOWN[name], torch.randn(6, 7), n_kernels=1, n_externs=0)
    check(KNOWN[name], torch.randn(7, 6).t(), n_kernels=1, n_externs=0)


LEFT = {
    "a table": lambda x: x[torch.tensor([0, 3, 1])],
    "the second dimension": lambda x: x[:, columns(3)],
    "beyond": lambda x: x[columns(6).clamp(max=3)],
    "negative": lambda x: x[columns(6) - 6],
}


@pytest.mark.parametrize("name", LEFT)
def test_other_places_are_atens(name):
    schedule = check(LEFT[name], torch.randn(6, 7))
    assert externs(schedule) == [aten.index.Tensor]


def test_what_is_out_of_range_raises_as_in_eager():
    fn = smelt.compile(lambda x: x[columns(7)] + 1)
    with pytest.raises(IndexError):
        fn(torch.randn(6))
    fn = smelt.compile(lambda x: (x[columns(7)], x + 1)[1])
    with pytest.raises(IndexError):
        fn(torch.randn(6))


def test_a_call_that_nobody_reads_runs_only_if_it_may_raise():
    def fn(x, where):
        zeros = torch.zeros(8)
        torch.index_put(zeros, (torch.where(columns(4) < 2, columns(4), 7),), torch.ones(4))
        torch.index_put(zeros, (where,), torch.ones(4))
        x[columns(6)]
        return x + 1

    schedule, _ = scheduled(fn, torch.randn(6), torch.tensor([0, 1, 2, 3]))
    assert externs(schedule) == [aten.index_put.default]
    schedule, _ = scheduled(lambda x: fn(x, columns(4)), torch.randn(6))
    assert externs(schedule) == [] and len(kernels(schedule)) == 1


def test_gradients_of_what_is_read():
    def fn(x):
        return (x[columns(4)[:, None], columns(3)] ** 2).sum()

    x = torch.randn(6, 7, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fn(x).backward()
    smelt.compile(fn)(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
