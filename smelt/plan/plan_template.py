"""Plans for sizes that change: the schedule with symbols and its machine code are made once, a plan for each set of numbers.

What is decided by numbers - where temporaries lie, what is in whose place, how launches are joined - is decided as for fixed
sizes. Where launches have symbols in their sizes, all else of a plan is made once as well, for each combination of answers
that comes up (`plan.symbolic_plan`). Where launches are made for numbers, plans are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt import _native
from smelt.errors import VerificationError
from smelt.graph.tensor_specs import at_numbers, tree_at
from smelt.plan.build_plan import build_plan, sized_plan
from smelt.plan.plan_items import Item
from smelt.plan.plan_printer import print_plan
from smelt.plan.size_decisions import Decisions
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import Instances, LoadSized, SizedPlan
from smelt.plan.target import Decided, ItemsAt, Target
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem
from smelt.shapes.expr import Sym, Values


@dataclass(frozen=True)
class Template:
    """A schedule of sizes with symbols, what gives its launches, and the inputs that are Python numbers."""

    schedule: Schedule
    items: ItemsAt | Decided
    target: Target
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, schedule: Schedule, target: Target, numbers: tuple[int, ...] = ()) -> Template:
        """Compiles the schedule. Raises NeedsFixedSize for what is only compiled for numbers."""
        if target.for_sizes is not None:
            return cls(schedule, target.for_sizes(schedule), target, numbers)
        compiled = target.compile(schedule)
        return cls(schedule, Decided(lambda _: compiled), target, numbers)

    def at(self, values: Values) -> Plan:
        """The plan for these sizes."""
        if isinstance(self.items, Decided):
            return self.sized(values).at(values)
        buffers = [replace(b, spec=at_numbers(b.spec, values)) for b in self.schedule.buffers]
        schedule = replace(self.schedule, buffers=buffers, items=_at(self.schedule.items, values))
        items = self.items(schedule, values)
        return replace(build_plan(schedule, self._given(items)), numbers=self.numbers)

    def sized(self, values: Values) -> SizedPlan:
        """The plan for these sizes and all that give the same answers, of launches that are `Decided`."""
        assert isinstance(self.items, Decided)
        decisions = Decisions(values)
        made = sized_plan(self.schedule, self._given(self.items.items(decisions)), decisions)
        return replace(made, plan=replace(made.plan, numbers=self.numbers))

    def _given(self, items: Sequence[Item]) -> Target:
        return replace(self.target, compile=lambda _: items)


class Loader:
    """Loads the plans of a template whose launches are for all sizes, given what loads one for all that give the same
    answers. Those of some combinations of answers are kept."""

    _KEPT = 64

    def __init__(self, template: Template, load: LoadSized, syms: Sequence[Sym]) -> None:
        self._template, self._load, self._syms = template, load, syms
        self._kept: tuple[tuple[SizedPlan, Instances], ...] = ()  # used last first

    def __call__(self, values: Values) -> tuple[_native.Plan, SizedPlan]:
        """The loaded plan, and the one of which it is an instance."""
        for place, kept in enumerate(self._kept):
            made = kept[1](values)
            if made is not None:
                if place:
                    self._keep(kept)
                return made, kept[0]
        sized = self._template.sized(values)
        instances = self._load(sized, self._syms)
        self._keep((sized, instances))
        made = instances(values)
        assert made is not None, "its conditions hold for what it was made for"
        return made, sized

    def _keep(self, first: tuple[SizedPlan, Instances]) -> None:
        others = tuple(kept for kept in self._kept if kept is not first)
        self._kept = (first, *others[: self._KEPT - 1])

    def check(self, loaded: _native.Plan, sized: SizedPlan, values: Values) -> None:
        """Raises VerificationError where the plan is not that of these sizes."""
        plan = sized.at(values)
        verify(plan)
        if print_plan(plan) != print_plan(self._template.at(values)):
            raise VerificationError(f"a plan that is not for {values}:\n{print_plan(plan)}")
        if loaded.arena_bytes != plan.arena_bytes:
            raise VerificationError(f"an arena of {loaded.arena_bytes} bytes, not {plan.arena_bytes}")


def _at(items: Sequence[Any], values: Values) -> list[Any]:
    """Items of a schedule with numbers; kernels stay what they are."""
    return [_ITEMS[type(item)](item, values) for item in items]


def _extern(item: ExternItem, values: Values) -> ExternItem:
    args, kwargs = tree_at((item.args, item.kwargs), values)
    return replace(item, args=args, kwargs=kwargs)


def _view(item: ViewItem, values: Values) -> ViewItem:
    shape, stride, offset = tree_at((item.shape, item.stride, item.offset), values)
    return replace(item, shape=shape, stride=stride, offset=offset)


def _kernel(item: KernelItem, values: Values) -> KernelItem:
    return item


_ITEMS: dict[type, Callable[[Any, Values], ExternItem | ViewItem | KernelItem]] = {
    KernelItem: _kernel,
    ExternItem: _extern,
    ViewItem: _view,
}
