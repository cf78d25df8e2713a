"""An assignment to the `data` of a result before the backward. Eager's operators read the new data where they saved the
tensor as their input, the old data where they saved it as their result, or a view of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.harness.agreement import same

Program = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def squared(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y, y * y


def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x @ w).relu()
    return y, y @ w


def recomputed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + w
    return y, y.sin().cos()


def detached(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.detach() * 2
    return y, (y * w).sin()


def detached_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.detach() * 2
    return y, y.view(16) * w.view(16)


def custom(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = Exp.apply(x)
    return y, y * y


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0]


# Eager's nodes read old data only: they save the result as theirs, or a view of it.
OLD: tuple[Program, ...] = (
    lambda x, w: ((y := x.exp()), y.sum()),
    lambda x, w: ((y := (x @ w).tanh()), y * 2),
    lambda x, w: ((y := x.relu()), y + w),
    lambda x, w: ((y := torch.sigmoid(x @ w)), y.mean()),
    lambda x, w: ((y := x.cumsum(0).exp()), y[1:].sum()),
    lambda x, w: ((y := x + w), y.view(16).sin()),
)
# They read new data only: other operators save the result as their input.
NEW: tuple[Program, ...] = (
    lambda x, w: ((y := x @ w), y @ w),
    lambda x, w: ((y := x + w), y @ w),
    lambda x, w: ((y := x * w), y.sin()),
    lambda x, w: ((y := F.layer_norm(x, (4,), eps=1.0)), y @ w),
    lambda x, w: ((y := x @ w), (y * y).sum()),
)


def _gradients(
    f: Program, change: Callable[[torch.Tensor], object], result: int
) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    leaves = [torch.rand(4, 4).add(0.5).requires_grad_() for _ in range(2)]
    results = f(leaves[0], leaves[1])
    change(results[0])
    results[result].sum().backward()
    return [leaf.grad for leaf in leaves]


def _assign(y: torch.Tensor) -> None:
    y.data = torch.full_like(y, 3)


def _assign_columns(y: torch.Tensor) -> None:
    y.data = torch.arange(16.0).view(4, 4).t()


@pytest.mark.parametrize("f", [squared, product, recomputed, custom])
def test_reading_a_result_with_old_and_new_data_raises(f: Program) -> None:
    compiled = smelt.compile(f)
    with pytest.raises(RuntimeError, match="to whose `data` the program has assigned"):
        _gradients(compiled, _assign, 1)
    same(_gradients(compiled, lambda y: None, 1), _gradients(f, lambda y: None, 1))


@pytest.mark.parametrize("f", [*OLD, *NEW, detached, detached_view])
@pytest.mark.parametrize("change", [_assign, _assign_columns])
def test_the_backward_reads_the_data_that_eager_reads(
    f: Program, change: Callable[[torch.Tensor], object]
) -> None:
    compiled = smelt.compile(f)
    for result in (1,) if f in (detached, detached_view) else (1, 0, 1):
        same(_gradients(compiled, change, result), _gradients(f, change, result))


@pytest.mark.parametrize("f", [squared, product, recomputed])
def test_the_result_with_new_data_is_differentiated(f: Program) -> None:
    same(_gradients(smelt.compile(f), _assign, 0), _gradients(f, _assign, 0))


@pytest.mark.parametrize("f", [squared, product])
@pytest.mark.parametrize("result", [0, 1])
def test_writes_through_data_are_read(f: Program, result: int) -> None:
    def write(y: torch.Tensor) -> None:
        y.data.mul_(5)

    same(_gradients(smelt.compile(f), write, result), _gradients(f, write, result))


def test_results_die_with_the_last_reference() -> None:
    compiled = smelt.compile(squared)

    def call() -> list[weakref.ref[torch.Tensor]]:
        x, w = (torch.rand(4, 4).requires_grad_() for _ in range(2))
        return [weakref.ref(result) for result in compiled(x, w)]

    gc.disable()
    try:
        assert [reference() for reference in call()] == [None, None]
    finally:
        gc.enable()
