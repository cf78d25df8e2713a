"""Builds a `Report` from the state of compiled functions and the collected events of their compilations."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from smelt.autograd.partition import Partition, level_of
from smelt.capture.driver.cache_entries import Entry, Record
from smelt.graph.ir import Graph, Line, Node
from smelt.guards.guard import Guard
from smelt.loops.kernel_printer import print_kernel
from smelt.reasons import Reason
from smelt.report import kernel_costs
from smelt.report import report_data as data
from smelt.report.call_modules import modules_of
from smelt.report.event_collector import COMPILE, EventCollector, Scheduled
from smelt.report.graph_rows import EntryGraph, Owners, graph_data, source_line
from smelt.report.kernel_times import KernelTimes
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem, accesses
from smelt.schedule.schedule_printer import print_item
from smelt.torch_private import OpOverload
from smelt.user_lines import file_name, is_own


class FrameRecord(NamedTuple):
    """The record of a function, or of a resume function of the function `resumes`."""

    name: str
    resumes: str | None
    record: Record


class ReportBuilder:
    """Builds the report on `frames`.

    Args:
        eager_bytes: bytes that eager saves for the backward of an entry's graph.
        break_ms: milliseconds per call of a graph break.
        why_nothing: the reason if nothing was compiled and no call ran eagerly.
    """

    def __init__(
        self,
        frames: Sequence[FrameRecord],
        collected: EventCollector,
        times: KernelTimes,
        eager_bytes: Callable[[Entry], int | None],
        break_ms: Callable[[Reason], float | None],
        why_nothing: str = "",
    ) -> None:
        self.frames, self.collected, self.times = frames, collected, times
        self.eager_bytes, self.break_ms, self.why_nothing = eager_bytes, break_ms, why_nothing
        self.names = {frame.name for frame in frames}  # others compile meanwhile, too
        self.entries = [(frame.name, entry) for frame in frames for entry in frame.record.entries]
        self.owners = Owners(self.entries)
        self.graphs: list[EntryGraph] = []
        self.of_entry: dict[int, list[EntryGraph]] = defaultdict(list)  # by id of the entry
        self.partitions: dict[int, Partition] = {}  # by id of the entry
        self.untimed: list[data.Note] = []
        self._number_graphs()

    def build(self, name: str) -> data.Report:
        """The report, with this name."""
        kernels, externs, refused, timeline = self._kernels()
        frames = tuple(map(self._frame, self.frames))
        breaks = self._reasons(lambda record: record.breaks)
        eager = self._reasons(lambda record: record.reasons)
        recompiles = tuple(
            replace(r, compiled=r.call in self.collected.installed)
            for r in self.collected.recompiles
            if r.frame in self.names
        )
        graphs = tuple(graph_data(found, self._modules(found)) for found in self.graphs)
        events = _line_events(
            {
                "captured": (node.line for g in graphs if g.level == "torch" for node in g.nodes),
                "guarded": (guard.line for f in frames for entry in f.entries for guard in entry.guards),
                "break": (reason.line for reason in breaks),
                "eager": (reason.line for reason in eager),
                "recompiled": (recompile.line for recompile in recompiles),
            }
        )
        phases = tuple(self._phases())
        generated = sum(kernel.kind == "generated" for kernel in kernels)
        counts = data.Counts(
            graphs=sum(g.level == "torch" and g.operators > 0 for g in graphs),
            breaks=len(breaks),
            eager=len(eager),
            recompiles=len({r.call for r in recompiles if r.compiled}),
            entries=len(self.entries),
            guards=sum(len(entry.guards) for frame in frames for entry in frame.entries),
            kernels=generated,
            extern_calls=len(kernels) - generated,
        )
        return data.Report(
            version=1,
            name=name,
            smelt=sys.modules["smelt"].__version__,
            torch=str(torch.__version__),
            device=self._device(),
            threads=torch.get_num_threads(),
            counts=counts,
            compile_ms=sum(p.ms for p in phases if p.name == COMPILE),
            notes=(*self._notes(counts), *self.untimed),
            sources=tuple(_sources(events)),
            phases=phases,
            frames=frames,
            breaks=breaks,
            eager=eager,
            recompiles=recompiles,
            restricted_sizes=tuple(r for r in self.collected.restrictions if r.frame in self.names),
            graphs=graphs,
            kernels=tuple(kernels),
            externs=tuple(externs),
            not_fused=tuple(refused),
            memory=self._memory(timeline),
            lines=tuple(data.LineEvents(*line, tuple(what)) for line, what in sorted(events.items())),
        )

    def _notes(self, counts: data.Counts) -> Iterator[data.Note]:
        """Why sections are missing."""
        if not (counts.entries or counts.eager or counts.breaks):
            yield data.Note("overview", f"nothing was compiled: {self.why_nothing}")
        elif not (counts.graphs or counts.eager or counts.breaks):
            yield data.Note("overview", "no graph: smelt captured no operation on tensors")
        before = sum(id(entry) not in self.collected.sources for _, entry in self.entries)
        if before:
            yield data.Note(
                "overview",
                f"{before} of {counts.entries} entries were compiled before this report observed them: it has no kernels, "
                "memory, recompiles or times of their compilation. Explain the function before its first call, or after "
                "smelt.reset()",
            )
        elif counts.graphs and not counts.kernels + counts.extern_calls:
            yield data.Note("kernels", "no kernels: the backend runs the graphs by eager operators")
        for frame in self.frames:
            for why in dict.fromkeys(frame.record.not_kept):
                yield data.Note(
                    "overview", f"an entry of {frame.name} is not stored for other processes: {why}"
                )
            reason = frame.record.no_joint_graph_reason
            if reason is not None:
                yield data.Note("overview", f"{frame.name} runs eagerly under autograd: {reason}")

    # ---- graphs

    def _number_graphs(self) -> None:
        """An entry's own graphs, then the forward and backward of its joint graph."""
        for frame, entry in self.entries:
            traced = entry.traced
            self._add(frame, entry, "torch", traced.torch_graph)
            if traced.joint is None:
                self._add(frame, entry, "aten", traced.aten_graph)
            else:
                self._add(frame, entry, "joint", traced.joint.graph)
        for parts in self.collected.partitions:
            owner = self.owners.of(parts.forward) or self.owners.of(parts.backward)
            if owner is not None:
                self.partitions[id(owner[1])] = parts
                self._add(*owner, "forward", parts.forward)
                self._add(*owner, "backward", parts.backward)

    def _add(self, frame: str, entry: Entry, level: str, graph: Graph) -> None:
        if self._graph(entry, level) is None:  # a partition for other sizes has the same graphs
            found = EntryGraph(len(self.graphs), frame, entry, level, graph)
            self.graphs.append(found)
            self.of_entry[id(entry)].append(found)

    def _graph(self, entry: Entry, level: str) -> EntryGraph | None:
        return next((found for found in self.of_entry[id(entry)] if found.level == level), None)

    def _graph_of(self, scheduled: Scheduled) -> EntryGraph | None:
        owner = self.owners.of(scheduled.graph, scheduled.entry)
        if owner is None:
            return None
        return self._graph(owner[1], "aten" if owner[1].traced.joint is None else level_of(scheduled.graph))

    def _modules(self, found: EntryGraph) -> dict[Node, str]:
        """Modules by torch-level node and by placeholder of the graph; aten and joint graphs have the same inputs."""
        torch_graph = found.entry.traced.torch_graph
        modules = modules_of(torch_graph, self.collected.sources_of(found.entry))
        if found.level in ("aten", "joint", "forward"):
            inputs = zip(torch_graph.placeholders, found.graph.placeholders)
            modules |= {own: modules[p] for p, own in inputs if p in modules}
        return modules

    # ---- frames

    def _frame(self, frame: FrameRecord) -> data.Frame:
        entries = tuple(self._entry(i, entry) for i, entry in enumerate(frame.record.entries))
        return data.Frame(frame.name, frame.resumes, entries)

    def _entry(self, number: int, entry: Entry) -> data.Entry:
        guards, sizes = tuple(map(_guard, entry.facts)), tuple(_sizes(entry))
        graphs = tuple(found.id for found in self.of_entry[id(entry)])
        return data.Entry(number, guards, entry.source, sizes, entry.seconds, graphs)

    def _phases(self) -> Iterator[data.Phase]:
        """The phases of the frames. Those within the compilation of a backward are of the frame that it belongs to."""
        backwards = [
            (p, owner[0]) for p, graph in self.collected.backwards if (owner := self.owners.of(graph))
        ]
        for p in sorted(self.collected.phases, key=lambda p: (p.start_ms, -p.ms)):
            around = (
                frame for b, frame in backwards if b.contains(p) or (p.name == COMPILE and p.contains(b))
            )
            frame = next(around, p.frame)
            if frame in self.names:
                yield replace(p, frame=frame)

    def _reasons(self, of: Callable[[Record], Sequence[Reason]]) -> tuple[data.Reason, ...]:
        """Each reason once, with the first frame that met it."""
        found: dict[Reason, str] = {}
        for frame in self.frames:
            for reason in of(frame.record):
                found.setdefault(reason, frame.name)
        return tuple(self._reason(frame, reason) for reason, frame in found.items())

    def _reason(self, frame: str, reason: Reason) -> data.Reason:
        return data.Reason(
            frame=frame,
            id=reason.kind.id,
            summary=reason.kind.summary,
            detail=reason.detail,
            hint=reason.kind.hint,
            line=_with_text(reason.line),
            stack=tuple(line for line in map(_with_text, reason.stack) if line is not None),
            cost_ms=self.break_ms(reason),
        )

    # ---- kernels

    def _kernels(
        self,
    ) -> tuple[list[data.Kernel], list[data.Extern], list[data.NotFused], list[data.MemoryStep]]:
        kernels: list[data.Kernel] = []
        externs: dict[tuple[str, str], data.Extern] = {}
        refused: list[data.NotFused] = []
        timeline: list[data.MemoryStep] = []
        found = ((scheduled, self._graph_of(scheduled)) for scheduled in self.collected.scheduled)
        # Schedules without a graph are of failed attempts, or of other functions.
        shown = [(scheduled, graph) for scheduled, graph in found if graph is not None]
        timed = self.times.of((s.schedule, s.plan, graph.level) for s, graph in shown)
        for (scheduled, graph), (times, why) in zip(shown, timed, strict=True):
            if why:
                self.untimed.append(data.Note("kernels", f"no times for kernels of graph {graph.id}: {why}"))
            nodes = _NodesOfItems(scheduled.graph)
            hints = {str(sym): hint for sym, hint in graph.entry.traced.hints.items()}
            live = _live_bytes(scheduled.schedule, hints)
            for i, item in enumerate(scheduled.schedule.items):
                if isinstance(item, ViewItem):
                    continue
                kernel = _kernel(item, scheduled, graph.id, hints, times.get(i), nodes)
                kernels.append(kernel)
                timeline.append(data.MemoryStep(graph.id, kernel.name, live[i]))
                if kernel.kind == "extern":
                    why = item.why if isinstance(item, ExternItem) else ""
                    externs.setdefault((kernel.name, why), data.Extern(kernel.name, why, graph.id))
            refused += [_not_fused(text, graph.id) for text in scheduled.schedule.refusals]
        return kernels, list(externs.values()), refused, timeline

    # ---- memory

    def _memory(self, timeline: list[data.MemoryStep]) -> data.Memory:
        """Saved memory of the latest entry of each frame: the total of one run through all of them."""
        latest = [(frame.name, entry) for frame in self.frames for entry in frame.record.entries[-1:]]
        graphs = tuple(self._saved(*pair) for pair in latest if id(pair[1]) in self.partitions)
        eager = [g.eager_saved_bytes for g in graphs if g.eager_saved_bytes is not None]
        return data.Memory(
            saved_bytes=sum(g.saved_bytes for g in graphs) if graphs else None,
            eager_saved_bytes=sum(eager) if graphs and len(eager) == len(graphs) else None,
            graphs=graphs,
            timeline=tuple(timeline),
        )

    def _saved(self, frame: str, entry: Entry) -> data.SavedMemory:
        parts = self.partitions[id(entry)]
        values = (data.SavedValue(s.name, s.kind, s.nbytes, s.why, source_line(s.line)) for s in parts.saved)
        return data.SavedMemory(frame, parts.nbytes, self.eager_bytes(entry), tuple(values))

    def _device(self) -> str:
        devices = {str(fake.device) for _, entry in self.entries for fake in entry.traced.inputs}
        return ", ".join(sorted(devices)) or "cpu"


