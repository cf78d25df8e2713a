"""Events: each step of a compilation is emitted here; the progress line, reports and tests subscribe.

Subscribers run on the emitting thread, in order of subscription, and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

EventKind = Literal[
    "capture-start",      # attempt: capture.driver.attempts.Attempt
    "capture-end",        # seconds
    "backend-start",      # traced: tracing.traced.Traced
    "backend-end",        # seconds
    "stage",              # seconds; the event's name is that of the stage
    "partition",          # a joint graph was cut. seconds; saved: number of values kept for the backward; joint, parts: the
                          # tracing.backward.joint.Joint and the autograd.partition.Partition
    "graph-code",         # a graph is to run as Python. function: graph.graph_callable.GraphFunction
    "schedule",           # a graph is about to become code. graph: graph.ir.Graph; schedule: schedule.schedule.Schedule
    "plan",               # kernels: number of distinct ones; externs: names of the ATen operators that it calls; plan: the
                          # plan.steps.Plan, whose sizes may have symbols
    "backward-start",     # the first gradient has arrived. joint
    "backward-compiled",  # seconds; undefined: number of tangents that autograd did not define; joint
    "entry-installed",    # seconds, guards, inputs: numbers of them; entry: capture.driver.cache_entries.Entry; sources:
                          # guards.source.Source of each input; function: what it is an entry of
    "recompile",          # an entry refused the call. entry: its number; failure: guards.guard_failures.Failure
    "graph-break",        # reason: smelt.reasons.Reason
    "no-joint-graph",     # reason: why autograd runs the graph operator by operator
    "other-sizes",        # data decided sizes that a graph is not for: the original function runs
    "size-restricted",    # a size may not be any, so the capture begins again. sizes: where the program found it, and others
                          # that are concerned; reason
    "fallback",           # reason: why the call runs eagerly
]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """`name` is the function that is compiled, where the kind does not say otherwise; `data` has what stands beside the kind
    in `EventKind`."""

    kind: EventKind
    name: str
    data: dict[str, Any]


_subscribers: list[Callable[[Event], None]] = []


def emit(kind: EventKind, name: str = "", **data: Any) -> None:
    """Calls every subscriber with the event; without subscribers none is made."""
    if _subscribers:
        event = Event(kind, name, data)
        for subscriber in tuple(_subscribers):
            subscriber(event)


def subscribe(subscriber: Callable[[Event], None]) -> None:
    """Calls `subscriber` with every event from now on."""
    _subscribers.append(subscriber)


def unsubscribe(subscriber: Callable[[Event], None]) -> None:
    """Calls it no longer. Raises ValueError where it is not called."""
    _subscribers.remove(subscriber)


@contextmanager
def subscribed(subscriber: Callable[[Event], None]) -> Iterator[None]:
    """Calls `subscriber` with every event for the duration of the context."""
    subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe(subscriber)
