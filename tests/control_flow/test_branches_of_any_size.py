"""Branches and loops on tensors whose sizes, and whose numbers, change between calls: one graph for all of them.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import while_loop

from tests.harness.catalogue import program

SIZES = (4, 5, 7, 3, 12, 64, 2, 5)


def rows(n: int, up: bool) -> torch.Tensor:
    """n rows of six elements, all positive or all negative."""
    x = torch.arange(6.0 * n).reshape(n, 6) / (6 * n) + 0.25
    return x if up else -x


def sized(grad: bool = False, numbers: Sequence[Any] = ()) -> Any:
    """A row for a function of one tensor, whose size and sign differ from call to call, and perhaps of a number: one graph,
    and one more once the size, or the number, has changed."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., None]:
        def factory() -> Any:
            inputs = [rows(n, up) for n in SIZES for up in (True, False)]
            arguments = [(x.requires_grad_(grad),) for x in inputs]
            if numbers:
                arguments = [(*a, numbers[i % len(numbers)]) for i, a in enumerate(arguments)]
            return fn, arguments

        factory.__name__, factory.__module__ = fn.__name__, fn.__module__
        return program(1, later=2 if numbers else 1)(factory)

    return decorate


W = torch.linspace(-1, 1, 36).reshape(6, 6)


# ---- branches


@sized()
def products(x):
    if x.sum() > 0:
        y = (x @ W).softmax(-1) @ W
    else:
        y = torch.relu(x @ W @ W)
    return y + 1


@sized(grad=True)
def products_with_gradients(x):
    if x.sum() > 0:
        y = (x @ W).softmax(-1) @ W
    else:
        y = torch.relu(x @ W @ W)
    return y + x


@sized()
def products_or_nothing(x):
    if x.sum() > 0:
        x = (x @ x.T).softmax(-1) @ x
    return x * 2


@sized()
def nested_products(x):
    if x.sum() > 0:
        y = x @ W
        if y.sum() > 0:
            y = (y @ W).sin() @ W
        else:
            y = (y @ W).cos() @ W
    else:
        y = x @ W @ W
    return y - x


@sized(grad=True)
def nested_products_with_gradients(x):
    if x.sum() > 0:
        y = x @ W
        if y.sum() > 0:
            y = (y @ W).sin()
        else:
            y = (y @ W).cos()
    else:
        y = x @ W
    return y - x


@sized()
def sizes_in_arguments(x):
    n = x.shape[0]
    if x.sum() > 0:
        y = (x @ W).reshape(n * 2, 3) @ W[:3, :3]
    else:
        y = torch.cat([x @ W, torch.zeros(n, 6)], 1).view(n * 2, -1)[:, :3].contiguous() @ W[:3, :3]
    return y.sum(1)


@sized()
def sizes_as_numbers(x):
    n = x.shape[0]
    if x.sum() > 0:
        y = (x @ W).sin() * n / (n + 1)
    else:
        y = (x @ W).cos() - n
    return y


@sized()
def results_of_several_layouts(x):
    if x.sum() > 0:
        y, z = x @ W, (x @ W).argmax(1)
    else:
        y, z = (x @ W).sin(), torch.arange(x.shape[0])
    return y, z


@sized()
def in_place_writes(x):
    y = x.clone()
    if y.sum() > 0:
        y.copy_(y @ W)
    else:
        y.add_((y @ W).sin())
    return y


@sized(numbers=(0.5, 1.5, 0.25, 3.5, -1.5))
def a_float_that_changes(x, scale):
    if x.sum() > 0:
        y = (x @ W).sin() * scale
    else:
        y = (x @ W).cos() + scale
    return y


@sized(numbers=(3, 5, 2, 7, 4))
def an_int_that_changes(x, k):
    if x.sum() > 0:
        y = (x @ W).sin() * k
    else:
        y = (x @ W) / (k + 1)
    return y


@sized(grad=True, numbers=(0.5, 1.5, 0.25, 3.5, -1.5))
def a_float_that_changes_with_gradients(x, scale):
    if x.sum() > 0:
        y = (x @ W).sin() * scale
    else:
        y = (x @ W).cos() * (scale + 1)
    return y


@sized(numbers=(3, 5, 2, 7, 4))
def a_size_that_only_a_branch_knows(x, k):
    if x.sum() > 0:
        y = (x @ W @ torch.ones(6, k)).sum(1)
    else:
        y = (x @ W).sum(1)
    return y


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        if x.mean() > 0:
            x = x + self.up(self.norm(x))
        else:
            x = x - self.down(self.norm(x))
        return self.norm(x)


