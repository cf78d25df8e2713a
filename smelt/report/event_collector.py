"""Events of a series of calls, collected for `explain`: phases, partitions, schedules, refusals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt import events
from smelt.autograd.partition import Partition
from smelt.capture.driver.cache_entries import Entry
from smelt.graph.ir import Graph
from smelt.guards.guard_failures import Failure
from smelt.guards.source import Source
from smelt.plan.steps import Plan
from smelt.reasons import Reason
from smelt.schedule.schedule import Schedule


@dataclass(frozen=True)
class Phase:
    """One step of compiling. `start`: seconds since collection began; phases may nest, such as "lower" within
    "backend". `graph`: for a backward, the graph that was compiled, which has a frame of its own."""

    name: str
    frame: str
    start: float
    seconds: float
    graph: Graph | None = None

    def holds(self, other: Phase) -> bool:
        """Whether `other` lies within this phase."""
        return self.start <= other.start and other.start + other.seconds <= self.start + self.seconds


@dataclass(frozen=True)
class Recompile:
    """An entry that rejected a call. `failure`: None if all its guards hold when they are evaluated again."""

    frame: str
    entry: int
    failure: Failure | None
    at: float


@dataclass(frozen=True)
class Restriction:
    """Specialized sizes, named as the program found them, and the reason."""

    frame: str
    sizes: tuple[str, ...]
    reason: Reason


@dataclass
class Scheduled:
    """A graph that became code. `called`: the ATen operators that its plan calls, None without a plan, in `plan`; the
    schedule's other ATen calls are generated. `entry`: the entry that it was compiled for, if known at once."""

    graph: Graph
    schedule: Schedule
    called: tuple[str, ...] | None = None
    plan: Plan | None = None
    entry: Entry | None = None


# Kinds of events that carry seconds, and what the phase is called; "stage" has names of its own.
_PHASES = {
    "capture-end": "capture",
    "backend-end": "backend",
    "partition": "partition",
    "backward-compiled": "backward",
}


@dataclass
class Watch:
    """A subscriber to `smelt.events`."""

    began: float = field(default_factory=time.perf_counter)
    phases: list[Phase] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    restrictions: dict[Restriction, None] = field(default_factory=dict)
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
        if event.kind == "capture-start":
            self.frame = event.name
        if "seconds" in event.data:
            self._phase(event, now)
        note = _NOTES.get(event.kind)
        if note is not None:
            note(self, event, now)

    def _phase(self, event: events.Event, now: float) -> None:
        name = event.name if event.kind == "stage" else _PHASES.get(event.kind)
        if name is not None:
            seconds = event.data["seconds"]
            graph = self.scheduled[-1].graph if name == "backward" and self.scheduled else None
            self.phases.append(Phase(name, self.frame, now - seconds, seconds, graph))

    def _recompile(self, event: events.Event, now: float) -> None:
        self.recompiles.append(Recompile(event.name, event.data["entry"], event.data["failure"], now))

    def _restricted(self, event: events.Event, now: float) -> None:
        self.restrictions[Restriction(event.name, event.data["sizes"], event.data["reason"])] = None

    def _partition(self, event: events.Event, now: float) -> None:
        self.partitions.append(event.data["parts"])

    def _schedule(self, event: events.Event, now: float) -> None:
        self.scheduled.append(Scheduled(event.data["graph"], event.data["schedule"]))

    def _installed(self, event: events.Event, now: float) -> None:
        entry = event.data["entry"]
        self.sources[id(entry)] = entry, event.data["sources"]
        for scheduled in self.scheduled[self.before :]:
            scheduled.entry = entry
        self.before = len(self.scheduled)

    def _backend(self, event: events.Event, now: float) -> None:
        self.before = len(self.scheduled)

    def _plan(self, event: events.Event, now: float) -> None:
        if self.scheduled and self.scheduled[-1].called is None:
            self.scheduled[-1].called, self.scheduled[-1].plan = event.data["externs"], event.data["plan"]


_NOTES: dict[str, Any] = {
    "backend-start": Watch._backend,
    "entry-installed": Watch._installed,
    "recompile": Watch._recompile,
    "size-restricted": Watch._restricted,
    "partition": Watch._partition,
    "schedule": Watch._schedule,
    "plan": Watch._plan,
}
