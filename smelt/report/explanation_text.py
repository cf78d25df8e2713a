"""An explanation as plain text for a terminal: at most `WIDTH` columns, one section per topic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 120
MOST = 12  # rows of a section; the rest is counted
Row = dict[str, Any]


def plain(data: Row) -> str:
    """The text of `Explanation.to_dict`."""
    lines = [summary(data)]
    for title, rows in sections(data):
        shown = rows if title in ("breaks", "recompiles") else rows[:MOST]
        lines += ["", f"{title} ({len(rows)})" if len(rows) > 1 else title]
        for row in shown:
            lines += _wrapped(row)
        if len(rows) > len(shown):
            lines.append(f"  ... and {len(rows) - len(shown)} more (to_dict() has all)")
    return "\n".join(lines) + "\n"


def _wrapped(row: str) -> list[str]:
    """Wrapped lines: a head, and indented lines below it."""
    found: list[str] = []
    for i, line in enumerate(row.splitlines()):
        indent = "  " if i == 0 else "      "
        found += textwrap.wrap(
            line, WIDTH, initial_indent=indent, subsequent_indent="      ", break_on_hyphens=False
        ) or [""]
    return found


def summary(data: Row) -> str:
    """One line of counts."""
    entries = sum(len(frame["entries"]) for frame in data["frames"])
    graphs = sum(g["level"] == "torch" and g["operators"] > 0 for g in data["graphs"])
    seconds = sum(entry["seconds"] for frame in data["frames"] for entry in frame["entries"])
    counts = [
        count(graphs, "graph"),
        count(len(data["breaks"]), "break"),
        count(len(data["recompiles"]), "recompile"),
        count(entries, "entry", "entries"),
        f"compiled in {seconds:.2f} s",
    ]
    eager = f", {count(len(data['eager']), 'reason')} to run eagerly" if data["eager"] else ""
    return f"{data['name']}: {', '.join(counts)}{eager}"


def count(n: int, one: str, many: str = "") -> str:
    """`1 graph`, `2 graphs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def sections(data: Row) -> Iterator[tuple[str, list[str]]]:
    """Title and rows of each non-empty section; a row may have several lines, the first of which is its head."""
    found = [
        ("breaks", [reason(r) for r in data["breaks"]]),
        ("ran eagerly", [reason(r) for r in data["eager"]]),
        ("recompiles", [recompile(r) for r in data["recompiles"]]),
        ("sizes that may not be any", [restricted(r) for r in data["restricted_sizes"]]),
        ("guards", list(_guards(data))),
        ("graphs", [_graph(g) for g in data["graphs"]]),
        _kernels(data["kernels"]),
        ("operators left to ATen", [f"{e['target']}: {e['why']}" for e in data["externs"]]),
        ("not fused", list(dict.fromkeys(f"{r['a']} with {r['b']}: {r['why']}" for r in data["not_fused"]))),
        ("saved for the backward", _memory(data["memory"])),
        ("time", _times(data["phases"])),
    ]
    return ((title, rows) for title, rows in found if rows)


def reason(row: Row) -> str:
    """A graph break: reason, location, hint."""
    detail = f" ({row['detail']})" if row["detail"] else ""
    text = [f"{row['id']}: {row['summary']}{detail}"]
    if row["line"] is not None:
        text.append(f"at {place(row['line'])}: {row['line']['text']}")
    text.append(f"fix: {row['hint']}")
    if row["cost_ms"] is not None:
        text.append(f"cost: {row['cost_ms']:.3f} ms of a call run eagerly here")
    return "\n".join(text)


def recompile(row: Row) -> str:
    """The failed guard and both values."""
    text = [f"{row['frame']}, entry {row['entry']}: {row['guard'] or 'a guard that holds again now'}"]
    if row["guard"]:
        text.append(f"{row['where']}: was {row['was']}, now {row['now']}")
    if row["line"] is not None:
        text.append(f"needed at {place(row['line'])}")
    return "\n".join(text)


def restricted(row: Row) -> str:
    """The specialized sizes and the operation that needs them."""
    text = [f"{row['frame']}: {', '.join(row['sizes']) or 'a size'}: {row['detail']}"]
    if row["line"] is not None:
        text.append(f"needed at {place(row['line'])}")
    return "\n".join(text)


def place(line: Row) -> str:
    """`model.py:12`."""
    return f"{Path(line['file']).name}:{line['line']}"


# Kinds of guards in the order in which they are shown: what differs from call to call comes first.
_TELLING = ("tensor", "eq", "number", "expression", "len", "keys", "contains", "alias", "no_overlap")


def _guards(data: Row) -> Iterator[str]:
    for frame in data["frames"]:
        for entry in frame["entries"]:
            found = sorted(entry["guards"], key=lambda g: g["kind"] not in _TELLING)
            head = f"{frame['name']}, entry {entry['number']}: {count(len(found), 'guard')}"
            shown = [g["text"] + (f"  # {place(g['line'])}" if g["line"] else "") for g in found[:MOST]]
            more = [f"... and {len(found) - MOST} more"] if len(found) > MOST else []
            yield "\n".join([head, *shown, *more, *entry["sizes"]])


def _graph(graph: Row) -> str:
    return f"{graph['id']}: {graph['frame']}, {graph['level']} level, {count(graph['operators'], 'operator')}"


def _moved(kernel: Row) -> int:
    return int(kernel["reads_bytes"] + kernel["writes_bytes"])


def _kernels(kernels: list[Row]) -> tuple[str, list[str]]:
    """Kernels, the slowest first if they were timed."""
    timed = any(k["us"] is not None for k in kernels)
    order = (lambda k: k["us"] or 0.0) if timed else _moved
    title = "kernels, longest first" if timed else "kernels, most bytes first"
    return title, [_kernel(k) for k in sorted(kernels, key=order, reverse=True)]


def _kernel(kernel: Row) -> str:
    flops = "" if kernel["flops"] is None else f", {_short(kernel['flops'])} operations"
    moved = f"reads {size(kernel['reads_bytes'])}, writes {size(kernel['writes_bytes'])}"
    return f"{kernel['name']} ({kernel['kind']}, graph {kernel['graph']}): {moved}{flops}{_time(kernel)}"


def _time(kernel: Row) -> str:
    """The time; empty if it was not measured."""
    if kernel["us"] is None:
        return ""
    rate = kernel["bytes_per_second"]
    return f", {kernel['us']:.1f} us" + ("" if rate is None else f" ({rate / 1e9:.1f} GB/s)")


def size(n: int) -> str:
    """Bytes as text: `1.5 KiB`."""
    if n < 1024:
        return f"{n} B"
    value, units = n / 1024, ["KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}"


def _short(n: int) -> str:
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= factor:
            return f"{n / factor:.1f} {unit}"
    return str(n)


def _memory(memory: Row) -> list[str]:
    if memory["saved_bytes"] is None:
        return []
    eager = memory["eager_saved_bytes"]
    against = "eager's was not measured" if eager is None else f"eager keeps {size(eager)}"
    head = f"{size(memory['saved_bytes'])}; {against} (both without inputs, parameters and results)"
    values = [v for g in memory["graphs"] for v in g["values"] if v["bytes"]]
    values.sort(key=lambda v: v["bytes"], reverse=True)
    rows = [f"{v['name']}: {size(v['bytes'])}, {v['why']}" for v in values[:MOST]]
    return ["\n".join([head, *rows, *([f"... and {len(values) - MOST} more"] if len(values) > MOST else [])])]


def _times(phases: list[Row]) -> list[str]:
    total: dict[str, float] = {}
    for phase in phases:
        total[phase["name"]] = total.get(phase["name"], 0.0) + phase["ms"]
    if not total:
        return []
    texts = [f"{name} {ms:.1f} ms" for name, ms in total.items()]
    within = (
        "\n(partition, lower, fuse, codegen and load are parts of backend and backward)"
        if "codegen" in total
        else ""
    )
    return [", ".join(texts) + within]
