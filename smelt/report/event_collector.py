"""Events of a series of calls, collected for reports: phases, recompiles, partitions, schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from smelt import events
from smelt.autograd.partition import Partition
from smelt.capture.driver.cache_entries import Entry
from smelt.graph.ir import Graph
from smelt.guards.source import Source
from smelt.plan.steps import Plan
from smelt.report import report_data as data
from smelt.report.graph_rows import source_line
from smelt.schedule.schedule import Schedule


@dataclass
class Scheduled:
    """A graph that became code. `called`: the ATen operators that its plan calls, None without a plan, in `plan`; the
    schedule's other ATen calls are generated. `entry`: the entry that it was compiled for, if known at once."""

    graph: Graph
    schedule: Schedule
    called: tuple[str, ...] | None = None
    plan: Plan | None = None
    entry: Entry | None = None


# Kinds of events that carry seconds, and the names of their phases; "stage" events are named after the stage.
_PHASES = {
    "capture-end": "capture",
    "backend-end": "backend",
    "partition": "partition",
    "backward-compiled": "backward",
}
COMPILE = "compile"  # the phase around those of one compilation


@dataclass
class EventCollector:
    """A subscriber to `smelt.events`. `backwards`: each phase that compiled a backward, with the graph."""

    began: float = field(default_factory=time.perf_counter)
    phases: list[data.Phase] = field(default_factory=list)
    backwards: list[tuple[data.Phase, Graph]] = field(default_factory=list)
    recompiles: list[data.Recompile] = field(default_factory=list)
    rejected: int = 0  # calls that no entry accepted
    installed: set[int] = field(default_factory=set)  # those of them that were compiled
    restrictions: dict[data.Restriction, None] = field(default_factory=dict)
    scheduled: list[Scheduled] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    frame: str = ""
    before: int = 0  # how many graphs were scheduled when the backend began
    sources: dict[int, tuple[Entry, Sequence[Source]]] = field(default_factory=dict)  # by id of the entry

    def sources_of(self, entry: Entry) -> Sequence[Source]:
        """The sources of the input tensors of an entry's graph; empty for an entry from before."""
        return self.sources.get(id(entry), (entry, ()))[1]

    def __call__(self, event: events.Event) -> None:
        now = time.perf_counter() - self.began
        if "seconds" in event.data:
            self._phase(event, now)
        collect = _COLLECTED.get(event.kind)
        if collect is not None:
            collect(self, event, now)

    def compiled(self, name: str, seconds: float) -> None:
        """Collect the end of a compilation; a timer of `events.timed`."""
        start = time.perf_counter() - self.began - seconds
        self.phases.append(data.Phase(COMPILE, name or self.frame, 1e3 * start, 1e3 * seconds))

    def _phase(self, event: events.Event, now: float) -> None:
        name = event.name if event.kind == "stage" else _PHASES.get(event.kind)
        if name is not None:
            seconds = event.data["seconds"]
            phase = data.Phase(name, self.frame, 1e3 * (now - seconds), 1e3 * seconds)
            self.phases.append(phase)
            if name == "backward" and self.scheduled:
                self.backwards.append((phase, self.scheduled[-1].graph))

    def _capture(self, event: events.Event, now: float) -> None:
        self.frame = event.name

    def _recompile(self, event: events.Event, now: float) -> None:
        self.rejected += 1
        for entry, failure in enumerate(event.data["failures"]):
            texts, line = ("", "", "", ""), None
            if failure is not None:
                texts = failure.guard.text, failure.source, failure.expected, failure.found
                line = source_line(failure.guard.line)
            found = data.Recompile(event.name, entry, *texts, line, 1e3 * now, self.rejected, False)
            self.recompiles.append(found)

    def _restricted(self, event: events.Event, now: float) -> None:
        reason = event.data["reason"]
        sizes = tuple(event.data["sizes"])
        self.restrictions[data.Restriction(event.name, sizes, reason.detail, source_line(reason.line))] = None

    def _partition(self, event: events.Event, now: float) -> None:
        self.partitions.append(event.data["parts"])

    def _schedule(self, event: events.Event, now: float) -> None:
        self.scheduled.append(Scheduled(event.data["graph"], event.data["schedule"]))

    def _installed(self, event: events.Event, now: float) -> None:
        entry = event.data["entry"]
        self.sources[id(entry)] = entry, event.data["sources"]
        if self.recompiles and self.recompiles[-1].frame == event.name:
            self.installed.add(self.recompiles[-1].call)
        for scheduled in self.scheduled[self.before :]:
            scheduled.entry = entry
        self.before = len(self.scheduled)

    def _backend(self, event: events.Event, now: float) -> None:
        self.before = len(self.scheduled)

    def _plan(self, event: events.Event, now: float) -> None:
        if self.scheduled and self.scheduled[-1].called is None:
            self.scheduled[-1].called, self.scheduled[-1].plan = event.data["externs"], event.data["plan"]


_COLLECTED: dict[str, Callable[[EventCollector, events.Event, float], None]] = {
    "capture-start": EventCollector._capture,
    "backend-start": EventCollector._backend,
    "entry-installed": EventCollector._installed,
    "recompile": EventCollector._recompile,
    "size-restricted": EventCollector._restricted,
    "partition": EventCollector._partition,
    "schedule": EventCollector._schedule,
    "plan": EventCollector._plan,
}
