"""What sizes that change cost at a call: the guards, and the call, with symbolic sizes beside fixed ones.

    python -m benchmarks.size_guards [--out DIR]

`x + 1`, and sums of several tensors whose sizes must be equal. Best of many short rounds, interleaved, one thread,
microseconds. Writes size-guards.md.
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
from smelt.report.inspect import entries

INPUTS = (2, 10, 20, 50)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def total(*tensors: torch.Tensor) -> torch.Tensor:
    found = tensors[0]
    for tensor in tensors[1:]:
        found = found + tensor
    return found


def row(name: str, fn: Callable[..., Any], *args: torch.Tensor) -> str:
    """A line of the table."""
    compiled = {
        which: smelt.compile(fn, fullgraph=True, dynamic=which == "symbolic")
        for which in ("fixed", "symbolic")
    }
    for call in compiled.values():
        call(*args)
    slots = args if fn is add_one else (args,)
    trees = {which: entries(call)[-1].tree for which, call in compiled.items()}
    calls = {which: lambda call=call: call(*args) for which, call in compiled.items()}
    checks = {which: lambda tree=tree: tree.check(*slots) for which, tree in trees.items()}
    guards = measure.per_call(checks, calls=200, rounds=600)
    whole = measure.per_call(calls, calls=200, rounds=600)
    return (
        f"| {name} | {guards['fixed']:.3f} | {guards['symbolic']:.3f} | {guards['symbolic'] / guards['fixed']:.2f} | "
        f"{whole['fixed']:.3f} | {whole['symbolic']:.3f} | {whole['symbolic'] - whole['fixed']:+.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = measure.machine()
    lines = [
        "# Sizes that change: guards and calls, microseconds",
        "",
        f"{datetime.date.today()}, {facts['cpu']}, torch {facts['torch']}, Python {facts['python']}; "
        "`python -m benchmarks.size_guards`.",
        "",
        "| | guards, fixed sizes | symbolic | ratio | a call, fixed sizes | symbolic | difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    with torch.no_grad():
        lines.append(row("`x + 1`, 8 elements", add_one, torch.randn(8)))
        lines.append(row("`x + 1`, 4×8", add_one, torch.randn(4, 8)))
        lines += [row(f"sum of {n} of 4×8", total, *(torch.randn(4, 8) for _ in range(n))) for n in INPUTS]
    lines.append(row("`x + 1`, 8 elements, requires_grad", add_one, torch.randn(8, requires_grad=True)))
    print("\n".join(lines))
    (options.out / "size-guards.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
