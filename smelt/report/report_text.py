"""A report as text: plain for a terminal, at most `WIDTH` columns, or as HTML for a notebook; one section per topic."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from smelt.report import report_data as data
from smelt.report.event_collector import COMPILE
from smelt.user_lines import location

WIDTH = 120
MOST = 12  # rows of a section; the rest is counted


def plain_text(report: data.Report) -> str:
    """The text for a terminal."""
    lines = [_summary(report)]
    for note in _notes(report, "overview"):
        lines += _wrapped(note)
    for title, count, rows, notes in _sections(report):
        shown = rows if title in ("breaks", "recompiles") else rows[:MOST]
        lines += ["", f"{title} ({count})" if len(rows) > 1 else title]
        for row in shown:
            lines += _wrapped(row)
        if len(rows) > len(shown):
            lines.append(f"  ... and {len(rows) - len(shown)} more (to_dict() has all)")
        for note in notes:
            lines += _wrapped(note)
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


_STYLE = "font-size:13px;line-height:1.4;color:inherit;border-left:3px solid #8888;padding:2px 0 2px 10px;max-width:120ch"
_CODE = "margin:2px 0 6px 0;white-space:pre-wrap;font-family:monospace;background:transparent;color:inherit"
_OPEN = {
    "breaks",
    "ran eagerly",
    "recompiles",
    "saved for the backward",
    "time",
}  # sections that call for action


def notebook_html(report: data.Report) -> str:
    """A self-contained piece of HTML in the page's colours; all text of the program is escaped."""
    parts = [f'<div style="{_STYLE}"><b>{escape(_summary(report))}</b>']
    parts += [f'<pre style="{_CODE}">{escape(note)}</pre>' for note in _notes(report, "overview")]
    for title, count, rows, notes in _sections(report):
        body = "".join(f'<pre style="{_CODE}">{escape(row)}</pre>' for row in (*rows, *notes))
        state = " open" if title in _OPEN else ""
        parts.append(f"<details{state}><summary>{escape(title)} ({count})</summary>{body}</details>")
    return "".join([*parts, "</div>"])


def _summary(report: data.Report) -> str:
    """One line of counts."""
    figures = report.counts
    counts = [
        _count(figures.graphs, "graph"),
        _count(figures.breaks, "break"),
        _count(figures.recompiles, "recompile"),
        _count(figures.entries, "entry", "entries"),
        f"compiled in {report.compile_ms / 1e3:.2f} s",
    ]
    eager = f", {_count(figures.eager, 'reason')} to run eagerly" if figures.eager else ""
    return f"{report.name}: {', '.join(counts)}{eager}"


def _notes(report: data.Report, view: str) -> list[str]:
    return [note.text for note in report.notes if note.view == view]


