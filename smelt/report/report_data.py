"""The data of a report on a compiled callable: the result of `Explanation.to_dict`.

`docs/explain.md` lists the keys; lists are in order of time. All of it can be written as JSON.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.autograd.partition import level_of
from smelt.capture.driver.cache_entries import Entry, Record
from smelt.graph.ir import Graph, Line, Node
from smelt.guards.guard import Guard
from smelt.loops.kernel_printer import print_kernel
from smelt.reasons import Reason
from smelt.report import kernel_costs
from smelt.report.call_modules import modules_of
from smelt.report.event_collector import Scheduled, Watch
from smelt.report.graph_rows import Owners, Placed, graph_row, hints_of, line_row, lines_in
from smelt.report.kernel_times import KernelTimes
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem, accesses
from smelt.schedule.schedule_printer import print_item
from smelt.torch_private import OpOverload
from smelt.user_lines import is_own

Records = Sequence[tuple[str, Record]]
Row = dict[str, Any]
EagerBytes = Callable[[Entry], int | None]
Cost = Callable[[Reason], float | None]


def rows(
    name: str,
    records: Records,
    watch: Watch,
    eager_bytes: EagerBytes,
    cost: Cost,
    times: KernelTimes | None = None,
) -> Row:
    """The whole data.

    Args:
        eager_bytes: bytes that eager saves for the backward of an entry's graph.
        cost: milliseconds per call of a graph break.
        times: kernel times of timed calls.
    """
    return _Rows(name, records, watch, eager_bytes, cost, times or KernelTimes()).all()


class _Rows:
    def __init__(
        self,
        name: str,
        records: Records,
        watch: Watch,
        eager_bytes: EagerBytes,
        cost: Cost,
        times: KernelTimes,
    ) -> None:
        self.name, self.records, self.watch, self.eager_bytes = name, records, watch, eager_bytes
        self.cost, self.times = cost, times
        self.entries = [(frame, entry) for frame, record in records for entry in record.entries]
        self.owners = Owners(self.entries)
        self.placed: list[Placed] = []
        self.of_entry: dict[int, list[Placed]] = defaultdict(list)  # by id of the entry
        self._place()

    def all(self) -> Row:
        """The schema, in the order of its keys."""
        kernels, externs, refused, timeline = self._kernels()
        return {
            "version": 1,
            "name": self.name,
            "smelt": sys.modules["smelt"].__version__,
            "torch": str(torch.__version__),
            "device": self._device(),
            "threads": torch.get_num_threads(),
            "sources": self._sources(),
            "phases": self._phases(),
            "frames": [self._frame(frame, record) for frame, record in self.records],
            "breaks": self._reasons(lambda record: record.breaks),
            "eager": self._reasons(lambda record: record.reasons),
            "recompiles": self._recompiles(),
            "restricted_sizes": self._restrictions(),
            "graphs": [graph_row(placed, self._modules(placed)) for placed in self.placed],
            "kernels": kernels,
            "externs": externs,
            "not_fused": refused,
            "memory": {**self._memory(), "timeline": timeline},
            "lines": self._lines(),
        }

    # ---- graphs

    def _place(self) -> None:
        """Number the graphs: an entry's own, then the forward and backward of its joint graph."""
        for frame, entry in self.entries:
            self._add(frame, entry, "torch", entry.traced.torch_graph)
            joint = entry.traced.joint
            if joint is None:
                self._add(frame, entry, "aten", entry.traced.aten_graph)
            else:
                self._add(frame, entry, "joint", joint.graph)
        self.parts = []
        for parts in self.watch.partitions:
            owner = self.owners.of_partition(parts)
            if owner is not None:
                self.parts.append((owner, parts))
                self._add(*owner, "forward", parts.forward)
                self._add(*owner, "backward", parts.backward)

    def _add(self, frame: str, entry: Entry, level: str, graph: Graph) -> None:
        known = [p for p in self.of_entry[id(entry)] if p.level == level]
        if known and level in ("forward", "backward"):  # cut again for other sizes: the same graph
            return
        placed = Placed(len(self.placed), frame, entry, level, graph)
        self.placed.append(placed)
        self.of_entry[id(entry)].append(placed)

    def _graph_of(self, scheduled: Scheduled) -> Placed | None:
        owner = self.owners.of(scheduled.graph) or self.owners.pair(scheduled.entry)
        if owner is None:
            return None
        level = "aten" if owner[1].traced.joint is None else level_of(scheduled.graph)
        return next((p for p in self.of_entry[id(owner[1])] if p.level == level), None)

    def _modules(self, placed: Placed) -> dict[Node, str]:
        """Modules by torch-level node and by placeholder of the graph; aten and joint graphs have the same inputs."""
        torch_graph = placed.entry.traced.torch_graph
        found = modules_of(torch_graph, self.watch.sources_of(placed.entry))
        if placed.level in ("aten", "joint", "forward"):
            given = zip(torch_graph.placeholders, placed.graph.placeholders)
            found |= {own: found[p] for p, own in given if p in found}
        return found

    # ---- frames

    def _frame(self, frame: str, record: Record) -> Row:
        return {
            "name": frame,
            "resumes": None if frame == self.records[0][0] else self.records[0][0],
            "entries": [self._entry(i, entry) for i, entry in enumerate(record.entries)],
        }

    def _entry(self, number: int, entry: Entry) -> Row:
        return {
            "number": number,
            "guards": [guard_row(guard) for guard in entry.facts],
            "source": entry.source,
            "sizes": list(_sizes(entry)),
            "seconds": entry.seconds,
            "graphs": [p.id for p in self.of_entry[id(entry)]],
        }

    def _recompiles(self) -> list[Row]:
        return [
            {
                "frame": r.frame,
                "entry": r.entry,
                "guard": r.failure.guard.text if r.failure else "",
                "where": r.failure.source if r.failure else "",
                "was": r.failure.expected if r.failure else "",
                "now": r.failure.found if r.failure else "",
                "line": line_row(r.failure.guard.line) if r.failure else None,
                "at_ms": 1e3 * r.at,
            }
            for r in self.watch.recompiles
            if any(r.frame == frame for frame, _ in self.records)
        ]

    def _restrictions(self) -> list[Row]:
        return [
            {
                "frame": r.frame,
                "sizes": list(r.sizes),
                "detail": r.reason.detail,
                "line": line_row(r.reason.line) if r.reason.line else None,
            }
            for r in self.watch.restrictions
            if any(r.frame == frame for frame, _ in self.records)
        ]

    def _phases(self) -> list[Row]:
        backwards = [
            (p, owner[0]) for p in self.watch.phases if p.graph and (owner := self.owners.of(p.graph))
        ]
        known = {frame for frame, _ in self.records}
        found: list[Row] = []
        for p in sorted(self.watch.phases, key=lambda p: (p.start, -p.seconds)):
            frame = next((frame for backward, frame in backwards if backward.holds(p)), p.frame)
            if frame in known:  # others compile meanwhile, too
                found.append(
                    {"name": p.name, "frame": frame, "start_ms": 1e3 * p.start, "ms": 1e3 * p.seconds}
                )
        return found

    def _reasons(self, of: Callable[[Record], Sequence[Reason]]) -> list[Row]:
        """Each reason once, with the first frame that met it."""
        found: dict[Reason, str] = {}
        for frame, record in self.records:
            for reason in of(record):
                found.setdefault(reason, frame)
        return [reason_row(frame, reason, self.cost(reason)) for reason, frame in found.items()]

    # ---- kernels

    def _kernels(self) -> tuple[list[Row], list[Row], list[Row], list[Row]]:
        kernels: list[Row] = []
        externs: dict[tuple[str, str], Row] = {}
        refused: list[Row] = []
        timeline: list[Row] = []
        found = ((scheduled, self._graph_of(scheduled)) for scheduled in self.watch.scheduled)
        # Others are of attempts that were given up, or of other functions.
        shown = [(scheduled, placed) for scheduled, placed in found if placed is not None]
        timed = self.times.of((scheduled.schedule, scheduled.plan) for scheduled, _ in shown)
        for (scheduled, placed), times in zip(shown, timed, strict=True):
            hints = hints_of(placed.entry)
            alive = _Alive(scheduled.schedule, hints)
            for i, item in enumerate(scheduled.schedule.items):
                if isinstance(item, ViewItem):
                    continue
                row = _kernel_row(item, scheduled, placed, hints, times.get(i))
                kernels.append(row)
                timeline.append({"graph": placed.id, "step": row["name"], "bytes": alive.after(i)})
                if row["kind"] == "extern":
                    why = item.why if isinstance(item, ExternItem) else ""
                    externs.setdefault(
                        (row["name"], why), {"target": row["name"], "why": why, "graph": placed.id}
                    )
            refused += [{**_refusal(text), "graph": placed.id} for text in scheduled.schedule.refusals]
        return kernels, list(externs.values()), refused, timeline

    # ---- memory

    def _memory(self) -> Row:
        """Saved memory of the latest entry of each frame: the total of one run through all of them."""
        saved = {id(entry): parts for (_, entry), parts in self.parts}
        graphs: list[Row] = []
        for frame, record in self.records:
            for entry in record.entries[-1:]:
                if id(entry) in saved:
                    parts = saved[id(entry)]
                    graphs.append(
                        {
                            "frame": frame,
                            "saved_bytes": parts.nbytes,
                            "eager_saved_bytes": self.eager_bytes(entry),
                            "values": [
                                {
                                    "name": s.name,
                                    "kind": s.kind,
                                    "bytes": s.nbytes,
                                    "why": s.why,
                                    "line": line_row(s.line),
                                }
                                for s in parts.saved
                            ],
                        }
                    )
        eager = [g["eager_saved_bytes"] for g in graphs]
        return {
            "saved_bytes": sum(g["saved_bytes"] for g in graphs) if graphs else None,
            "eager_saved_bytes": sum(eager) if eager and None not in eager else None,
            "graphs": graphs,
        }

    # ---- the user's lines

    def _lines(self) -> list[Row]:
        found: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
        for what, line in self._events_of_lines():
            if line_row(line) is not None:
                found[line.filename, line.line][what] = None
        return [{"file": f, "line": n, "events": list(what)} for (f, n), what in sorted(found.items())]

    def _events_of_lines(self) -> Iterator[tuple[str, Line]]:
        for _, entry in self.entries:
            yield from (("captured", line) for line in lines_in([entry.traced.torch_graph]))
            yield from (("guarded", guard.line) for guard in entry.facts if guard.line is not None)
        for _, record in self.records:
            yield from (("break", r.line) for r in record.breaks if r.line is not None)
            yield from (("eager", r.line) for r in record.reasons if r.line is not None)
        for r in self.watch.recompiles:
            if r.failure is not None and r.failure.guard.line is not None:
                yield "recompiled", r.failure.guard.line

    def _sources(self) -> list[Row]:
        files = dict.fromkeys(
            line.filename for _, line in self._events_of_lines() if line_row(line) is not None
        )
        texts = {file: "".join(linecache.getlines(file)) for file in files}
        return [{"file": file, "first_line": 1, "text": text} for file, text in texts.items() if text]

    def _device(self) -> str:
        devices = {str(fake.device) for _, entry in self.entries for fake in entry.traced.inputs}
        return ", ".join(sorted(devices)) or "cpu"


