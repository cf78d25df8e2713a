"""`make bench`: the ten models (first call, steady state), the first call of a process, the cost of a call.

    python -m benchmarks.run [--only NAME] [--no-rivals] [--out DIR]

Writes one JSON and one Markdown file. Each model runs in a process of its own, one after the other, on an otherwise idle
machine. Nothing is asserted. `--only`
measures some models again and replaces their rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import CACHES

NAMES = [
    "BERT, 4 layers",
    "GPT-2, 4 layers",
    "Llama, 4 layers of 512",
    "T5, 2 layers",
    "ResNet-50",
    "ViT-tiny",
    "ConvNeXt-atto",
    "Swin-tiny",
    "MobileNetV3-L",
    "Mixer-S/32",
]


WARM = "torch.compile, warm caches"
NO_ERROR = dict.fromkeys(("eager", "torch.compile", "smelt"), math.nan)
WARM_NOTE = "Warm caches: a fresh process of torch.compile finds what the one before it left on disk; smelt keeps nothing."


def warm_row(first: dict[str, float], rest: int) -> str:
    """The row below a model's: torch.compile's first call with the caches of an earlier process, over smelt's."""
    warm, smelt = first.get(WARM, math.nan), first["smelt"]
    return f"| – warm caches | {warm:.2f} s | {smelt:.2f} s | {warm / smelt:.1f}× |" + " |" * rest


def model_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: first calls in seconds, calls in milliseconds, ratios to eager and torch.compile."""
    lines = [
        "| model | first call: torch.compile | smelt | ratio | call: eager | torch.compile | smelt "
        "| torch.compile over eager | smelt over eager | graphs | kernels "
        "| largest error against float64: eager | torch.compile | smelt |",
        "| --- " * 14 + "|",
    ]
    theirs, ours, firsts, warms = [], [], [], []
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['model']} | failed: {row['failed']} |" + " |" * 12)
            continue
        first, call, error = row["first_s"], row["call_s"], {**NO_ERROR, **row["error"]}
        rival_first, rival_call = (
            first.get("torch.compile", float("nan")),
            call.get("torch.compile", float("nan")),
        )
        theirs.append(call["eager"] / rival_call)
        ours.append(call["eager"] / call["smelt"])
        firsts.append(rival_first / first["smelt"])
        lines.append(
            f"| {row['model']} | {rival_first:.1f} s | {first['smelt']:.2f} s | {firsts[-1]:.1f}× "
            f"| {call['eager'] * 1e3:.1f} ms | {rival_call * 1e3:.1f} ms | {call['smelt'] * 1e3:.1f} ms "
            f"| {theirs[-1]:.2f}× | {ours[-1]:.2f}× | {row['graphs']['smelt']} | {row['kernels']['smelt']} "
            f"| {error['eager']:.1e} | {error['torch.compile']:.1e} | {error['smelt']:.1e} |"
        )
        warms.append(first.get(WARM, math.nan) / first["smelt"])
        lines.append(warm_row(first, 10))
    lines.append(
        f"| **geomean** | | | {measure.geomean(firsts):.1f}× | | | | {measure.geomean(theirs):.2f}× "
        f"| {measure.geomean(ours):.2f}× | | | | | |"
    )
    lines.append(f"| **geomean**, warm caches | | | {measure.geomean(warms):.1f}× |" + " |" * 10)
    return "\n".join(lines)


def call_table(rows: dict[str, dict[str, float]]) -> str:
    lines = [
        "| microseconds per call, one thread | eager | torch.compile | smelt |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['eager']:.1f} | {row['torch.compile']:.1f} | {row['smelt']:.1f} |")
    return "\n".join(lines)


def first_calls(rivals: bool, processes: int = 5) -> dict[str, float]:
    """Seconds of the first compiled call of a process, the median of several processes (of torch.compile: of one)."""
    found = {}
    for who, count in (("torch.compile", 1), ("smelt", processes)) if rivals else (("smelt", processes),):
        rows = [measure.process("benchmarks.first_call", who) for _ in range(count)]
        found[who] = statistics.median([row.get("first_s", float("nan")) for row in rows])
    return found


def first_table(row: dict[str, float]) -> str:
    return "\n".join(
        [
            "| first call of a fresh process, imports not counted | torch.compile | smelt |",
            "| --- | --- | --- |",
            f"| f(x, mod) of `make demo` | {row.get('torch.compile', float('nan')):.1f} s | {row['smelt'] * 1e3:.0f} ms |",
        ]
    )


def options(doc: str | None) -> argparse.Namespace:
    """The command line of a benchmark of models."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="a model's name; may be repeated")
    parser.add_argument("--no-rivals", action="store_true", help="leave torch.compile out, write no file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def previous(saved: Path, only: list[str] | None) -> dict[str, Any]:
    """What was measured before and stays: nothing when everything is measured again."""
    old = json.loads(saved.read_text()) if only and saved.exists() else {}
    return {"first": {}, "calls": {}, **old, "models": {row["model"]: row for row in old.get("models", ())}}


def facts(command: str) -> dict[str, str]:
    """What the figures belong to."""
    return {"date": datetime.date.today().isoformat(), **measure.machine(), "command": command}


def write(saved: Path, found: dict[str, Any], text: str) -> None:
    """The figures as JSON, and as Markdown beside it."""
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(json.dumps(found, indent=1) + "\n")
    saved.with_suffix(".md").write_text(text + "\n")


def measure_model(name: str, rivals: bool) -> dict[str, Any]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {CACHES: caches}
        options = [] if rivals else ["--no-rivals"]
        row = {"model": name}
        row |= measure.process("benchmarks.one_model", name, *options, environment=environment)
        if rivals and "failed" not in row:
            warm = measure.process("benchmarks.one_model", name, "first", environment=environment)
            row["first_s"][WARM] = warm.get("first_s", math.nan)
    return row


def main() -> None:
    chosen = options(__doc__)
    only, saved = chosen.only, chosen.out / "inference-cpu.json"
    found = previous(saved, only)
    rows = found["models"]
    for name in only or NAMES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows[name] = measure_model(name, not chosen.no_rivals)
    if not only:
        found |= {"calls": measure.process("benchmarks.per_call"), "first": first_calls(not chosen.no_rivals)}
    found |= {"facts": facts("make bench"), "models": list(rows.values())}
    text = report(found["facts"], found["models"], found["first"], found["calls"])
    if not chosen.no_rivals:
        write(saved, found, text)
    print(text)


def report(
    facts: dict[str, str], rows: list[dict[str, Any]], first: dict[str, float], calls: dict[str, Any]
) -> str:
    return "\n\n".join(
        [
            "# Benchmarks: the ten models, inference, float32; the first call; the cost of a call",
            ", ".join(f"{k}: {v}" for k, v in facts.items()) + ".",
            "Errors are relative to the largest value of each result; where a model computes in float32 by itself, so does "
            f"the reference. All weights are random (benchmarks/weights.py). {WARM_NOTE}",
            model_table(rows),
            first_table(first) if first else "",
            call_table(calls) if calls and "failed" not in calls else str(calls or ""),
        ]
    )


if __name__ == "__main__":
    main()
