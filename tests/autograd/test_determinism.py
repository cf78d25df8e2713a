"""A backward that runs under other requests for deterministic algorithms than its forward."""

from contextlib import contextmanager

import pytest
import torch

import smelt
from smelt import events


@contextmanager
def deterministic(enabled):
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(enabled)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def counted_backwards():
    """What was requested when each backward was compiled."""
    requested = []

    def seen(event):
        if event.kind == "backward-compiled":
            requested.append(torch.are_deterministic_algorithms_enabled())

    with events.subscribed(seen):
        yield requested


def rows(table, index):
    return table[index].sin()


def sums(table, index):
    return torch.zeros(5, 3).index_add(0, index, table[: len(index)] ** 2)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [rows, sums])
def test_each_request_has_its_backward(fn, dynamic):
    compiled = smelt.compile(fn, dynamic=dynamic)
    table, index = torch.rand(5, 3, requires_grad=True), torch.tensor([0, 2, 2, 4])
    with counted_backwards() as requested:
        for forward, backward in ((False, True), (False, False), (False, True), (True, False), (True, True)):
            with deterministic(forward):
                outs = [f(table, index) for f in (fn, compiled)]
            with deterministic(backward):
                expected, found = (torch.autograd.grad(out.square().sum(), table) for out in outs)
            torch.testing.assert_close(found, expected)
    assert requested == [True, False, False, True]
