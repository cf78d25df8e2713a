"""Plans of a schedule with symbolic sizes: the schedule and its machine code exist once, each set of sizes has a plan.

Arena offsets, in-place results and batched launches depend on concrete sizes, as they do in a plan of fixed sizes. Where
launches have symbolic sizes (`SymbolicLaunches`), the remainder of the plan is built once for each combination of outcomes
of those decisions (`symbolic_plan.py`). Where launches exist for concrete sizes only (`LaunchesAt`), each set of sizes has
its plan built from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from smelt import _native
from smelt.errors import VerificationError
from smelt.plan.build_plan import build_plan, build_symbolic_plan
from smelt.plan.plan_device import PlanDevice
from smelt.plan.plan_items import Item
from smelt.plan.plan_printer import print_plan
from smelt.plan.size_decisions import Decisions, UniversalDecisions
from smelt.plan.steps import Plan, Subplan
from smelt.plan.symbolic_plan import Instances, LoadSymbolic, SymbolicPlan
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule import Schedule
from smelt.shapes.expr import Size, Sym, Values, free_syms, static
from smelt.shapes.substitute import substitute, substitution

# The items for concrete sizes, from the schedule at these sizes. Kernels keep their symbols.
LaunchesAt = Callable[[Schedule, Values], Sequence[Item]]


@dataclass(frozen=True)
class SymbolicLaunches:
    """Items with symbolic sizes. `items` records in its argument each decision that depends on sizes; the items that it
    returns are valid for all sizes with the same outcomes."""

    items: Callable[[Decisions], Sequence[Item]]


@dataclass(frozen=True)
class Template:
    """A schedule with symbolic sizes, its launches, and the indices of the inputs that are Python numbers."""

    schedule: Schedule
    launches: SymbolicLaunches | LaunchesAt
    device: PlanDevice
    numbers: tuple[int, ...] = ()

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """The constants of each of its plans."""
        return self.schedule.constants

    def within(self, decisions: Decisions) -> Subplan:
        """The plan inside of one that is built with these decisions. Launches for concrete sizes fix the sizes of both."""
        if isinstance(self.launches, SymbolicLaunches):
            sized = self._symbolic(decisions)
            return Subplan(sized.plan, (), sized.intervals)
        values = decisions.values
        assert values is not None and not decisions.for_all_sizes
        for sym in self._symbols:
            decisions.equal(sym, values[sym])
        return Subplan(self.at(values), ())

    @cached_property
    def _symbols(self) -> list[Sym]:
        specs = [b.spec for b in self.schedule.buffers]
        return list(
            dict.fromkeys(s for spec in specs for n in (*spec.shape, *spec.stride) for s in free_syms(n))
        )

    def at(self, values: Values) -> Plan:
        """The plan for these sizes."""
        if isinstance(self.launches, SymbolicLaunches):
            return self.symbolic(values).at(values)
        schedule = replace(
            self.schedule,
            buffers=substitute(self.schedule.buffers, values),
            items=substitute(self.schedule.items, values),
        )
        return build_plan(schedule, self.launches(schedule, values), self.device, self.numbers)

    def symbolic(self, values: Values) -> SymbolicPlan:
        """The plan for these sizes and all others with the same outcomes. The launches must be `SymbolicLaunches`."""
        return self._symbolic(Decisions(values))

    def universal(self, values: Values) -> SymbolicPlan:
        """The plan for all sizes, these included. The launches must be `SymbolicLaunches`, without generated products."""
        return self._symbolic(UniversalDecisions(values))

    def _symbolic(self, decisions: Decisions) -> SymbolicPlan:
        assert isinstance(self.launches, SymbolicLaunches)
        items = self.launches.items(decisions)
        return build_symbolic_plan(self.schedule, items, self.device, decisions, self.numbers)


@substitution(Template)
def _at(template: Template, values: Mapping[Sym, Size]) -> Plan:
    return template.at({sym: static(size) for sym, size in values.items()})


class Loader:
    """Loads the plans of a template with `SymbolicLaunches`. `load` loads a symbolic plan, which covers all sizes with the
    same outcomes. The symbolic plans used last stay cached. `on_plan` receives each one that is made, and the sizes that it
    is made for."""

    _CAPACITY = 64

    def __init__(
        self,
        template: Template,
        load: LoadSymbolic,
        syms: Sequence[Sym],
        on_plan: Callable[[SymbolicPlan, Values], None] | None = None,
    ) -> None:
        self._template, self._load, self._syms, self._on_plan = template, load, syms, on_plan
        self._cached: tuple[tuple[SymbolicPlan, Instances], ...] = ()  # most recently used first

    def __call__(self, values: Values) -> tuple[_native.Plan, SymbolicPlan]:
        """The loaded plan, and the symbolic plan that it instantiates."""
        for index, cached in enumerate(self._cached):
            loaded = cached[1](values)
            if loaded is not None:
                if index:
                    self._move_to_front(cached)
                return loaded, cached[0]
        plan = self._template.symbolic(values)
        instances = self._load(plan, self._syms)
        self._move_to_front((plan, instances))
        loaded = instances(values)
        assert loaded is not None, "a symbolic plan covers the sizes that it is built for"
        if self._on_plan is not None:
            self._on_plan(plan, values)
        return loaded, plan

    def _move_to_front(self, first: tuple[SymbolicPlan, Instances]) -> None:
        others = tuple(cached for cached in self._cached if cached is not first)
        self._cached = (first, *others[: self._CAPACITY - 1])

    def check(self, loaded: _native.Plan, symbolic: SymbolicPlan, values: Values) -> None:
        """Raises VerificationError where the loaded plan differs from one built for these sizes."""
        plan = symbolic.at(values)
        verify(plan)
        if print_plan(plan) != print_plan(self._template.at(values)):
            raise VerificationError(f"a plan that is not for {values}:\n{print_plan(plan)}")
        if loaded.arena_bytes != plan.arena_bytes:
            raise VerificationError(f"an arena of {loaded.arena_bytes} bytes, not {plan.arena_bytes}")