def _count(n: int, one: str, many: str = "") -> str:
    """`1 graph`, `2 graphs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


class _Section(NamedTuple):
    """`figure`: the number of what the rows show; a row may have several lines, the first of which is its head."""

    title: str
    figure: str
    rows: list[str]
    notes: list[str]


def _sections(report: data.Report) -> Iterator[_Section]:
    """The sections that are not empty."""
    figures = report.counts
    counts = {
        "recompiles": str(figures.recompiles),
        "guards": f"{figures.guards}, of {_count(figures.entries, 'entry', 'entries')}",
        "graphs": f"{figures.graphs}, at each level",
        "kernels": f"{figures.kernels} generated, {_count(figures.extern_calls, 'ATen call')}",
    }
    not_fused = (f"{r.a} with {r.b}: {r.why}" for r in report.not_fused)
    found = [
        ("breaks", list(map(_reason, report.breaks))),
        ("ran eagerly", list(map(_reason, report.eager))),
        ("recompiles", _recompiles(report.recompiles)),
        ("restricted sizes", list(map(_restriction, report.restricted_sizes))),
        ("guards", list(_guards(report))),
        ("graphs", list(map(_graph, report.graphs))),
        _kernels(report.kernels),
        ("operators left to ATen", [f"{e.target}: {e.why}" for e in report.externs]),
        ("not fused", list(dict.fromkeys(not_fused))),
        ("saved for the backward", _memory(report.memory)),
        ("time", _times(report.phases)),
    ]
    for title, rows in found:
        topic = title.partition(",")[0]
        notes = _notes(report, topic)
        if rows or notes:
            yield _Section(title, counts.get(topic, str(len(rows))), rows, notes)


def _reason(reason: data.Reason) -> str:
    """A graph break or eager call: reason, line, hint."""
    detail = f" ({reason.detail})" if reason.detail else ""
    text = [f"{reason.id}: {reason.summary}{detail}"]
    if reason.line is not None:
        text.append(f"at {_at(reason.line)}: {reason.line.text}")
    text.append(f"fix: {reason.hint}")
    if reason.cost_ms is not None:
        text.append(f"cost: {reason.cost_ms:.3f} ms a call, {data.OF_COST}")
    return "\n".join(text)


def _recompiles(found: tuple[data.Recompile, ...]) -> list[str]:
    """One row per call: the entries that rejected it."""
    rows: dict[int, str] = {}
    for recompile in found:
        text = _recompile(recompile, "" if recompile.call in rows else f"{recompile.frame}, ")
        rows[recompile.call] = f"{rows[recompile.call]}\n{text}" if recompile.call in rows else text
    eager = {r.call for r in found if not r.compiled}
    return [text + "\nthis call has no entry of its own" * (call in eager) for call, text in rows.items()]


def _recompile(recompile: data.Recompile, frame: str) -> str:
    """The failed guard and both values."""
    head = f"{frame}entry {recompile.entry}"
    if not recompile.guard:
        return f"{head}: a guard that holds again now"
    text = f"{head}: {recompile.guard}\n{recompile.where}: was {recompile.was}, now {recompile.now}"
    return text + _needed(recompile.line)


def _restriction(found: data.Restriction) -> str:
    """The specialized sizes and the operation that needs them."""
    return f"{found.frame}: {', '.join(found.sizes) or 'a size'}: {found.detail}{_needed(found.line)}"


def _needed(line: data.Line | None) -> str:
    return "" if line is None else f"\nneeded at {_at(line)}"


def _at(line: data.Line) -> str:
    return location(line.file, line.line)


# Kinds of guards whose values often differ between calls: they come first.
_VARYING = ("tensor", "eq", "number", "expression", "len", "keys", "contains", "alias", "no_overlap")


def _guards(report: data.Report) -> Iterator[str]:
    for frame in report.frames:
        for entry in frame.entries:
            found = sorted(entry.guards, key=lambda g: g.kind not in _VARYING)
            head = [f"{frame.name}, entry {entry.number}: {_count(len(found), 'guard')}"]
            if frame.resumes and entry is frame.entries[0]:
                head.append(f"({data.OF_RESUME_FUNCTION.format(frame.resumes)})")
            texts = [g.text + (f"  # {_at(g.line)}" if g.line else "") for g in found]
            yield "\n".join([*head, *_first(texts), *entry.sizes])


def _first(texts: list[str]) -> list[str]:
    more = len(texts) - MOST
    return [*texts[:MOST], *([f"... and {more} more"] if more > 0 else [])]


def _graph(graph: data.Graph) -> str:
    return f"{graph.id}: {graph.frame}, {graph.level} level, {_count(graph.operators, 'operator')}"


def _kernels(kernels: tuple[data.Kernel, ...]) -> tuple[str, list[str]]:
    """Kernels, the slowest first if they were timed."""
    timed = any(k.us is not None for k in kernels)
    title = "kernels, longest first" if timed else "kernels, most bytes first"

    def cost(kernel: data.Kernel) -> float:
        return (kernel.us or 0.0) if timed else kernel.reads_bytes + kernel.writes_bytes

    rows = Counter(_kernel(k) for k in sorted(kernels, key=cost, reverse=True))
    return title, [row if n == 1 else f"{row}; {n} of these" for row, n in rows.items()]


def _kernel(kernel: data.Kernel) -> str:
    flops = "" if kernel.flops is None else f", {_short(kernel.flops)} operations"
    moved = f"reads {_size(kernel.reads_bytes)}, writes {_size(kernel.writes_bytes)}"
    return f"{kernel.name} ({kernel.kind}, graph {kernel.graph}): {moved}{flops}{_time(kernel)}"


def _time(kernel: data.Kernel) -> str:
    """The time; empty if it was not measured."""
    if kernel.us is None:
        return ""
    rate = kernel.bytes_per_second
    unit, factor = ("GB/s", 1e9) if (rate or 0) >= 1e9 else ("MB/s", 1e6)
    return f", {kernel.us:.1f} us" + ("" if rate is None else f" ({rate / factor:.1f} {unit})")


def _size(n: int) -> str:
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


def _memory(memory: data.Memory) -> list[str]:
    if memory.saved_bytes is None:
        return []
    eager = memory.eager_saved_bytes
    against = "eager's was not measured" if eager is None else f"eager keeps {_size(eager)}"
    head = f"{_size(memory.saved_bytes)}; {against} (both without inputs, parameters and results)"
    values = [v for g in memory.graphs for v in g.values if v.bytes]
    values.sort(key=lambda v: v.bytes, reverse=True)
    return ["\n".join([head, *_first([f"{v.name}: {_size(v.bytes)}, {v.why}" for v in values])])]


def _times(phases: tuple[data.Phase, ...]) -> list[str]:
    total: dict[str, float] = {}
    for phase in phases:
        total[phase.name] = total.get(phase.name, 0.0) + phase.ms
    if not total:
        return []
    whole = total.pop(COMPILE, 0.0)
    text = ", ".join(f"{name} {ms:.1f} ms" for name, ms in total.items())
    within = _ms_within_others(phases)
    inner = [name for name, ms in total.items() if 2 * within[name] > ms]
    parts = f"; parts of others: {', '.join(inner)}" if inner else ""
    return [f"{COMPILE} {whole:.1f} ms, {text}\n({COMPILE} is all of it{parts})"]


def _ms_within_others(phases: tuple[data.Phase, ...]) -> dict[str, float]:
    """By name, the time of the phases that lie within others, besides those of whole compilations."""
    within: dict[str, float] = dict.fromkeys((phase.name for phase in phases), 0.0)
    around: list[data.Phase] = []
    for phase in sorted(phases, key=lambda p: (p.start_ms, -p.ms)):
        while around and not around[-1].contains(phase):
            around.pop()
        if any(p.name != COMPILE for p in around):
            within[phase.name] += phase.ms
        around.append(phase)
    return within