# ------------------------------------------------------------------------------------------------------ the user's lines


def _with_text(line: Line | None) -> data.Line | None:
    found = source_line(line)
    if found is None or line is None:
        return None
    return replace(found, text=linecache.getline(line.filename, line.line).strip())


def _line_events(found: dict[str, Iterator[data.Line | None]]) -> dict[tuple[str, int], dict[str, None]]:
    """By file and line, the events there. `found`: by event, the lines at which it happened, with repetitions."""
    events: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for what, lines in found.items():
        for line in lines:
            if line is not None:
                events[line.file, line.line][what] = None
    return events


def _sources(lines: Iterable[tuple[str, int]]) -> Iterator[data.File]:
    """The files of the lines, those of installed packages last."""
    for file in sorted(dict.fromkeys(file for file, _ in lines), key=_is_installed):
        text = "".join(linecache.getlines(file) or _lines_of_cell(file))
        if text:
            yield data.File(file, 1, text)


def _is_installed(file: str) -> bool:
    folders = (sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))
    return file.startswith(tuple(folder + os.sep for folder in folders))


def _lines_of_cell(name: str) -> Sequence[str]:
    cells = (linecache.getlines(file) for file in list(linecache.cache) if file_name(file) == name)
    return next(cells, [])


# --------------------------------------------------------------------------------------------------------------- entries


