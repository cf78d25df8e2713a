"""The ten models with fixed sizes and with `dynamic=True`: what a call takes, and what the first one does.

    python -m benchmarks.dynamic_models [--only NAME] [--seconds 6] [--cpu] [--out DIR]

Each model runs in processes of its own: one for the first call of each contestant, so that none finds another's code, and
one where their calls take turns. `--cpu`: processor time of one thread, for a machine that others use as well. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks import errors, measure
from benchmarks.models import build, tensors
from benchmarks.run import NAMES
from smelt import events
from smelt.report.inspect import reasons

DYNAMIC = {"fixed": False, "dynamic": True}


def first(name: str, who: str, clock: Callable[[], float]) -> dict[str, Any]:
    """Seconds of the first call, and what the plan that it made is of."""
    module, inputs = build(name)
    seen: list[events.Event] = []
    with torch.no_grad():
        module(**inputs)
        compiled = smelt.compile(module, dynamic=DYNAMIC[who])
        with events.subscribed(seen.append):
            start = clock()
            compiled(**inputs)
            seconds = clock() - start
    plans = [e.data for e in seen if e.kind == "plan"]
    return {
        "first_s": seconds,
        "entries": sum(e.kind == "entry-installed" for e in seen),
        "kernels": sum(p["kernels"] for p in plans),
        "calls": sum(len(p["externs"]) for p in plans),
        "stages_s": {e.name: e.data["seconds"] for e in seen if e.kind == "stage"},
    }


def calls(name: str, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Seconds of a call of each contestant; whether results differ."""
    module, inputs = build(name)
    with torch.no_grad():
        made = {who: smelt.compile(module, dynamic=dynamic) for who, dynamic in DYNAMIC.items()}
        contestants = {"eager": module, **made}
        results = {who: tensors(run(**inputs)) for who, run in contestants.items()}
        for got in results.values():
            assert errors.of_lists(got, results["eager"]) < 1e-4
        runs = {who: lambda run=run: run(**inputs) for who, run in contestants.items()}
        return {
            "call_s": measure.interleaved(runs, seconds, clock=clock),
            "reasons": sum(len(reasons(f)) for f in made.values()),
        }


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All that is measured of a model."""
    flags = ["--cpu"] if options.cpu else []
    found = measure.process(
        "benchmarks.dynamic_models", name, "calls", "--seconds", str(options.seconds), *flags
    )
    firsts = {who: measure.process("benchmarks.dynamic_models", name, who, *flags) for who in DYNAMIC}
    return {"model": name, **found, **firsts}


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    if failed := [r["failed"] for r in (found, *map(found.get, DYNAMIC)) if "failed" in r]:
        return f"| {found['model']} | failed: {failed[0]} |" + " |" * 7
    call, fixed, dynamic = found["call_s"], found["fixed"], found["dynamic"]
    return (
        f"| {found['model']} | {call['eager'] * 1e3:.1f} | {call['fixed'] * 1e3:.1f} | {call['dynamic'] * 1e3:.1f} "
        f"| {call['fixed'] / call['dynamic']:.2f} | {call['eager'] / call['dynamic']:.2f} "
        f"| {fixed['first_s']:.2f} | {dynamic['first_s']:.2f} | {dynamic['first_s'] / fixed['first_s']:.2f} "
        f"| {fixed['kernels']}, {dynamic['kernels']} | {fixed['calls']}, {dynamic['calls']} |"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds of a call, speeds over the others, seconds of first calls, launches and ATen calls of the plans."""
    good = [r for r in rows if "call_s" in r]
    over = [r["call_s"]["fixed"] / r["call_s"]["dynamic"] for r in good]
    eager = [r["call_s"]["eager"] / r["call_s"]["dynamic"] for r in good]
    return "\n".join(
        [
            "| model | a call, ms: eager | fixed | dynamic | speed of dynamic over fixed | over eager "
            "| first call, s: fixed | dynamic | ratio | kernels: fixed, dynamic | ATen calls: fixed, dynamic |",
            "| --- " * 11 + "|",
            *map(line, rows),
            f"| **geomean** | | | | {measure.geomean(over):.2f} | {measure.geomean(eager):.2f} |" + " |" * 5,
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="print what one process measures, as JSON")
    parser.add_argument("what", nargs="?", choices=["calls", *DYNAMIC])
    parser.add_argument("--only", action="append", help="a model's name; may be repeated")
    parser.add_argument("--seconds", type=float, default=6.0, help="of calls that take turns")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread")
    parser.add_argument("--out", type=Path, help="a folder, for dynamic-models.md")
    return parser.parse_args()


def main() -> None:
    options = parse()
    clock = time.process_time if options.cpu else time.perf_counter
    if options.cpu:
        torch.set_num_threads(1)
    if options.model:
        one = calls(options.model, options.seconds, clock) if options.what == "calls" else None
        print(json.dumps(one or first(options.model, options.what, clock)))
        return
    rows = []
    for name in options.only or NAMES:
        rows.append(row(name, options))
        print(line(rows[-1]), file=sys.stderr, flush=True)
    facts = {"date": datetime.date.today().isoformat(), **measure.machine()}
    text = "\n\n".join(
        [
            "# The ten models with fixed sizes and with `dynamic=True`, inference, float32",
            ", ".join(f"{k}: {v}" for k, v in facts.items())
            + f". Command: `python -m benchmarks.dynamic_models{' --cpu' if options.cpu else ''}`"
            + (" (processor time of one thread)." if options.cpu else "."),
            table(rows),
        ]
    )
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "dynamic-models.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