# ------------------------------------------------------------------------------------------------ single rows


def reason_row(frame: str, reason: Reason, cost: float | None) -> Row:
    """Why `frame` broke or ran eagerly, in the report schema."""
    return {
        "frame": frame,
        "id": reason.kind.id,
        "summary": reason.kind.summary,
        "detail": reason.detail,
        "hint": reason.kind.hint,
        "line": line_row(reason.line, text=True),
        "stack": [r for r in (line_row(line, text=True) for line in reason.stack) if r is not None],
        "cost_ms": cost,
    }


def guard_row(guard: Guard) -> Row:
    """One guard in the report schema."""
    source = None if guard.source is None else guard.source.source
    return {"text": guard.text, "kind": guard.kind.name, "source": source, "line": line_row(guard.line)}


def _sizes(entry: Entry) -> Iterator[str]:
    """The source of each size symbol: `s0 = x.shape[0]`, by the names of the graph's inputs."""
    inputs = [p.name for p in entry.traced.torch_graph.placeholders]
    for sym, size in entry.traced.sizes.items():
        source = size.source
        given = inputs[size.input] if size.input < len(inputs) else f"input {size.input}"
        text = given if source.dim < 0 else f"{given}.shape[{source.dim}]"
        if source.over is not None:
            text = (
                f"{given}.stride({source.dim}) - {given}.shape[{source.over}] * {given}.stride({source.over})"
            )
        if source.divisor != 1:
            text += f" {'%' if source.is_remainder else '//'} {source.divisor}"
        yield f"{sym} = {text}"


