"""Programs with branches and loops that tensors decide: eager, torch.compile, smelt with graph breaks there, and smelt.

    python -m benchmarks.branches [--out DIR] [--threads N] [PROGRAM ...]

The inputs alternate, so that conditions take both values, and results are compared with eager's. The table gives
microseconds per call and what capture gains over breaks.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.measure import machine, per_call
from smelt.report import inspect

RESULTS = Path(__file__).parent / "results"
PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def scaled(x):
    if x.mean() > 0.5:
        x = x / 1.1
    return x * 2


@program
def sign_of_the_sum(x):
    y = x / (x.abs() + 1)
    if x.sum() < 0:
        x = x * -1
    return x * y


@program
def early_return(x):
    if x.sum() > 0:
        return (x + 1).sin()
    return (x - 1).cos()


@program
def three_ways(x):
    if x.sum() > 3:
        return x * 2
    if x.min() < -1:
        return x.abs().sqrt()
    return x + 7


@program
def overflow_is_clamped(x):
    for _ in range(4):
        x = x * 1.01
        if torch.isinf(x).any() or torch.isnan(x).any():
            x = x.clamp(-1e3, 1e3)
    return x


@program
def products_or_none(x):
    if x.sum() > 0:
        return (x @ x.T).softmax(-1) @ x
    return x


@program
def one_of_two_products(x):
    if x.sum() > 0:
        y = (x @ x.T).softmax(-1)
    else:
        y = torch.relu(x @ x.T)
    return y @ x


@program
def layers_until_small(x):
    for _ in range(6):
        x = torch.tanh(x @ WEIGHT)
        if x.abs().max() < 0.5:
            break
    return x


@program
def adaptive_steps(x):
    step = torch.full((), 0.1)
    for _ in range(4):
        change = torch.sin(x) * step
        if change.abs().max() > 0.05:
            step = step * 0.5
        else:
            x = x + change
    return x


@program
def newtons_method(x):
    a = x.abs() + 1
    y = a
    while (y * y - a).abs().max() > 1e-3:
        y = 0.5 * (y + a / y)
    return y


@program
def power_iteration(x):
    matrix, v = x @ x.T, x.sum(1)
    v = v / v.norm()
    change = v.norm()
    while change > 0.05:
        w = matrix @ v
        w = w / w.norm()
        change = (w - v).norm()
        v = w
    return v


@program
def counting(x):
    n = 0
    for row in x.unbind()[:6]:
        if row.sum() > 0:
            n = n + 1
    return x * n


@program
def flags(x):
    seen = False
    if x.max() > 3:
        seen = True
    y = x.sin()
    if seen:
        y = y + 1
    return y


@program
def collected(x):
    out = []
    for row in x.unbind()[:4]:
        if row.sum() > 0:
            out.append(row * 2)
        else:
            out.append(row - 1)
    return torch.stack(out)


@program
def masked_store(x):
    y = x.clone()
    if (y < 0).any():
        y[y < 0] = 0
    return y


@program
def normalized_if_large(x):
    norm = x.norm()
    if norm > 1:
        x = x / norm
    return x


@program
def ternaries(x):
    a = x.sin() if x.sum() > 0 else x.cos()
    b = a * 2 if a.sum() > 0 else a * 3
    return b + 1


@program
def guarded_logarithm(x):
    if (x > 0).all():
        return x.log()
    return x.abs().log1p()


@program
def routed_layers(x):
    if x.sum() > 0:
        return torch.relu(x @ WEIGHT) @ WEIGHT
    return x @ WEIGHT


@program
def rejected_update(x):
    best, value = x, (x * x).sum()
    for k in range(4):
        trial = best - 0.1 * (k + 1) * best.sign()
        new = (trial * trial).sum()
        if new < value:
            best, value = trial, new
    return best


torch.manual_seed(0)
WEIGHT = torch.randn(64, 64) / 10


def compare(fn: Callable[..., Any]) -> tuple[dict[str, float], int]:
    """Microseconds per call of each contestant, and the graphs of smelt. Raises AssertionError for another result."""
    inputs = [torch.randn(64, 64).abs(), -torch.randn(64, 64).abs()]
    compiled = {
        "eager": fn,
        "torch.compile": torch.compile(fn),
        "smelt, breaks": smelt.compile(fn, options={"control_flow": "break"}),
        "smelt": smelt.compile(fn),
    }
    with torch.no_grad():
        for name, run in compiled.items():
            for x in (*inputs, *inputs):
                torch.testing.assert_close(run(x), fn(x), rtol=1e-3, atol=1e-3, msg=name)

        def alternating(run: Callable[..., Any]) -> Callable[[], Any]:
            held: list[Any] = [None]

            def call() -> None:
                for x in inputs:
                    held[0] = run(x)

            return call

        times = per_call({name: alternating(run) for name, run in compiled.items()}, calls=50, rounds=15)
    return {name: t / 2 for name, t in times.items()}, inspect.graph_count(compiled["smelt"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines, gains, over_eager = [], [], []
    for name in arguments.programs or PROGRAMS:
        torch.compiler.reset(), smelt.reset()
        times, graphs = compare(PROGRAMS[name])
        gains.append(times["smelt, breaks"] / times["smelt"])
        over_eager.append(times["eager"] / times["smelt"])
        cells = " | ".join(f"{t:.1f}" for t in times.values())
        lines.append(f"| {name} | {cells} | {graphs} | {gains[-1]:.2f} |")
        print(lines[-1], flush=True)
    means = [statistics.geometric_mean(values) for values in (gains, over_eager)]
    summary = f"Geometric means: {means[0]:.2f} over breaks, {means[1]:.2f} over eager; least over breaks {min(gains):.2f}."
    print(summary)
    cpu = machine()["cpu"]
    head = [
        "# Branches and loops that tensors decide",
        "",
        f"{datetime.date.today()}, smelt {smelt.__version__}, torch {torch.__version__}, CPython "
        f"{platform.python_version()}, {cpu}, {arguments.threads} threads: µs per call, float32, 64×64, "
        "inference. "
        "Written by `python -m benchmarks.branches`.",
        "",
        "| program | eager | torch.compile | smelt, breaks | smelt | graphs | gain over breaks |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    if not arguments.programs:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "branches.md").write_text(
            "\n".join([*head, *lines, "", summary, ""]), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
