"""What a call costs the host on a GPU, in microseconds, until it has asked for the work.

    python -m benchmarks.gpu.overhead [--contestants eager,torch.compile,smelt] [--out DIR]

Writes overhead.json and .md: calls of small programs, launch costs, which are the slope over the number of kernels, and the
parts of a call (`launches.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu import contestants, device, launches, timing
from benchmarks.per_call import add_one, deep_mlp
from benchmarks.run import write

KERNELS = (1, 4, 16)  # of the programs whose slope is the cost of a launch
Row = dict[str, float]


def _step(run: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    return partial(_backward, run, *given)


def _backward(run: Callable[..., Any], *given: Any) -> None:
    run(*given).backward(gradient=given[0])


def chain(x: torch.Tensor) -> torch.Tensor:
    """Eager launches five kernels; a compiler one."""
    return (((x + 1) * 2).relu() - 3).sigmoid()


def products(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """`count` matrix products, each of what the one before it gave."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x @ x
        return x

    return fn


def reductions(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """`count` kernels that cannot be joined: each sums all that the one before it gave, and adds it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x + x.sum(0) + x.t().sum(0)
        return x

    return fn


# What is called, of a program and its arguments; the program; its arguments; whether gradients are asked for.
Programs = dict[str, tuple[Callable[..., Callable[[], Any]], Callable[..., Any], tuple[Any, ...], bool]]


def programs() -> Programs:
    """By name. Without gradients they are off around all calls: to turn them off for each costs as much as a call."""
    x = torch.randn(8, device="cuda")
    square = torch.randn(16, 16, device="cuda") / 4
    leaf = torch.randn(8, device="cuda", requires_grad=True)
    mlp = deep_mlp().cuda()
    small = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)).cuda()
    found: Programs = {
        "x + 1, 8 elements": (partial, add_one, (x,), False),
        "x + 1, requires_grad, forward": (partial, add_one, (leaf,), True),
        "x + 1, forward and backward": (_step, add_one, (leaf,), True),
        "five operators on 8 elements": (partial, chain, (x,), False),
        "linear, gelu, layer norm": (partial, small, (square,), False),
        "100-layer MLP of 4×4": (partial, mlp, (torch.randn(2, 4, device="cuda"),), False),
    }
    found |= {f"{n} products of 16×16": (partial, products(n), (square,), False) for n in KERNELS}
    return found | {f"{n} sums of 16×16": (partial, reductions(n), (square / 16,), False) for n in KERNELS}


def measured(who: list[str]) -> dict[str, Row]:
    """Microseconds per call, by program and contestant."""
    found = {}
    for name, (how, fn, given, gradients) in programs().items():
        calls = {w: how(contestants.made(w, fn), *given) for w in who}
        count = 20 if "layer" in name else 50 if name[:2] == "16" else 300
        with torch.set_grad_enabled(gradients):
            found[name] = timing.host_microseconds(calls, count)
    return found


def slopes(rows: dict[str, Row]) -> dict[str, Row]:
    """What one more product, or sum, adds to a call."""
    least, most = KERNELS[0], KERNELS[-1]
    return {
        f"one more of the {what}": {
            who: (rows[f"{most} {what}"][who] - first) / (most - least)
            for who, first in rows[f"{least} {what}"].items()
        }
        for what in ("products of 16×16", "sums of 16×16")
    }


def table(rows: dict[str, Row], who: list[str]) -> str:
    """Markdown."""
    lines = [f"| microseconds of the host per call | {' | '.join(who)} |", "| --- " * (len(who) + 1) + "|"]
    return "\n".join(
        lines + [f"| {name} | {' | '.join(f'{row[w]:.1f}' for w in who)} |" for name, row in rows.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contestants", type=contestants.names, default=list(contestants.USUAL))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    options = parser.parse_args()
    device.ready()
    contestants.prepare(options.contestants)
    rows = measured(options.contestants)
    rows |= slopes(rows)
    facts = device.facts("benchmarks.gpu.overhead")
    said = ", ".join(f"{k}: {v}" for k, v in facts.items())
    text = f"# The cost of a call on a GPU\n\n{said}.\n\n{table(rows, options.contestants)}"
    parts = {}
    if "smelt" in options.contestants:
        with torch.no_grad():
            parts = timing.host_microseconds(launches.parts())
        text += "\n\n" + table({name: {"host": us} for name, us in parts.items()}, ["host"])
    write(options.out / "overhead.json", {"facts": facts, "rows": rows, "parts": parts}, text)
    print(text)


if __name__ == "__main__":
    main()
