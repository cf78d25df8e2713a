"""Plans of the ten models and of their backwards through bytes: what they compute, bit for bit, and how large they are.

    python -m benchmarks.sweep_plans [--only MODEL] [--out FOLDER]

Each model runs twice, in evaluation and one training step: once as it is compiled, once with every plan written as in a
program's file and loaded from there.
"""

from __future__ import annotations

import argparse
import copy
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from benchmarks import measure
from benchmarks.models import MODELS, build, tensors
from smelt import _native
from smelt.plan.serialization import packed, plans_to_bytes
from smelt.plan.steps import Plan
from smelt.targets import cpu


def results(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """What the compiled model computes in evaluation and in training, and the gradients of a mean of squares."""
    torch.manual_seed(1)  # for dropout
    with torch.no_grad():
        found = tensors(smelt.compile(model.eval(), fullgraph=True)(**inputs))
    out = [t for t in tensors(smelt.compile(model.train(), fullgraph=True)(**inputs)) if t.requires_grad]
    loss: Any = sum(t.square().mean() for t in out)
    model.zero_grad()
    loss.backward()
    return found + [t.detach() for t in out] + [p.grad for p in model.parameters() if p.grad is not None]


def journey(plan: Plan) -> tuple[_native.Plan, int]:
    """The plan as a program's file would have it, loaded from there, and the size of plan and machine code in the file."""
    code, [data] = plans_to_bytes([plan])
    sections = packed(code), packed(data)
    native = _native.ProgramPlans(sections[0], ((sections[1], plan.constants),)).at(())
    assert native is not None
    return native, sum(map(len, sections))


def through_bytes(model: nn.Module, inputs: dict[str, Any]) -> tuple[list[torch.Tensor], list[int]]:
    """`results` with plans that were read from bytes, and how many bytes each of them had."""
    sizes: list[int] = []

    def load(plan: Plan) -> Any:
        native, size = journey(plan)
        sizes.append(size)
        return native

    before, cpu.load = cpu.load, load
    try:
        return results(model, inputs), sizes
    finally:
        cpu.load = before


def row(name: str) -> str:
    module, inputs = build(name)
    want = results(copy.deepcopy(module), inputs)
    got, sizes = through_bytes(module, inputs)
    same = len(want) == len(got) and all(torch.equal(w, g) for w, g in zip(want, got))
    listed = ", ".join(f"{size / 1024:.0f}" for size in sizes)
    return f"| {name} | {len(sizes)} | {listed} | {len(want)} | {'equal' if same else '**differ**'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="a model's name; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    host = measure.machine()
    where = f"{date.today()}, {host['cpu']}, torch {host['torch']}, Python {host['python']}"
    lines = ["# Plans through bytes", "", f"{where}; `python -m benchmarks.sweep_plans`.", ""]
    lines += ["| model | plans | KiB each | tensors compared | |", "| --- | --- | --- | --- | --- |"]
    for name in options.only or MODELS:
        lines.append(row(name))
        print(lines[-1], flush=True)
    if not options.only:
        (options.out / "plans.md").write_text("\n".join(lines) + "\n")
    return int(any("differ" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
