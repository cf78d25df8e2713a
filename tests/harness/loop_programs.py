"""Rows for programs with a loop that a tensor ends."""

from __future__ import annotations

from typing import Any

import torch

from tests.harness.catalogue import program

UP = torch.arange(24.0).reshape(4, 6) / 100 + 0.5
BREAK = ["data-dependent-condition"]


def loop(graphs: int = 1, grad: bool = False, **numbers: Any) -> Any:
    """A row for a function of one tensor, whose values decide how many steps are made."""

    def decorate(fn: Any) -> Any:
        def factory() -> Any:
            inputs = (UP, -UP, UP * 30, UP * 0.01, UP)
            return fn, [(x.clone().requires_grad_(grad),) for x in inputs]

        factory.__name__, factory.__module__ = fn.__name__, fn.__module__
        return program(graphs, **numbers)(factory)

    return decorate
