"""Plans for all numbers that give the same answers where a plan is decided by sizes (`plan.size_decisions`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from smelt import _native
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.graph.tensor_specs import at_numbers, tree_at
from smelt.plan.arena_placement import Interval, place
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    Step,
    View,
    extern_names,
    kernel_names,
)
from smelt.shapes.expr import Size, Sym, Values, evaluate

# The loaded plan for sizes; None where the plan is another one for these.
Instances = Callable[[Values], _native.Plan | None]


@dataclass(frozen=True)
class SizedPlan:
    """A plan in which sizes have symbols. Allocations in the arena have the number of an interval in place of an offset:
    where that lies depends on sizes. `conditions`: whether a size is at least 0, of all sizes that the plan depends on."""

    plan: Plan
    conditions: tuple[tuple[Size, bool], ...]
    intervals: tuple[Interval, ...]
    alignment: int

    def at(self, values: Values) -> Plan:
        """The plan for these numbers, for which the conditions must hold."""
        intervals = [replace(i, nbytes=evaluate(i.nbytes, values)) for i in self.intervals]
        placement = place(intervals, self.alignment)
        offsets = [placement.offsets[i.key] for i in intervals]
        steps = tuple(_STEPS[type(step)](step, values) for step in self.plan.steps)
        placed = tuple(
            replace(s, arena=offsets[s.arena]) if isinstance(s, Alloc) and s.arena is not None else s
            for s in steps
        )
        return replace(self.plan, steps=placed, arena_bytes=placement.nbytes)

    @cached_property
    def kernels(self) -> int:
        """How many different kernels it launches."""
        return len(kernel_names(self.plan))

    @cached_property
    def externs(self) -> tuple[str, ...]:
        """The operators that it calls."""
        return extern_names(self.plan)


LoadSized = Callable[[SizedPlan, Sequence[Sym]], Instances]  # given the symbols


def _alloc(step: Alloc, values: Values) -> Alloc:
    shape, stride = tree_at((step.shape, step.stride), values)
    return replace(step, shape=shape, stride=stride)


def _view(step: View, values: Values) -> View:
    shape, stride, offset = tree_at((step.shape, step.stride, step.offset), values)
    return replace(step, shape=shape, stride=stride, offset=offset)


def _launch(step: Launch, values: Values) -> Launch:
    extent, grain, sizes = tree_at((step.extent, step.grain, step.sizes), values)
    return replace(step, extent=extent, grain=grain, sizes=sizes)


def _together(step: ParallelLaunch, values: Values) -> ParallelLaunch:
    work, grain = tree_at((step.work, step.grain), values)
    return replace(
        step, launches=tuple(_launch(part, values) for part in step.launches), work=work, grain=grain
    )


def _aten(step: Aten, values: Values) -> Aten:
    args, kwargs = tree_at((step.args, step.kwargs), values)
    expect = map_leaves(step.expect, TensorSpec, lambda spec: at_numbers(spec, values))
    return replace(step, args=args, kwargs=kwargs, expect=expect)


def _same(step: Step, values: Values) -> Step:
    return step


_STEPS: dict[type, Callable[[Any, Values], Step]] = {
    Alloc: _alloc,
    View: _view,
    Launch: _launch,
    ParallelLaunch: _together,
    Aten: _aten,
    BumpVersion: _same,
    Free: _same,
}
