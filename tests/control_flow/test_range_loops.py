"""Loops over ranges whose lengths data decide: eager's results, in one graph where they are captured."""

from __future__ import annotations

import torch

from tests.harness.catalogue import program

COUNTS = [(torch.tensor(n),) for n in (3, 5, 2, 0, 1, 7, -2)]
DEPENDENT = ["data-dependent-value"]


def counted(graphs=1, **numbers):
    """A row for a function of a count in a tensor."""

    def decorate(fn):
        def factory():
            return fn, [(n.clone(),) for (n,) in COUNTS]

        factory.__name__, factory.__module__ = fn.__name__, fn.__module__
        return program(graphs, **numbers)(factory)

    return decorate


@counted()
def as_many_steps_as_a_tensor_says(n):
    x = torch.ones(3)
    for _ in range(int(n)):
        x = x * 1.5
    return x


@counted()
def items_of_the_range(n):
    x = torch.ones(3)
    for i in range(n.item()):
        x = x * 1.5 + i
    return x


@counted()
def a_range_with_a_start_and_a_step(n):
    x = torch.ones(3)
    for i in range(10, int(n), -2):
        x = x * 1.1 + i * 0.5
    return x


@counted()
def a_range_that_a_tensor_ends(n):
    x = torch.ones(3)
    for i in range(1, int(n) + 4, 2):
        x = x * 1.5 + i
        if x.sum() > 20:
            break
    return x


@counted()
def a_counter_of_another_loop(n):
    x, k = torch.ones(3), 0
    while x.sum() < n + 30:
        x = x * 1.3
        k += 1
    for i in range(k):
        x = x - 0.1 * i
    return x


@counted()
def loops_in_each_other(n):
    x = torch.ones(3)
    for i in range(int(n)):
        for k in range(3):
            x = x + i * 0.5 + k
    return x


@counted()
def the_last_item_is_read(n):
    x, i = torch.ones(3), -1
    for i in range(int(n)):
        x = x + i
    return x, i


@counted(2, later=3, breaks=DEPENDENT)
def items_are_indices(n):
    x = torch.arange(10.0)
    total = torch.zeros(())
    for i in range(int(n)):
        total = total + x[i]
    return total


@counted(2, later=3, breaks=DEPENDENT)
def a_list_is_filled(n):
    x, out = torch.ones(3), []
    for i in range(int(n)):
        x = x + i
        out.append(x)
    return out


@counted(2, later=3, breaks=DEPENDENT)
def a_list_of_the_range(n):
    x = torch.ones(3)
    return [x + i for i in list(range(int(n)))]


@program(1)
def gradients_of_a_range():
    torch.manual_seed(0)
    weight = torch.randn(3, 3, requires_grad=True)

    def fn(n):
        x = torch.ones(2, 3)
        for i in range(int(n)):
            x = torch.tanh(x @ weight + i * 0.1)
        return x

    return fn, [(n.clone(),) for (n,) in COUNTS]
