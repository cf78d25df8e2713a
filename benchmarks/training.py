"""The ten models in training: first step, steady state, graphs, bytes of activations saved; the cost of a call.

    python -m benchmarks.training [--only NAME] [--no-rivals] [--out DIR]

Writes training-cpu.json and training-cpu.md. First steps are measured in a fresh process each, with cold caches; everything
else of a model in one more process, contestants interleaved. Run it on an otherwise idle machine. Nothing is asserted.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from benchmarks import measure, run

LARGE = ["BERT base"]  # only the first step is measured


def measure_model(name: str, rivals: bool) -> dict[str, Any]:
    """A row of the table; of a LARGE model, its first steps."""
    row: dict[str, Any] = {"model": name, "first_s": {}, "stages_s": {}}
    for who in ("torch.compile", "smelt") if rivals else ("smelt",):
        found = measure.process("benchmarks.one_training", "first", name, who)
        if "failed" in found:
            return {"model": name, **found}
        row["first_s"][who] = found["first_s"]
        row["stages_s"][who] = found["stages_s"]
    if name not in LARGE:
        row |= measure.process(
            "benchmarks.one_training", "steady", name, *([] if rivals else ["--no-rivals"])
        )
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: first steps in seconds, steps in milliseconds, saved activations in MiB."""
    lines = [
        "| model | first step: torch.compile | smelt | ratio | step: eager | torch.compile | smelt "
        "| torch.compile over eager | smelt over eager | graphs, forward + backward: torch.compile | smelt "
        "| saved MiB: eager | torch.compile | smelt | kernels | largest error |",
        "| --- " * 16 + "|",
    ]
    firsts, theirs, ours = [], [], []
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['model']} | failed: {row['failed']} |" + " |" * 14)
            continue
        first, call, saved = (
            {"torch.compile": math.nan, **row[k]} for k in ("first_s", "call_s", "saved_bytes")
        )
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
            f"{row['error']['smelt']:.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(
        f"| **geomean** | | | {measure.geomean(firsts):.1f}× | | | | {measure.geomean(theirs):.2f}× "
        f"| {measure.geomean(ours):.2f}× |" + " |" * 7
    )
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
    lines = ["| first step, cold | torch.compile | smelt |", "| --- | --- | --- |"]
    for row in rows:
        first = {"torch.compile": math.nan, **row.get("first_s", {})}
        seconds = [f"{first[who]:.2f} s" if who in first else "failed" for who in ("torch.compile", "smelt")]
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
            "Largest error: of all gradients, relative.",
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
