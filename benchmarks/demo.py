"""`make demo`: what smelt does, on real models, beside eager and torch.compile.

First the example of the documents that smelt was written from: `f(x, mod)`, whose compiled entries grow from none to two
as modules of classes A and B come along; their guards and compiled source are printed. Then BERT, ResNet-18 and a small
Llama with random weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from torch import nn

import smelt
from smelt import events
from smelt.report.inspect import entries

NAMES = ["BERT, 4 layers", "ResNet-18", "Llama, 2 layers of 256"]


class A(nn.Module):
    def forward(self, x):
        return torch.exp(2 * x)


class B(nn.Module):
    def forward(self, x):
        return torch.exp(-x)


def f(x, mod):
    y = mod(x)
    z = torch.log(y)
    return z


def first_example(console: Console) -> None:
    compiled = smelt.compile(f)
    x = torch.randn(5, 5, 5)
    console.print(f"compiled entries before any call: {len(entries(compiled))}")
    for mod in (A(), A(), B()):
        start = time.perf_counter()
        got = compiled(x, mod)
        milliseconds = (time.perf_counter() - start) * 1e3
        torch.testing.assert_close(got, f(x, mod))
        console.print(
            f"f(x, {type(mod).__name__}()): {milliseconds:.2f} ms, right; entries: {len(entries(compiled))}"
        )
    for number, entry in enumerate(entries(compiled)):
        console.rule(f"entry {number}: guards", align="left")
        console.print(entry.guards, highlight=False, markup=False)
        console.rule("compiled frame", align="left")
        console.print(Syntax(entry.source, "python", background_color="default"))


def measured(name: str) -> dict[str, Any]:
    """The figures of one model, from a process of its own (benchmarks/one_model.py); says every 15 seconds that it runs."""
    print(f"measuring {name} ...", flush=True)
    command = [sys.executable, "-m", "benchmarks.one_model", name]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                out, err = process.communicate(timeout=15)
                break
            except subprocess.TimeoutExpired:
                print(f"   ... {time.perf_counter() - start:.0f} s", flush=True)
    if process.returncode:
        sys.exit(f"{name} failed:\n{err[-4000:]}")
    return json.loads(out.strip().splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table(title="inference, float32, random weights")
    for heading in (
        "model",
        "",
        "first call",
        "per call",
        "over eager",
        "graphs",
        "kernels",
        "largest error",
    ):
        result.add_column(heading, justify="left" if heading in ("model", "") else "right")
    for row in rows:
        for who in ("eager", "torch.compile", "smelt"):
            result.add_row(
                row["model"] if who == "eager" else "",
                who,
                f"{row['first_s'][who]:.2f} s",
                f"{row['call_s'][who] * 1e3:.2f} ms",
                f"{row['call_s']['eager'] / row['call_s'][who]:.2f}×",
                str(row["graphs"].get(who, "")),
                str(row["kernels"].get(who, "")),
                f"{row['error'][who]:.1e}" if who in row["error"] else "",
            )
        result.add_section()
    return result


def main() -> None:
    console = Console(width=140)
    with console.status("compiling") as status, torch.no_grad():

        def show(event: events.Event) -> None:
            if event.kind == "stage":
                status.update(event.name)

        with events.subscribed(show):
            first_example(console)
    rows = []
    for name in NAMES:
        with console.status(f"{name}: eager, torch.compile (this takes a while), smelt ..."):
            rows.append(measured(name))
    console.print(table(rows))


if __name__ == "__main__":
    main()
