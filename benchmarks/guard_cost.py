"""What guards and the entry cost per call, without the graph: a deep MLP under a backend whose graph does nothing.

    python -m benchmarks.guard_cost [--out DIR]

Both compilers get a backend that returns the same ready tensor at every call, so that all that is left of a call is finding
the entry, checking its guards and handing over the inputs. Best of interleaved rounds, one thread, microseconds.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks import measure
from benchmarks.per_call import deep_mlp

LAYERS = (100, 200, 400)


def _nothing(result: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    return lambda graph, examples: lambda *inputs: result


def cost(layers: int) -> dict[str, float]:
    """Microseconds per call of each compiler, and of one call of the function that stands in for the graph."""
    model, x = deep_mlp(layers), torch.randn(2, 4)
    result = (model(x),)
    torch._dynamo.reset()
    ours = smelt.compile(model, backend=_nothing(result), fullgraph=True)
    theirs = torch.compile(model, backend=_nothing(result), fullgraph=True)
    calls = {"torch.compile": lambda: theirs(x), "smelt": lambda: ours(x)}
    return measure.per_call(calls, calls=200)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = measure.machine()
    lines = [
        "# Guards and entry, microseconds per call",
        "",
        f"{datetime.date.today()}, {facts['cpu']}, torch {facts['torch']}, Python {facts['python']}; "
        "`python -m benchmarks.guard_cost`.",
        "MLP of 4×4 layers, a backend whose graph does nothing.",
        "",
        "| layers | torch.compile | smelt | ratio |",
        "| --- | --- | --- | --- |",
    ]
    with torch.no_grad():
        for layers in LAYERS:
            row = cost(layers)
            theirs, ours = row["torch.compile"], row["smelt"]
            lines.append(f"| {layers} | {theirs:.1f} | {ours:.1f} | {theirs / ours:.1f}× |")
            print(lines[-1], flush=True)
    Path(args.out, "guards.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