def _kernel_row(
    item: KernelItem | ExternItem,
    scheduled: Scheduled,
    placed: Placed,
    hints: kernel_costs.Hints,
    us: float | None,
) -> Row:
    if isinstance(item, KernelItem):
        work = kernel_costs.of_kernel(item, scheduled.schedule, hints)
        name, kind, text = item.kernel.name, "generated", print_kernel(item.kernel)
        made_of = item.made_of
    else:
        work = kernel_costs.of_call(item, scheduled.schedule, hints)
        name, text = str(item.op), print_item(item)
        kind, made_of = "generated" if _is_generated(item, scheduled.called) else "extern", ()
    return {
        "name": name,
        "graph": placed.id,
        "code": text,
        "kind": kind,
        "reads_bytes": work.reads,
        "writes_bytes": work.writes,
        "flops": work.flops,
        "us": None if us is None else round(us, 3),
        "bytes_per_second": None if us is None or hints else (work.reads + work.writes) / (us * 1e-6),
        "nodes": _nodes(item, made_of, scheduled.graph),
        "lines": _texts(item.note, made_of),
    }


def _is_generated(item: ExternItem, called: tuple[str, ...] | None) -> bool:
    """Whether a plan that calls these operators has generated code in place of an ATen call. It may call another
    overload, such as one that writes into passed memory."""
    if called is None or not isinstance(item.op, OpOverload):
        return False
    return _operator(str(item.op)) not in map(_operator, called)


