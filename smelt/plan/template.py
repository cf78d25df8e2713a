"""Plans for sizes that change: the schedule with symbols and its machine code are made once, a plan for each set of numbers.

An instance is what `build_plan` makes of the schedule with the numbers in place of the symbols: where its temporaries lie,
what is in whose place and how launches are joined is decided as for fixed sizes. Its machine code is the template's, but
where a set of numbers is the first to need another variant of a kernel, or of a product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from smelt.graph.sizes import Expr, Size, Values, evaluate
from smelt.graph.specs import at_numbers
from smelt.graph.tree import map_leaves
from smelt.plan.build import build_plan
from smelt.plan.items import Item, LaunchItem, TogetherItem
from smelt.plan.steps import Plan
from smelt.plan.target import ItemsAt, Target
from smelt.schedule.schedule import ExternItem, KernelItem, Schedule, ViewItem


@dataclass(frozen=True)
class Template:
    """A schedule of sizes with symbols, what gives its launches at numbers, and the inputs that are Python numbers."""

    schedule: Schedule
    items_at: ItemsAt
    target: Target
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, schedule: Schedule, target: Target, numbers: tuple[int, ...] = ()) -> Template:
        """Compiles the schedule. Raises NeedsFixedSize for what is only compiled for numbers."""
        if target.for_sizes is not None:
            return cls(schedule, target.for_sizes(schedule), target, numbers)
        compiled = target.compile(schedule)
        return cls(schedule, lambda _, values: [item_at(i, values) for i in compiled], target, numbers)

    def at(self, values: Values) -> Plan:
        """The plan for these sizes."""
        buffers = [replace(b, spec=at_numbers(b.spec, values)) for b in self.schedule.buffers]
        given = [item_at(i, values) for i in self.schedule.items]
        schedule = replace(self.schedule, buffers=buffers, items=given)
        items = self.items_at(schedule, values)
        plan = build_plan(schedule, replace(self.target, compile=lambda _: items))
        return replace(plan, numbers=self.numbers)


def item_at(item: Any, values: Values) -> Any:
    """An item with numbers; kernels stay what they are."""
    return _ITEMS[type(item)](item, values)


def _numbers(value: Any, values: Values) -> Any:
    return map_leaves(value, Expr, lambda size: evaluate(size, values))


def _launch(item: LaunchItem, values: Values) -> LaunchItem:
    def at(size: Size) -> int:
        number: int = evaluate(size, values)
        return number

    code = item.code
    code = replace(code, extent=at(code.extent), sizes=tuple(map(at, code.sizes)))
    return replace(item, code=code)


def _together(item: TogetherItem, values: Values) -> TogetherItem:
    return replace(item, parts=tuple(_launch(part, values) for part in item.parts))


def _extern(item: ExternItem, values: Values) -> ExternItem:
    args, kwargs = _numbers((item.args, item.kwargs), values)
    return replace(item, args=args, kwargs=kwargs)


def _view(item: ViewItem, values: Values) -> ViewItem:
    shape, stride, offset = _numbers((item.shape, item.stride, item.offset), values)
    return replace(item, shape=shape, stride=stride, offset=offset)


def _kernel(item: KernelItem, values: Values) -> KernelItem:
    return item


_ITEMS: dict[type, Callable[[Any, Values], Item | KernelItem]] = {
    KernelItem: _kernel,
    LaunchItem: _launch,
    TogetherItem: _together,
    ExternItem: _extern,
    ViewItem: _view,
}
