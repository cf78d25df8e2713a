"""Events: each step of a compilation is emitted here; logs, reports, dumps and tests subscribe.

Subscribers run on the emitting thread, in order of subscription, and must not raise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from smelt import terminal_hints

# The comment of a kind lists its data.
EventKind = Literal[
    "capture-start",      # an attempt begins. attempt: capture.driver.capture_attempts.Attempt
    "capture-end",        # an attempt has ended. seconds
    "backend-start",      # traced: tracing.record.traced.Traced
    "backend-end",        # seconds
    "stage",              # a stage has ended; the event's name is the stage's. seconds
    "partition",          # a joint graph was cut. seconds; saved: number of saved values; joint:
                          # tracing.backward.joint.Joint; parts: autograd.partition.Partition
    "graph-code",         # a graph will run as Python. function: graph.graph_callable.GraphFunction
    "schedule",           # graph: graph.ir.Graph; schedule: schedule.schedule.Schedule
    "plan",               # kernels: number of distinct ones; externs: names of called ATen operators; plan: plan.steps.Plan,
                          # whose sizes may have symbols
    "backward-start",     # the first gradient has arrived. joint
    "backward-compiled",  # seconds; undefined: number of tangents that autograd did not define; joint
    "entry-installed",    # seconds; guards, inputs: their numbers; entry: capture.driver.cache_entries.Entry; sources:
                          # guards.source.Source of each input; function: the function of the entry
    "recompile",          # no entry accepted a call. failures: of each entry, guards.guard_failures.Failure or None; entry:
                          # the number of the one that the call fits best; failure: that entry's
    "graph-break",        # reason: reasons.Reason
    "no-joint-graph",     # autograd runs the graph eagerly. reason
    "unbacked-mismatch",  # the graph is not valid for the unbacked sizes of the call, which runs eagerly. failure
    "size-restricted",    # capture restarts with a size specialized or bounded. sizes: the sources of the size and of those
                          # that depend on it; reason
    "eager-fallback",     # the call runs eagerly. reason
]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """`name`: the compiled function, unless the kind says otherwise. `data`: the values that `EventKind` lists."""

    kind: EventKind
    name: str
    data: dict[str, Any]


_subscribers: list[Callable[[Event], None]] = []


def emit(kind: EventKind, name: str = "", **data: Any) -> None:
    """Call every subscriber with the event; without subscribers, no event is created."""
    if _subscribers:
        event = Event(kind, name, data)
        for subscriber in tuple(_subscribers):
            subscriber(event)


def subscribe(subscriber: Callable[[Event], None]) -> None:
    """Call `subscriber` with every later event."""
    _subscribers.append(subscriber)


def unsubscribe(subscriber: Callable[[Event], None]) -> None:
    """Stop calling `subscriber`. Raises ValueError if it is not subscribed."""
    _subscribers.remove(subscriber)


class _Thread(threading.local):
    """Whether this thread is compiling."""

    compiling = False


_thread = _Thread()
_timers: list[Callable[[str, float], None]] = []


@contextmanager
def compiling(shown: str, name: str = "") -> Iterator[None]:
    """Time the context as compilation of `name`, and show its progress on a terminal as that of `shown`. A context within
    another on the same thread is part of it."""
    if _thread.compiling:
        yield
        return
    begin = time.perf_counter()
    _thread.compiling = True
    try:
        with terminal_hints.progress(shown):
            yield
    finally:
        _thread.compiling = False
        for timer in tuple(_timers):
            timer(name, time.perf_counter() - begin)


@contextmanager
def timed(timer: Callable[[str, float], None]) -> Iterator[None]:
    """For the duration of the context, call `timer` at the end of each compilation with its name and its seconds."""
    _timers.append(timer)
    try:
        yield
    finally:
        _timers.remove(timer)


@contextmanager
def subscribed(subscriber: Callable[[Event], None]) -> Iterator[None]:
    """Call `subscriber` with every event for the duration of the context."""
    subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe(subscriber)
