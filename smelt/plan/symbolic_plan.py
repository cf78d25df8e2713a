"""Plans with symbolic sizes, valid for all sizes with the same outcomes of the decisions that depend on sizes
(`size_decisions.py`)."""

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
    Plan,
    Step,
    Together,
    View,
    extern_names,
    kernel_names,
)
from smelt.shapes.expr import Size, Sym, Values, evaluate

# The loaded plan for concrete sizes; None for sizes with other outcomes.
Instances = Callable[[Values], _native.Plan | None]


@dataclass(frozen=True)
class SymbolicPlan:
    """A plan with symbolic sizes. An allocation in the arena has the index of an interval instead of an offset, since
    offsets depend on sizes. `conditions`: for each size that the plan depends on, whether it is at least 0."""

    plan: Plan
    conditions: tuple[tuple[Size, bool], ...]
    intervals: tuple[Interval, ...]
    alignment: int

    def at(self, values: Values) -> Plan:
        """The plan for these sizes, for which the conditions must hold."""
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
        """The number of distinct kernels that the plan launches."""
        return len(kernel_names(self.plan))

    @cached_property
    def externs(self) -> tuple[str, ...]:
        """The operators that the plan calls."""
        return extern_names(self.plan)


LoadSymbolic = Callable[
    [SymbolicPlan, Sequence[Sym]], Instances
]  # the symbols are the parameters of `Instances`


def _alloc(step: Alloc, values: Values) -> Alloc:
    shape, stride = tree_at((step.shape, step.stride), values)
    return replace(step, shape=shape, stride=stride)


def _view(step: View, values: Values) -> View:
    shape, stride, offset = tree_at((step.shape, step.stride, step.offset), values)
    return replace(step, shape=shape, stride=stride, offset=offset)


def _launch(step: Launch, values: Values) -> Launch:
    extent, grain, sizes = tree_at((step.extent, step.grain, step.sizes), values)
    return replace(step, extent=extent, grain=grain, sizes=sizes)


def _together(step: Together, values: Values) -> Together:
    work, grain = tree_at((step.work, step.grain), values)
    return replace(
        step, launches=tuple(_launch(part, values) for part in step.launches), work=work, grain=grain
    )


def _aten(step: Aten, values: Values) -> Aten:
    args, kwargs = tree_at((step.args, step.kwargs), values)
    expect = map_leaves(step.expect, TensorSpec, lambda spec: at_numbers(spec, values))
    return replace(step, args=args, kwargs=kwargs, expect=expect)


def _unchanged(step: Step, values: Values) -> Step:
    return step


_STEPS: dict[type, Callable[[Any, Values], Step]] = {
    Alloc: _alloc,
    View: _view,
    Launch: _launch,
    Together: _together,
    Aten: _aten,
    BumpVersion: _unchanged,
    Free: _unchanged,
}
