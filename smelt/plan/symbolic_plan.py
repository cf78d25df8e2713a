"""Plans with symbolic sizes, valid for all sizes with the same outcomes of the decisions that depend on sizes
(`size_decisions.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from smelt import _native
from smelt.plan.arena_placement import Interval, place
from smelt.plan.steps import Alloc, Plan, RunPlans, Step, Subplan, extern_names, kernel_names
from smelt.shapes.expr import Size, Sym, Values
from smelt.shapes.substitute import substitute

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
        return _placed(self.plan, self.intervals, self.alignment, values)

    @cached_property
    def kernels(self) -> int:
        """The number of distinct kernels that the plan launches."""
        return len(kernel_names(self.plan))

    @cached_property
    def externs(self) -> tuple[str, ...]:
        """The operators that the plan calls."""
        return extern_names(self.plan)


def _placed(plan: Plan, intervals: tuple[Interval, ...], alignment: int, values: Values) -> Plan:
    intervals = substitute(intervals, values)
    placement = place(intervals, alignment)
    offsets = [placement.offsets[i.key] for i in intervals]

    def inner(of: Subplan) -> Subplan:
        if of.intervals is None:
            return of
        return replace(of, plan=_placed(of.plan, of.intervals, alignment, values), intervals=None)

    def at(step: Step) -> Step:
        if isinstance(step, RunPlans):
            fields = substitute((step.layouts, step.expect), values)
            return replace(step, plans=tuple(map(inner, step.plans)), layouts=fields[0], expect=fields[1])
        step = substitute(step, values)
        return (
            replace(step, arena=offsets[step.arena])
            if isinstance(step, Alloc) and step.arena is not None
            else step
        )

    return replace(plan, steps=tuple(map(at, plan.steps)), arena_bytes=placement.nbytes)


LoadSymbolic = Callable[
    [SymbolicPlan, Sequence[Sym]], Instances
]  # the symbols are the parameters of `Instances`
