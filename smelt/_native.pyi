from collections.abc import Callable
from typing import Any

import torch

class Plan:
    """See smelt/native/plan.cpp. `spec` is what `smelt.plan.steps.Plan.to_native` builds."""

    arena_bytes: int
    idle_bytes: int
    def __init__(self, spec: tuple[Any, ...]) -> None: ...
    def __call__(self, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]: ...
    def release(self) -> int: ...

class Differentiable:
    """See smelt/native/autograd/autograd.cpp; `help(Differentiable)` says what `spec` holds."""

    forward: Callable[[tuple[Any, ...]], Any] | None
    backwards: dict[tuple[Any, ...], Callable[[tuple[Any, ...]], Any]]
    def __init__(self, spec: dict[str, Any]) -> None: ...
    def __call__(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]: ...

def __getattr__(name: str) -> Any: ...
