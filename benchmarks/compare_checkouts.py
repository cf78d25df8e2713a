"""Two checkouts of smelt beside each other: what a change did to first calls, calls and steps.

    python -m benchmarks.compare_checkouts OTHER [--device cuda] [--repeats 3] [--seconds 2] [--only MODEL] [--out FILE]

OTHER is a checkout of the commit before, its extension built in place (`python setup.py build_ext --inplace`). Each figure
comes from a process of its own; the checkouts take turns, and the smallest of the repeats counts. The benchmarks of this
checkout are run against both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import measure

HERE = Path(__file__).parent.parent
FIGURES = {
    "call_first": "first call, s",
    "call": "call, ms",
    "step_first": "first step, s",
    "step": "step, ms",
}
SCALE = {"call_first": 1.0, "call": 1e3, "step_first": 1.0, "step": 1e3}
SMALL = "x + 1, 8 elements"


# ------------------------------------------------------------------------------------- in the process that measures


def measure_model(name: str, seconds: float, device: str) -> dict[str, float]:
    """First call and calls without gradients, first step and steps with them, in seconds."""
    import torch

    import smelt
    from benchmarks.one_training import Training

    training = Training(name)
    training.to(device)
    module, inputs = training.module.eval(), training.inputs

    def run(call: Any) -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    with torch.no_grad():
        run(lambda: module(**inputs))
        ours = smelt.compile(module, fullgraph=True)
        call_first = _timed(lambda: run(lambda: ours(**inputs)))
        call = measure.interleaved({"smelt": lambda: run(lambda: ours(**inputs))}, seconds)["smelt"]
    module.train()
    run(lambda: training.step(module))
    trained = smelt.compile(module, fullgraph=True)
    step_first = _timed(lambda: run(lambda: training.step(trained)))
    step = measure.interleaved({"smelt": lambda: run(lambda: training.step(trained))}, seconds)["smelt"]
    return {"call_first": call_first, "call": call, "step_first": step_first, "step": step}


def measure_small() -> dict[str, float]:
    """The very first call of a process, and calls of a function of one operator, one thread."""
    import torch

    import smelt

    torch.set_num_threads(1)
    x = torch.randn(8)
    ours = smelt.compile(lambda x: x + 1)
    with torch.no_grad():
        first = _timed(lambda: ours(x))
        call = measure.per_call({"smelt": lambda: ours(x)})["smelt"] * 1e-6
    wanted = torch.randn(8, requires_grad=True)
    node = smelt.compile(lambda x: x + 1)
    step_first = _timed(lambda: node(wanted).sum().backward())
    step = measure.per_call({"smelt": lambda: node(wanted).sum().backward()})["smelt"] * 1e-6
    return {"call_first": first, "call": call, "step_first": step_first, "step": step}


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --------------------------------------------------------------------------------------------------- side by side


def run(checkout: Path, name: str, seconds: float, device: str) -> dict[str, float]:
    """The figures of one model in a process that imports smelt from `checkout` and benchmarks from here."""
    with tempfile.TemporaryDirectory() as folder:
        for package, source in (("smelt", checkout), ("benchmarks", HERE)):
            os.symlink(source.resolve() / package, Path(folder, package))
        command = [
            sys.executable,
            "-m",
            "benchmarks.compare_checkouts",
            "--measure",
            name,
            "--seconds",
            str(seconds),
            "--device",
            device,
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} in {checkout} failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compared(
    other: Path, name: str, repeats: int, seconds: float, device: str
) -> dict[str, tuple[float, float]]:
    """By figure: before and after."""
    best: list[dict[str, float]] = [{}, {}]
    for _ in range(repeats):
        for at, checkout in enumerate((other, HERE)):
            for key, value in run(checkout, name, seconds, device).items():
                best[at][key] = min(value, best[at].get(key, value))
    return {key: (best[0][key], best[1][key]) for key in FIGURES}


def table(rows: dict[str, dict[str, tuple[float, float]]]) -> Iterator[str]:
    """Markdown: before, after and their ratio for each figure."""
    heads = [f"{text}: before | after | ratio" for text in FIGURES.values()]
    yield f"| model | {' | '.join(heads)} |"
    yield "| --- |" + " --- |" * (3 * len(FIGURES))
    for name, figures in rows.items():
        cells = []
        for key, (before, after) in figures.items():
            scale = SCALE[key] * (1e3 if name == SMALL else 1.0)
            cells.append(f"{before * scale:.3g} | {after * scale:.3g} | {after / before:.2f}")
        yield f"| {name}{' (in ms, us)' if name == SMALL else ''} | {' | '.join(cells)} |"
    means = [measure.geomean([f[key][1] / f[key][0] for f in rows.values()]) for key in FIGURES]
    yield "| **geomean** | " + " | ".join(f" |  | {m:.2f}" for m in means) + " |"


def main() -> None:
    from benchmarks.models import MODELS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "other", type=Path, nargs="?", help="the other checkout, with its extension built in place"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each steady figure")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", action="append", help="a model's name; may be repeated")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a file for the table")
    options = parser.parse_args()
    if options.measure:
        found = (
            measure_small()
            if options.measure == SMALL
            else measure_model(options.measure, options.seconds, options.device)
        )
        print(json.dumps(found))
        return
    if options.other is None:
        parser.error("which checkout to compare with?")
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for name in options.only or ([SMALL] if options.device == "cpu" else []) + [*MODELS]:
        rows[name] = compared(options.other, name, options.repeats, options.seconds, options.device)
        print(name, {k: f"{b / a:.2f}" for k, (a, b) in rows[name].items()}, flush=True)
    host = measure.machine()
    where = f"{host['cpu']}, {host['threads']} threads, torch {host['torch']}, Python {host['python']}"
    text = "\n".join(
        (
            f"{date.today()}, {where}; `python -m benchmarks.compare_checkouts OTHER --device {options.device}`\n",
            *table(rows),
        )
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
