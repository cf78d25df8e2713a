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

from torch.autograd.profiler import profile
from torch.profiler import ProfilerActivity, supported_activities

from smelt.plan import profiler_names
from smelt.plan.steps import Aten, Launch, Plan, Reg, RunPlans, Step
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem, accesses
from smelt.torch_private import profiler_enabled

Names = tuple[str, ...]  # of the graph's event and those of its steps


class KernelTimes:
    """Microseconds of each step, for every recorded run."""

    def __init__(self) -> None:
        self._runs: dict[Names, list[list[float]]] = defaultdict(list)
        self._recorded = False
        self._replayed = False  # CUDA graphs

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Profile the context. Raises RuntimeError if torch's profiler is already on, since this would end it."""
        if profiler_enabled():
            raise RuntimeError("torch's profiler is on: the times of kernels are in its trace")
        device = "cuda" if ProfilerActivity.CUDA in supported_activities() else None
        # `torch.profiler.profile` would import Inductor, for seconds, to look at an option.
        with profile(use_device=device, use_kineto=True) as profiled:
            self._recorded = True
            yield
        for event in profiled.function_events or ():
            self._replayed |= event.name in _REPLAYS
            if event.name.startswith(profiler_names.GRAPH):
                steps = [child for child in event.cpu_children if child.name.startswith(profiler_names.STEP)]
                self._runs[event.name, *(step.name for step in steps)].append([_us(step) for step in steps])

    def of(self, planned: Iterable[tuple[Schedule, Plan | None, str]]) -> list[tuple[dict[int, float], str]]:
        """For each schedule, with its plan and the level of its graph: the median of each item, by position, and why
        items have none; both are empty if nothing was recorded."""
        found = [
            (schedule, plan, level, () if plan is None else named(plan)) for schedule, plan, level in planned
        ]
        counts = Counter(names for *_, names in found)
        if not self._recorded:
            return [({}, "") for _ in found]
        return [self._medians(*graph, counts[graph[-1]]) for graph in found]

    def _medians(
        self, schedule: Schedule, plan: Plan | None, level: str, names: Names, same: int
    ) -> tuple[dict[int, float], str]:
        """`same`: the number of graphs whose events have these names."""
        columns = list(zip(*self._runs.get(names, ())))
        if plan is None or not columns:
            return {}, self._why_not_run(level, names)
        if same > 1:
            return {}, f"torch's profiler cannot tell it from {same - 1} more with the same kernels"
        times = {item: statistics.median(columns[step]) for item, step in steps_of(schedule, plan).items()}
        missing = sum(not isinstance(item, ViewItem) for item in schedule.items) - len(times)
        return times, f"{missing} run within the step of another" if missing else ""

    def _why_not_run(self, level: str, names: Names) -> str:
        """Why no recorded run has these events."""
        if any(run[0] == graph for run in self._runs for graph in names[:1]):
            return "the timed calls ran another entry, or a plan of other steps for other sizes"
        if self._replayed:
            return "the timed calls replayed CUDA graphs, which show no steps"
        if level == "backward":
            return (
                "the timed calls ran no backward of it. Call backward() within `with explanation.timing():`, or explain "
                "a function that calls it"
            )
        return "no timed call ran it: other entries served them, or it was compiled later"


_REPLAYS = ("cudaGraphLaunch", "hipGraphLaunch")  # events of the profiler


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
        elif isinstance(step, RunPlans):
            results |= {out: n for out in step.outs if out is not None}
    found: dict[int, int] = {}
    for i, item in enumerate(schedule.items):
        if isinstance(item, KernelItem) and launches[_buffers(item)]:
            found[i] = launches[_buffers(item)].pop(0)
    # The other launches are products, whose last buffer is the result.
    results |= {regs[-1]: n for regs, numbers in launches.items() for n in numbers}
    readers = _readers(schedule)
    for i, item in enumerate(schedule.items):
        if isinstance(item, ExternItem):
            made = [results[out] for out in _item_results(schedule, i, readers) if out in results]
            found |= {i: made[0]} if made else {}
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


def _readers(schedule: Schedule) -> Mapping[int, list[int]]:
    """By buffer, the positions of the kernels that read it."""
    found: dict[int, list[int]] = defaultdict(list)
    for i, item in enumerate(schedule.items):
        if isinstance(item, KernelItem):
            for buffer in accesses(item)[0]:
                found[buffer].append(i)
    return found


def _item_results(schedule: Schedule, position: int, readers: Mapping[int, list[int]]) -> Iterator[int]:
    """The results of a call; for a product with a fused epilogue, the epilogue's result."""
    own = accesses(schedule.items[position])[1]
    yield from own
    for i in sorted({i for buffer in own for i in readers.get(buffer, ()) if i > position}):
        yield from accesses(schedule.items[i])[1]
