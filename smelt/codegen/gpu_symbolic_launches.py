"""A schedule whose sizes have symbols, on a GPU: its launches for each set of numbers.

Nothing is compiled for a set that has its code already: a kernel's text has the symbols
(`codegen/triton/symbolic_kernels.py`), and what else depends on numbers is chosen for each launch, among few variants.
All that is not code is decided for numbers, as where sizes are fixed: which launches are one, what is passed by value,
what begins where vectors can be read. A kernel that has no text with symbols is one of fixed sizes, compiled for each
set.
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
from smelt.plan.plan_items import Item, LaunchItem, TogetherItem
from smelt.plan.steps import CPU
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.shapes.expr import Sym

Generals = Mapping[int, General]  # by id of a KernelItem
Generate = Callable[[Schedule, Generals], Sequence[Item]]


def device_of(schedule: Schedule, item: KernelItem) -> torch.device:
    """Where it runs: what it writes is there."""
    return next(
        schedule.buffers[b].spec.device
        for b, f in zip(item.buffers, item.kernel.buffers)
        if b is not None and f.role in ("out", "inout")
    )


class LaunchesAtSizes:
    """What gives the launches of `schedule` at numbers, by `generate`. It keeps all code that it was given."""

    def __init__(self, schedule: Schedule, generate: Generate) -> None:
        self._generate = generate
        self._numbered: dict[int, Kernel] = {}  # by id of an item, which is that of all sizes
        made: dict[Kernel, Kernel] = {}
        for item in schedule.items:
            if isinstance(item, KernelItem) and takes_sizes(item.kernel) and device_of(schedule, item) != CPU:
                if item.kernel not in made:
                    made[item.kernel] = numbered(item.kernel)
                self._numbered[id(item)] = made[item.kernel]
        self._kept: dict[Function, None] = {}

    def __call__(self, schedule: Schedule, values: Mapping[Sym, int]) -> Sequence[Item]:
        """`schedule`: that of all sizes at `values`, but for its kernels, whose items are its own."""
        at_numbers: dict[Kernel, Kernel] = {}
        generals: dict[int, General] = {}
        items = list(schedule.items)
        for place, item in enumerate(items):
            if not isinstance(item, KernelItem) or not item.kernel.sizes:
                continue
            if (general := self._numbered.get(id(item))) is not None:
                generals[id(item)] = General(general, tuple(values[s] for s in item.kernel.sizes))
                continue
            if item.kernel not in at_numbers:
                at_numbers[item.kernel] = at_sizes(item.kernel, values)
            items[place] = replace(item, kernel=at_numbers[item.kernel])
        found = self._generate(replace(schedule, items=items), generals)
        for made in found:
            parts = made.parts if isinstance(made, TogetherItem) else (made,)
            self._kept.update((part.code.function, None) for part in parts if isinstance(part, LaunchItem))
        return found
