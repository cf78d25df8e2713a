"""What one call costs, in microseconds, one thread: prints one line of JSON.

python -m benchmarks.per_call [training]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt
from benchmarks import measure


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def deep_mlp(layers: int = 100, width: int = 4) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).eval()


def scaled_cosines(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """An activation that is chosen by the values: a graph before the condition, a graph after it."""
    x, y = inputs["x"], inputs["y"]
    x = x.cos().cos()
    if x.mean() > 0.5:
        x = x / 1.1
    return x * y


def contestants(fn: Any, *args: Any, fullgraph: bool = True) -> dict[str, Callable[[], Any]]:
    ours, theirs = smelt.compile(fn, fullgraph=fullgraph), torch.compile(fn)
    return {"eager": lambda: fn(*args), "torch.compile": lambda: theirs(*args), "smelt": lambda: ours(*args)}


def with_backward(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    return {who: lambda call=call: call().sum().backward() for who, call in calls.items()}


@torch.no_grad()
def inference() -> dict[str, dict[str, float]]:
    return {
        "x + 1, 8 elements": measure.per_call(contestants(add_one, torch.randn(8))),
        "100-layer MLP of 4×4": measure.per_call(contestants(deep_mlp(), torch.randn(2, 4)), calls=100),
    }


def training() -> dict[str, dict[str, float]]:
    """Forward calls that record for a backward, and whole steps."""
    x = torch.randn(8, requires_grad=True)
    inputs = {name: torch.randn(10, requires_grad=True) for name in "xy"}
    add, cosines = contestants(add_one, x), contestants(scaled_cosines, inputs, fullgraph=False)
    mlp = contestants(deep_mlp(), torch.randn(2, 4))
    return {
        "x + 1, 8 elements, requires_grad, forward": measure.per_call(add),
        "x + 1, forward and backward": measure.per_call(with_backward(add)),
        "cos().cos() / if mean, requires_grad, forward": measure.per_call(cosines),
        "cos().cos() / if mean, forward and backward": measure.per_call(with_backward(cosines)),
        "100-layer MLP of 4×4, forward and backward": measure.per_call(with_backward(mlp), calls=100),
    }


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(training() if "training" in sys.argv else inference()))


if __name__ == "__main__":
    main()
