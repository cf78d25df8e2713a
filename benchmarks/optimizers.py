"""Compiled steps of optimizers: the first two steps, steady state against eager's loop, foreach and fused, kernels, errors.

    python -m benchmarks.optimizers [--only NAME] [--no-rivals] [--out DIR]

Writes optimizers.json and optimizers.md; a name is that of an optimizer. First steps are measured in a fresh process each,
with cold caches; everything else in one more process, contestants interleaved. Run it on an otherwise idle machine. Nothing
is asserted.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from benchmarks import measure, run
from benchmarks.one_optimizer import EAGER, OPTIMIZERS, SHAPES

STEPPERS = [*EAGER, "torch.compile", "smelt", "smelt fused"]


def measure_optimizer(name: str, parameters: str, rivals: bool) -> dict[str, Any]:
    """A row of the table."""
    row: dict[str, Any] = {"optimizer": name, "parameters": parameters, "first_s": {}}
    for who in ("torch.compile", "smelt") if rivals else ("smelt",):
        found = measure.process("benchmarks.one_optimizer", "first", name, parameters, who)
        if "failed" in found:
            return {**row, **found}
        row["first_s"][who] = found["first_s"]
    options = [] if rivals else ["--no-rivals"]
    return row | measure.process("benchmarks.one_optimizer", "steady", name, parameters, *options)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: first steps in seconds, steps in milliseconds, ratios to the best of eager and to torch.compile."""
    lines = [
        "| optimizer | parameters | first two steps: torch.compile | smelt | ratio "
        f"| step: {' | '.join(STEPPERS)} | smelt over eager fused | smelt fused over eager fused "
        "| smelt over torch.compile | call without its graph | kernels of the first two steps | largest error |",
        "| --- " * (11 + len(STEPPERS)) + "|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['optimizer']} | {row['parameters']} | failed: {row['failed']} |")
            continue
        first, step = ({"torch.compile": math.nan, **row[k]} for k in ("first_s", "step_s"))
        cells = [
            row["optimizer"],
            row["parameters"],
            *(f"{first[who]:.2f} s" for who in ("torch.compile", "smelt")),
            f"{first['torch.compile'] / first['smelt']:.1f}×",
            *(f"{step[who] * 1e3:.2f} ms" for who in STEPPERS),
            f"{step['eager fused'] / step['smelt']:.2f}×",
            f"{step['eager fused'] / step['smelt fused']:.2f}×",
            f"{step['torch.compile'] / step['smelt']:.2f}×",
            f"{row['without_graph_s'] * 1e3:.2f} ms",
            " + ".join(map(str, row["kernels"])),
            f"{max(row['error']['smelt'], row['error']['smelt fused']):.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(facts: dict[str, str], rows: list[dict[str, Any]]) -> str:
    counts = ", ".join(
        f"{name}: {len(shapes)} tensors, {_elements(shapes):,} elements" for name, shapes in SHAPES.items()
    )
    return "\n\n".join(
        [
            "# Benchmarks: steps of optimizers, float32",
            ", ".join(f"{k}: {v}" for k, v in facts.items()) + ".",
            f"Parameters: {counts}. The first step makes the state, the second is the one that is repeated. "
            "torch.compile and smelt compile `optimizer.step` of the optimizer as it is made by default, "
            "“smelt fused” of one made with `fused=True`. Call without its graph: guards, the frame's arithmetic and "
            "the handing over of inputs. Largest error: of the parameters after two steps, relative to eager.",
            table(rows),
        ]
    )


def _elements(shapes: list[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def main() -> None:
    chosen = run.options(__doc__)
    saved = chosen.out / "optimizers.json"
    old = json.loads(saved.read_text())["rows"] if chosen.only and saved.exists() else []
    rows = {(row["optimizer"], row["parameters"]): row for row in old}
    facts = run.facts("python -m benchmarks.optimizers")
    for name in chosen.only or OPTIMIZERS:
        for parameters in SHAPES:
            print(f"measuring {name}, {parameters} ...", file=sys.stderr, flush=True)
            rows[name, parameters] = measure_optimizer(name, parameters, not chosen.no_rivals)
    found = {"facts": facts, "rows": list(rows.values())}
    text = report(facts, found["rows"])
    if not chosen.no_rivals:
        run.write(saved, found, text)
    print(text)


if __name__ == "__main__":
    main()
