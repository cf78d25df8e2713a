"""Tables of the ten models: a column for each contestant that was measured, ratios to eager and torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks import measure
from benchmarks.gpu.contestants import USUAL, is_compiler

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]

NOTE = (
    "First call: of a fresh process, until the GPU is done, imports not counted, caches empty; an eager call comes before. "
    "Call: time on the device per call, calls one behind the other, rounds interleaved, medians; host: until the work has "
    "been asked for. Peak: weights, inputs, what the contestant keeps, and what a call allocates. Kernels: generated ones. "
    "Error: against eager in float64 without autocast, without dropout, of all results together (of all gradients): the "
    "norm of what is off, relative to the norm of what is right. All weights are random (benchmarks/weights.py)."
)
STEP = (
    " A step: gradients dropped, forward under autocast, backward of the first result from fixed random numbers; no "
    "optimizer. Graphs: forward + backward."
)


def number(row: Row, key: str, who: str) -> float:
    """What was measured; not a number where it was not."""
    return row.get(key, {}).get(who, math.nan)


def ratio(row: Row, key: str, who: str, to: str) -> float:
    """How many times less `who` needs than `to`."""
    return number(row, key, to) / number(row, key, who)


def contestants_of(rows: list[Row]) -> list[str]:
    """Who was measured, the usual ones first."""
    found = {who for row in rows for key in ("first_s", "call_s") for who in row.get(key, ())}
    return [who for who in USUAL if who in found] + sorted(found.difference(USUAL))


def _shown(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)


def _values(title: str, key: str, form: str, scale: float, who: list[str]) -> list[Column]:
    return [
        (f"{title}: {w}" if place == 0 else w, lambda row, w=w: _shown(number(row, key, w) * scale, form))
        for place, w in enumerate(who)
    ]


def _rival(who: str) -> str:
    """torch.compile, in the mode of `who`."""
    return "torch.compile" + who[len(who.partition(":")[0]) :]


def _plain(who: list[str]) -> list[tuple[str, str]]:
    """Those of ours that have a mode, beside the same without one."""
    found = [(w, w.partition(":")[0]) for w in who if is_compiler(w, "smelt")]
    return [(w, plain) for w, plain in found if w != plain and plain in who]


def _ratios(key: str, pairs: list[tuple[str, str]]) -> list[Column]:
    return [
        (f"{w} over {to}", lambda row, w=w, to=to: _shown(ratio(row, key, w, to), "{:.2f}×"))
        for w, to in pairs
    ]


def _graphs(row: Row, who: str) -> str:
    return " + ".join(map(str, row.get("graphs", {}).get(who, ()))) or "–"


def columns(who: list[str]) -> list[Column]:
    """All of the table."""
    compilers = [w for w in who if w != "eager"]
    ours = [w for w in who if is_compiler(w, "smelt")]
    found: list[Column] = [("model", lambda row: row["model"])]
    found += _values("first call, s", "first_s", "{:.2f}", 1, compilers)
    rivals = [(w, _rival(w)) for w in ours] + _plain(who)
    found += _ratios("first_s", rivals)
    found += _values("call, ms", "call_s", "{:.2f}", 1e3, who)
    found += _ratios("call_s", [(w, "eager") for w in compilers] + rivals)
    found += _values("host, ms", "host_s", "{:.2f}", 1e3, who)
    found += _values("peak MiB", "peak_bytes", "{:.0f}", 2**-20, who)
    found += _values("error", "overall_error", "{:.1e}", 1, [w for w in who if w == "eager" or w in ours])
    found += [(f"graphs: {w}", lambda row, w=w: _graphs(row, w)) for w in compilers]
    return found + _values("kernels", "kernels", "{:.0f}", 1, compilers)


def _summary(rows: list[Row], who: list[str]) -> str:
    """Geometric means of the models that have both figures."""
    ours = [w for w in who if is_compiler(w, "smelt")]
    wanted = [("first call", "first_s", w, _rival(w)) for w in ours]
    wanted += [("call", "call_s", w, "eager") for w in who if w != "eager"]
    wanted += [("call", "call_s", w, _rival(w)) for w in ours]
    wanted += [
        (what, key, w, to)
        for w, to in _plain(who)
        for what, key in (("first call", "first_s"), ("call", "call_s"))
    ]
    wanted += [("peak memory", "peak_bytes", w, to) for w in ours for to in ("eager", _rival(w))]
    lines = []
    for what, key, w, to in wanted:
        found = [r for r in (ratio(row, key, w, to) for row in rows) if not math.isnan(r)]
        if found:
            least = f"least {min(found):.2f}×, {len(found)} models"
            lines.append(f"- {what}, {w} over {to}: geomean {measure.geomean(found):.2f}× ({least})")
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """Markdown."""
    shown = columns(contestants_of(rows))
    lines = [f"| {' | '.join(title for title, _ in shown)} |", "| --- " * len(shown) + "|"]
    return "\n".join(lines + [f"| {' | '.join(cell(row) for _, cell in shown)} |" for row in rows])


def with_failures(lines: list[str], rows: list[dict[str, Any]]) -> str:
    """A table's lines, and what failed in its rows: {contestant: why}."""
    failed = [f"- {row['name']}, {w}: {why}" for row in rows for w, why in row["failed"].items()]
    return "\n".join(lines) + ("\n\n" + "\n".join(failed) if failed else "")


def report(kind: str, facts: dict[str, str], rows: list[Row]) -> str:
    """The page of results; `kind` is inference or training."""
    failed = [f"- failed: {job}: {why}" for row in rows for job, why in row.get("failed", {}).items()]
    parts = [
        f"# Models on a GPU, {kind}, bf16 autocast",
        ", ".join(f"{k}: {v}" for k, v in facts.items()) + ".",
        NOTE + STEP * (kind == "training"),
        table(rows),
        _summary(rows, contestants_of(rows)),
        "\n".join(failed),
    ]
    return "\n\n".join(part for part in parts if part)