def _guard(guard: Guard) -> data.Guard:
    source = None if guard.source is None else guard.source.source
    return data.Guard(guard.text, guard.kind.name, source, source_line(guard.line))


def _sizes(entry: Entry) -> Iterator[str]:
    """The source of each size symbol: `s0 = x.shape[0]`, by the names of the graph's inputs."""
    inputs = [p.name for p in entry.traced.torch_graph.placeholders]
    for sym, size in entry.traced.sizes.items():
        source = size.source
        tensor = inputs[size.input] if size.input < len(inputs) else f"input {size.input}"
        text = tensor if source.dim < 0 else f"{tensor}.shape[{source.dim}]"
        if source.over is not None:
            stride, over = f"{tensor}.stride({source.dim})", f"{tensor}.stride({source.over})"
            text = f"{stride} - {tensor}.shape[{source.over}] * {over}"
        if source.divisor != 1:
            text += f" {'%' if source.is_remainder else '//'} {source.divisor}"
        yield f"{sym} = {text}"


# --------------------------------------------------------------------------------------------------------------- kernels


def _kernel(
    item: KernelItem | ExternItem,
    scheduled: Scheduled,
    graph: int,
    hints: kernel_costs.Hints,
    us: float | None,
    nodes: _NodesOfItems,
) -> data.Kernel:
    made_of: Sequence[tuple[str, Line | None]] = ()
    if isinstance(item, KernelItem):
        work = kernel_costs.of_kernel(item, scheduled.schedule, hints)
        name, kind, text, made_of = item.kernel.name, "generated", print_kernel(item.kernel), item.made_of
    else:
        work = kernel_costs.of_call(item, scheduled.schedule, hints)
        name, text = str(item.op), print_item(item)
        kind = "generated" if _is_generated(item, scheduled.called) else "extern"
    return data.Kernel(
        name=name,
        graph=graph,
        code=text,
        kind=kind,
        reads_bytes=work.reads,
        writes_bytes=work.writes,
        flops=work.flops,
        us=None if us is None else round(us, 3),
        bytes_per_second=None if us is None or hints else (work.reads + work.writes) / (us * 1e-6),
        nodes=tuple(nodes.of(item, made_of)),
        lines=tuple(_lines(item.note, made_of)),
    )