def calls(*shape: int | None) -> list[tuple[torch.Tensor]]:
    """Arguments with the changing size where the shape is None."""
    torch.manual_seed(1)
    found = []
    for n in SIZES:
        x = torch.rand([n if size is None else size for size in shape])
        found += [(x,), (-x,)]
    return found


@program(1, later=1)
def a_module_in_inference():
    module = Norms().eval()

    def fn(x):
        with torch.no_grad():
            return module(x)

    return fn, calls(None, 6)


@program(1, later=1)
def two_sizes():
    def fn(x):
        if x.sum() > 0:
            y = (x @ x.transpose(1, 2)).softmax(-1)
        else:
            y = torch.tanh(x @ x.transpose(1, 2))
        return y @ x

    return fn, [(s * torch.rand(n, m, 6),) for n, m in zip(SIZES, SIZES[::-1]) for s in (1, -1)]


@program(1, later=1)
def convolutions():
    weight = torch.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3)

    def fn(x):
        if x.sum() > 0:
            y = torch.relu(nn.functional.conv2d(x, weight, padding=1))
        else:
            y = torch.tanh(nn.functional.conv2d(x, weight, padding=1) * 2)
        return y.mean((2, 3))

    return fn, calls(None, 3, 8, 8)


@program(1, later=1)
def a_size_that_data_decide():
    def fn(x):
        y = x[x > 0.25]
        y = y.reshape(-1, 1) * torch.ones(1, 6)
        if y.sum() > 20:
            z = (y @ W).softmax(-1) @ W
        else:
            z = (y @ W).sin() @ W
        return z.sum(1)

    return fn, calls(None, 6)[::2]


@sized()
def sizes_that_differ(x):
    if x.sum() > 0:
        x = x[:2]
    return (x @ W).softmax(-1).mean(0)


@sized(grad=True)
def sizes_that_differ_with_gradients(x):
    y = x[:2] * 2 if x.sum() > 0 else x * 3
    return (y * y).mean(0)


# ---- loops


@sized()
def a_loop(x):
    while x.abs().sum() > 1:
        x = torch.tanh(x @ W * 0.5)
    return x


@sized()
def a_loop_that_reads_other_tensors(x):
    y = x * 0
    total = y.sum()
    while total < 10:
        y = y + x.abs() @ W.abs() + 1
        total = y.sum()
    return y


@sized(numbers=(0.5, 0.25, 0.75, 0.125))
def a_loop_with_a_number(x, scale):
    while x.abs().sum() > 1:
        x = x * scale
    return x


@sized()
def a_branch_in_a_loop(x):
    while x.abs().sum() > 1:
        if x.sum() > 0:
            x = -torch.sin(x @ W) * 0.25
        else:
            x = x * 0.5
    return x


# ---- higher-order operators


@sized()
def cond(x):
    return torch.cond(x.sum() > 0, lambda x: (x @ W).sin() @ W, lambda x: x @ W, (x,))


@sized(grad=True)
def cond_with_gradients(x):
    return torch.cond(x.sum() > 0, lambda x: (x @ W).sin() @ W, lambda x: x @ W, (x,))


@sized(numbers=(0.5, 1.5, 0.25, 3.5, -1.5))
def cond_with_a_number(x, scale):
    return torch.cond(x.sum() > 0, lambda x: (x @ W).sin() * scale, lambda x: x @ W + scale, (x,))


@sized()
def while_loop_operator(x):
    def goes_on(i, x):
        return (i < 5) & (x.abs().sum() > 1)

    def step(i, x):
        return i + 1, torch.tanh(x @ W * 0.5)

    return while_loop(goes_on, step, (torch.zeros((), dtype=torch.long), x))


# ---- numbers that later code needs


def specialized(backend: str) -> Any:
    """A row whose number is symbolic where a branch reads it, and specialized afterwards."""

    def factory() -> Any:
        def fn(x, k, scale):
            if x.sum() > 0:
                y = (x @ W).sin() * k * scale
            else:
                y = (x @ W).cos() + k
            return y * [1, 2, 3, 4, 5, 6, 7, 8][k], scale

        numbers = (3, 5, 2, 7, 3)
        return fn, [(rows(n, up), k, k / 4) for n, k in zip(SIZES, numbers) for up in (True, False)]

    return program(1, later=4, backend=backend)(factory)


test_on_the_compiler = specialized("smelt")
test_operator_by_operator = specialized("eager")