def _operator(overload: str) -> str:
    """`aten.relu` of `aten.relu_.default`."""
    return overload.rpartition(".")[0].rstrip("_")


def _nodes(item: Any, made_of: Any, graph: Graph) -> list[str]:
    """The nodes of the graph that an item computes, if operator and line identify one."""
    if isinstance(item, ExternItem):
        found = [n.name for n in graph if n.target is item.op and str(n.line or "") == item.note]
        return found if len(found) == 1 else []
    by_key: dict[tuple[str, Line | None], list[str]] = defaultdict(list)
    for node in graph:
        if isinstance(node.target, OpOverload):
            by_key[node.target.name().split("::")[-1].split(".")[0].strip("_"), node.line].append(node.name)
    return [by_key[key][0] for key in dict.fromkeys(made_of) if len(by_key[key]) == 1]


def _texts(note: str, made_of: Any) -> list[str]:
    lines = [str(line) for _, line in made_of if line_row(line) is not None]
    own = not note or is_own(note)
    return list(dict.fromkeys(lines or ([] if own else [note])))


_REFUSAL = re.compile(r"(?P<a>.*?) with (?P<b>.*?): (?P<why>.*)", re.S)


def _refusal(text: str) -> Row:
    found = _REFUSAL.fullmatch(text)
    return found.groupdict() if found else {"a": "", "b": "", "why": text}


class _Alive:
    """Bytes of a schedule's values that are live after each item, before buffers share memory."""

    def __init__(self, schedule: Schedule, hints: kernel_costs.Hints) -> None:
        self.schedule, self.hints = schedule, hints
        kept = {b for b in schedule.outputs if b is not None}
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        views: dict[int, int] = {}
        for i, item in enumerate(schedule.items):
            reads, writes = accesses(item)
            if isinstance(item, ViewItem):
                views[item.out] = views.get(item.src, item.src)
                continue
            for b in reads:
                self.last[views.get(b, b)] = i
            for b in writes:
                self.first.setdefault(b, i)
                self.last[b] = max(i, self.last.get(b, i))
        for b in kept:
            self.last[views.get(b, b)] = len(schedule.items)

    def after(self, i: int) -> int:
        """Bytes after item number `i`."""
        held = [b for b, first in self.first.items() if first <= i < self.last[b] or first == i]
        return sum(
            kernel_costs.nbytes(self.schedule.buffers[b].spec, self.hints)
            for b in held
            if self.schedule.buffers[b].kind in ("temp", "output")
        )