def _is_generated(item: ExternItem, called: tuple[str, ...] | None) -> bool:
    """Whether a plan that calls these operators has generated code in place of an ATen call. It may call another
    overload, such as one that writes into passed memory."""
    if called is None or not isinstance(item.op, OpOverload):
        return False
    return _operator(str(item.op)) not in map(_operator, called)


def _operator(overload: str) -> str:
    """`aten.relu` of `aten.relu_.default`."""
    return overload.rpartition(".")[0].rstrip("_")


class _NodesOfItems:
    """The nodes of a graph that an item computes, if operator and line identify one."""

    def __init__(self, graph: Graph) -> None:
        self._calls: dict[tuple[Any, str], list[str]] = defaultdict(list)
        self._loops: dict[tuple[str, Line | None], list[str]] = defaultdict(list)
        for node in graph:
            if isinstance(node.target, OpOverload):
                self._calls[node.target, str(node.line or "")].append(node.name)
                name = node.target.name().split("::")[-1].split(".")[0].strip("_")
                self._loops[name, node.line].append(node.name)

    def of(self, item: KernelItem | ExternItem, made_of: Sequence[tuple[str, Line | None]]) -> list[str]:
        """The names of the nodes."""
        if isinstance(item, ExternItem):
            found = [self._calls.get((item.op, item.note), [])]
        else:
            found = [self._loops.get(key, []) for key in dict.fromkeys(made_of)]
        return [names[0] for names in found if len(names) == 1]


