"""The ten models in training: first step, steady state, graphs, bytes of activations saved; the cost of a call.

    python -m benchmarks.training [--only NAME] [--no-rivals] [--out DIR]

Writes training-cpu.json and training-cpu.md. First steps are measured in a fresh process each: with cold caches, and
torch.compile's once more with those that the process before it filled; everything else of a model in one more process,
contestants interleaved, its errors in another. Run it on an otherwise idle machine. Nothing is asserted.
"""

from __future__ import annotations

import math
import sys
import tempfile
from typing import Any

from benchmarks import errors, measure, run

LARGE = ["BERT base"]  # only the first step is measured
WARM = run.WARM
FIRST = {"torch.compile": "torch.compile", WARM: "torch.compile", "smelt": "smelt"}  # in this order


def measure_model(name: str, rivals: bool) -> dict[str, Any]:
    """A row of the table; of a LARGE model, its first steps."""
    row: dict[str, Any] = {"model": name, "first_s": {}, "stages_s": {}}
    alone = [] if rivals else ["--no-rivals"]
    parts = [("steady", name, *alone), ("errors", name, *alone)]
    with tempfile.TemporaryDirectory() as caches:
        for label, who in FIRST.items() if rivals else (("smelt", "smelt"),):
            found = _process(caches, "first", name, who)
            if "failed" in found:
                return {"model": name, **found}
            row["first_s"][label] = found["first_s"]
            row["stages_s"][label] = found["stages_s"]
        for part in parts if name not in LARGE else ():
            row |= _process(caches, *part)
    return row


def _process(caches: str, *arguments: str) -> Any:
    return measure.process("benchmarks.one_training", *arguments, environment={measure.CACHES: caches})


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: first steps in seconds, steps in milliseconds, saved activations in MiB."""
    lines = [
        "| model | first step: torch.compile | smelt | ratio | step: eager | torch.compile | smelt "
        "| torch.compile over eager | smelt over eager | graphs, forward + backward: torch.compile | smelt "
        "| saved MiB: eager | torch.compile | smelt | kernels "
        "| largest error against float64: eager | torch.compile | smelt |",
        "| --- " * 18 + "|",
    ]
    firsts, warms, theirs, ours = [], [], [], []
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['model']} | failed: {row['failed']} |" + " |" * 16)
            continue
        first, call, saved = (
            {"torch.compile": math.nan, **row[k]} for k in ("first_s", "call_s", "saved_bytes")
        )
        error = {**run.NO_ERROR, **row["error"]}
        warms.append(first.get(WARM, math.nan) / first["smelt"])
        firsts.append(first["torch.compile"] / first["smelt"])
        theirs.append(call["eager"] / call["torch.compile"])
        ours.append(call["eager"] / call["smelt"])
        cells = [
            row["model"],
            *(f"{first[who]:.2f} s" for who in ("torch.compile", "smelt")),
            f"{firsts[-1]:.1f}×",
            *(f"{call[who] * 1e3:.1f} ms" for who in ("eager", "torch.compile", "smelt")),
            f"{theirs[-1]:.2f}×",
            f"{ours[-1]:.2f}×",
            *(" + ".join(map(str, row["graphs"].get(who, "–"))) for who in ("torch.compile", "smelt")),
            *(f"{saved[who] / 2**20:.1f}" for who in ("eager", "torch.compile", "smelt")),
            str(row["kernels"]["smelt"]),
            *(f"{error[who]:.1e}" for who in ("eager", "torch.compile", "smelt")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        lines.append(run.warm_row(first, 14))
    lines.append(
        f"| **geomean** | | | {measure.geomean(firsts):.1f}× | | | | {measure.geomean(theirs):.2f}× "
        f"| {measure.geomean(ours):.2f}× |" + " |" * 9
    )
    lines.append(f"| **geomean**, warm caches | | | {measure.geomean(warms):.1f}× |" + " |" * 14)
    return "\n".join(lines)


def goals(rows: list[dict[str, Any]]) -> str:
    """How many models meet what training has to."""
    rows = [r for r in rows if "failed" not in r and "torch.compile" in r["call_s"]]

    def count(meets: Any) -> str:
        return f"{sum(map(meets, rows))} of {len(rows)}"

    first, call, saved = (lambda r, k=k: r[k] for k in ("first_s", "call_s", "saved_bytes"))
    return "\n".join(
        [
            f"- first step at most 1/8 of torch.compile's: "
            f"{count(lambda r: first(r)['smelt'] <= first(r)['torch.compile'] / 8)} models",
            f"- step no slower than eager's (within 2%): "
            f"{count(lambda r: call(r)['smelt'] <= 1.02 * call(r)['eager'])}",
            f"- activations saved: at most eager's {count(lambda r: saved(r)['smelt'] <= saved(r)['eager'])}, "
            f"at most torch.compile's {count(lambda r: saved(r)['smelt'] <= saved(r)['torch.compile'])}",
        ]
    )


def first_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| first step | torch.compile, cold | warm caches | smelt |", "| --- | --- | --- | --- |"]
    for row in rows:
        first = {"torch.compile": math.nan, WARM: math.nan, **row.get("first_s", {})}
        seconds = [f"{first[who]:.2f} s" if who in first else "failed" for who in FIRST]
        lines.append(f"| {row['model']} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def report(facts: dict[str, str], rows: list[dict[str, Any]], calls: dict[str, Any]) -> str:
    models = [r for r in rows if r["model"] not in LARGE]
    return "\n\n".join(
        [
            "# Benchmarks: the ten models, training, float32; the cost of a call with gradients",
            ", ".join(f"{k}: {v}" for k, v in facts.items()) + ".",
            "A step: gradients dropped, forward, inner product of the first output with fixed numbers, backward. "
            "First step: in a fresh process with cold caches. Saved: bytes of the storages that autograd holds "
            "between forward and backward, parameters, buffers and inputs not counted. "
            "Largest error: of the loss and all gradients, against eager in float64, relative to each one's largest value "
            f"(at least {errors.GRADIENT_FLOOR} of the largest of all); where a model computes in float32 by itself, so "
            f"does the reference. All weights are random (benchmarks/weights.py). {run.WARM_NOTE}",
            table(models),
            goals(models),
            first_table([r for r in rows if r["model"] in LARGE]),
            run.call_table(calls) if calls and "failed" not in calls else str(calls or ""),
        ]
    )


def main() -> None:
    chosen = run.options(__doc__)
    only, saved = chosen.only, chosen.out / "training-cpu.json"
    found = run.previous(saved, only)
    rows = found["models"]
    if not only:
        found["calls"] = measure.process("benchmarks.per_call", "training")
    for name in only or [*run.NAMES, *LARGE]:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows[name] = measure_model(name, not chosen.no_rivals)
        now = {**found, "facts": run.facts("python -m benchmarks.training"), "models": list(rows.values())}
        text = report(now["facts"], now["models"], now["calls"])
        if not chosen.no_rivals:  # row by row: it takes long
            run.write(saved, now, text)
    print(text)


if __name__ == "__main__":
    main()
