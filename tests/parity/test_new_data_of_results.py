"""An assignment to the `data` of a result before the backward. Eager's operators read the new data where they saved the
tensor as their input, the old data where they saved it as their result."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

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


@pytest.mark.parametrize("f", [squared, product, recomputed, detached])
def test_reading_a_result_with_new_data_raises(f: Program) -> None:
    compiled = smelt.compile(f)
    with pytest.raises(RuntimeError, match="to whose `data` the program has assigned"):
        _gradients(compiled, _assign, 1)
    same(_gradients(compiled, lambda y: None, 1), _gradients(f, lambda y: None, 1))


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
