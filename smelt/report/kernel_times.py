"""Kernel times in calls recorded by torch's profiler: by run of a graph and step of its plan.

A plan emits an event for each step that computes, so the events of one run are its steps, in order
(`plan/profiler_names.py`).
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.profiler import profile, supported_activities

from smelt.plan import profiler_names
from smelt.plan.steps import Aten, Launch, Plan, Reg, Step
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, accesses
from smelt.torch_private import profiler_enabled

Names = tuple[str, ...]  # of the graph's event and those of its steps


class KernelTimes:
    """Microseconds of each step, for every recorded run."""

    def __init__(self) -> None:
        self._runs: dict[Names, list[list[float]]] = defaultdict(list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Profile the context. Raises RuntimeError if torch's profiler is already on, since this would end it."""
        if profiler_enabled():
            raise RuntimeError("torch's profiler is on: the times of kernels are in its trace")
        with profile(activities=supported_activities()) as profiled:
            yield
        for event in profiled.events() or ():
            if event.name.startswith(profiler_names.GRAPH):
                steps = [child for child in event.cpu_children if child.name.startswith(profiler_names.STEP)]
                self._runs[event.name, *(step.name for step in steps)].append([_us(step) for step in steps])

    def of(self, planned: Iterable[tuple[Schedule, Plan | None]]) -> list[dict[int, float]]:
        """For each schedule, with its plan: the median of each item, by position. Empty for graphs that did not run,
        and for plans whose events are ambiguous."""
        found = [
            ({}, ()) if plan is None else (steps_of(schedule, plan), named(plan))
            for schedule, plan in planned
        ]
        counts = Counter(names for _, names in found)
        return [self._medians(steps, names) if counts[names] == 1 else {} for steps, names in found]

    def _medians(self, steps: Mapping[int, int], names: Names) -> dict[int, float]:
        """`steps`: position of an item -> index of its event in a run."""
        columns = list(zip(*self._runs.get(names, ())))
        return {item: statistics.median(columns[step]) for item, step in steps.items()} if columns else {}


def _us(event: Any) -> float:
    """Microseconds of a step: on the GPU, if it started work there."""
    return float(event.device_time_total or event.cpu_time_total)


def named(plan: Plan) -> Names:
    """The event names of a run: the graph's, then those of its steps."""
    return (profiler_names.of_graph(plan), *(name for _, name in _computing(plan)))


def _computing(plan: Plan) -> Iterator[tuple[Step, str]]:
    """The steps that emit events, and the event names."""
    return ((step, name) for step in plan.steps if (name := profiler_names.of_step(step)))


def steps_of(schedule: Schedule, plan: Plan) -> Mapping[int, int]:
    """Position of an item -> index, among the steps that emit events, of the step that does its work, matched by
    buffers. A kernel that runs in a parallel launch has none, nor has a kernel fused into a product as epilogue, whose
    time includes both."""
    launches: dict[tuple[int, ...], list[int]] = defaultdict(list)  # those not matched yet
    results: dict[int, int] = {}
    for n, (step, _) in enumerate(_computing(plan)):
        if isinstance(step, Launch):
            launches[step.regs].append(n)
        elif isinstance(step, Aten):
            results |= dict.fromkeys(_results(step), n)
    found: dict[int, int] = {}
    for i, item in enumerate(schedule.items):
        if isinstance(item, KernelItem) and launches[_buffers(item)]:
            found[i] = launches[_buffers(item)].pop(0)
    # The other launches are products, whose last buffer is the result.
    results |= {regs[-1]: n for regs, numbers in launches.items() for n in numbers}
    for i, item in enumerate(schedule.items):
        made = [results[out] for out in _item_results(schedule, i) if out in results]
        if made and isinstance(item, ExternItem):
            found[i] = made[0]
    return found


def _buffers(item: KernelItem) -> tuple[int, ...]:
    """The buffers of a launch of the kernel."""
    formals = zip(item.buffers, item.kernel.buffers)
    return tuple(b for b, f in formals if b is not None and f.role != "local")


def _results(step: Aten) -> Iterator[int]:
    yield from (out for out in step.outs if out is not None)
    out = step.kwargs.get("out")
    if isinstance(out, Reg):
        yield out.index


def _item_results(schedule: Schedule, position: int) -> Iterator[int]:
    """The results of a call; for a product with a fused epilogue, the epilogue's result."""
    own = accesses(schedule.items[position])[1]
    yield from own
    for item in schedule.items[position + 1 :]:
        reads, writes = accesses(item)
        if isinstance(item, KernelItem) and not set(own).isdisjoint(reads):
            yield from writes
