"""Launches of a schedule with symbolic sizes on a GPU, for each set of concrete sizes.

A kernel's text has the symbols (`codegen/triton/symbolic_kernels.py`), so a new set of sizes compiles nothing, unless it is
the first to need one of the few variants of a kernel. All other decisions are those of fixed sizes: batched launches,
scalars passed by value, aligned vectors. A kernel without symbolic text compiles for each set of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from smelt.codegen.triton.compile import General
from smelt.codegen.triton.symbolic_kernels import numbered, takes_sizes
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.machine_code import Function
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.plan.steps import CPU
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.shapes.expr import Sym

Generals = Mapping[int, General]  # by id of a KernelItem
Generate = Callable[[Schedule, Generals], Sequence[Item]]


def device_of(schedule: Schedule, item: KernelItem) -> torch.device:
    """The device of the kernel: that of its results."""
    return next(
        schedule.buffers[b].spec.device
        for b, f in zip(item.buffers, item.kernel.buffers)
        if b is not None and f.role in ("out", "inout")
    )


class LaunchesAtSizes:
    """Generates the launches of `schedule` for concrete sizes by `generate`, and keeps their code alive."""

    def __init__(self, schedule: Schedule, generate: Generate) -> None:
        self._generate = generate
        self._generals: dict[int, Kernel] = {}  # by id of an item, the same for all sizes
        general_of: dict[Kernel, Kernel] = {}
        for item in schedule.items:
            if isinstance(item, KernelItem) and takes_sizes(item.kernel) and device_of(schedule, item) != CPU:
                if item.kernel not in general_of:
                    general_of[item.kernel] = numbered(item.kernel)
                self._generals[id(item)] = general_of[item.kernel]
        self._alive: dict[Function, None] = {}

    def __call__(self, schedule: Schedule, values: Mapping[Sym, int]) -> Sequence[Item]:
        """The launches for the sizes `values`. `schedule`: the one at these sizes, with the items of kernels unchanged."""
        concrete: dict[Kernel, Kernel] = {}
        generals: dict[int, General] = {}
        items = list(schedule.items)
        for index, item in enumerate(items):
            if not isinstance(item, KernelItem) or not item.kernel.sizes:
                continue
            if (general := self._generals.get(id(item))) is not None:
                generals[id(item)] = General(general, tuple(values[s] for s in item.kernel.sizes))
                continue
            if item.kernel not in concrete:
                concrete[item.kernel] = at_sizes(item.kernel, values)
            items[index] = replace(item, kernel=concrete[item.kernel])
        launches = self._generate(replace(schedule, items=items), generals)
        for launch in launches:
            parts = launch.parts if isinstance(launch, ParallelLaunchItem) else (launch,)
            self._alive.update((part.code.function, None) for part in parts if isinstance(part, LaunchItem))
        return launches
