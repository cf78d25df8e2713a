"""What one call costs, in microseconds, one thread: prints one line of JSON."""

from __future__ import annotations

import json

import torch
from torch import nn

import smelt
from benchmarks import measure


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def deep_mlp(layers: int = 100, width: int = 4) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).eval()


def contestants(fn, *args):  # type: ignore[no-untyped-def]
    ours, theirs = smelt.compile(fn, fullgraph=True), torch.compile(fn)
    return {"eager": lambda: fn(*args), "torch.compile": lambda: theirs(*args), "smelt": lambda: ours(*args)}


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = {
            "x + 1, 8 elements": measure.per_call(contestants(add_one, torch.randn(8))),
            "100-layer MLP of 4×4": measure.per_call(contestants(deep_mlp(), torch.randn(2, 4)), calls=100),
        }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