def _lines(note: str, made_of: Sequence[tuple[str, Line | None]]) -> list[str]:
    lines = [str(line) for _, line in made_of if source_line(line) is not None]
    return list(dict.fromkeys(lines)) or ([note] if note and not is_own(note) else [])


def _not_fused(refusal: str, graph: int) -> data.NotFused:
    """`refusal`: of a schedule, such as `add with relu: what it needs is computed after the other`."""
    names, _, why = refusal.partition(": ")
    a, _, b = names.partition(" with ")
    return data.NotFused(a, b, why, graph)


def _live_bytes(schedule: Schedule, hints: kernel_costs.Hints) -> list[int]:
    """After each item, the bytes of the values that are live, before buffers share memory."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    views: dict[int, int] = {}  # buffer of a view -> buffer of its base
    for i, item in enumerate(schedule.items):
        reads, writes = accesses(item)
        if isinstance(item, ViewItem):
            views[item.out] = views.get(item.src, item.src)
            continue
        last |= {views.get(b, b): i for b in reads}
        for b in writes:
            first.setdefault(b, i)
            last[b] = i
    last |= {views.get(b, b): len(schedule.items) for b in schedule.outputs if b is not None}
    live = [0] * len(schedule.items)
    for b, begin in first.items():
        if schedule.buffers[b].kind in ("temp", "output"):
            size = kernel_costs.nbytes(schedule.buffers[b].spec, hints)
            for i in range(begin, max(last[b], begin + 1)):
                live[i] += size
    return live
