"""Rows of the catalogue for programs with branches that tensors decide, and a model whose layers they use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tests.harness.catalogue import program

UP = torch.arange(24.0).reshape(4, 6) / 7 + 0.5
DOWN, MIXED, ZERO = -UP, UP - 2, UP * 0
INPUTS = (UP, DOWN, MIXED, DOWN * 3, UP * 3)


def branch(
    graphs: int = 1,
    grad: bool = False,
    inputs: Sequence[torch.Tensor] = (UP, DOWN, MIXED, ZERO, UP),
    **numbers: Any,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A row for a function of one tensor, whose values change their minds from call to call."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(fn)
        def factory() -> Any:
            return fn, [(x.clone().requires_grad_(grad),) for x in inputs]

        del factory.__wrapped__  # type: ignore[attr-defined]
        return program(graphs, **numbers)(factory)

    return decorate


class Model(nn.Module):
    """Parameters `w1` to `w3` of six by six, and `bias`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.randn(6, 6) / 3) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(6))
        self.fn = fn

    def forward(self, x: torch.Tensor) -> Any:
        """The function of the model and `x`."""
        return self.fn(self, x)


def trained(graphs: int = 1, **numbers: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A row for a function of a `Model` and a tensor; the gradients of all calls accumulate and are compared."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., None]:
        def factory() -> Any:
            model = Model(fn)
            return model, [(x.clone(),) for x in INPUTS], lambda: [p.grad for p in model.parameters()]

        factory.__name__, factory.__module__ = fn.__name__, fn.__module__
        return program(graphs, **numbers)(factory)

    return decorate


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    """Copies of the gradients of the parameters."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """The same tensors are None, and the others are close."""
    assert [x is None for x in found] == [x is None for x in wanted]
    torch.testing.assert_close([x for x in found if x is not None], [x for x in wanted if x is not None])
