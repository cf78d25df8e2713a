"""Plans for sizes that change: the schedule with symbols and its machine code are made once, a plan for each set of numbers.

An instance is what `build_plan` makes of the schedule with the numbers in place of the symbols: where its temporaries lie,
what is in whose place and how launches are joined is decided as for fixed sizes. Its machine code is the template's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.errors import NeedsFixedSize
from smelt.graph.sizes import Expr, Size, Sym, evaluate, free_syms
from smelt.graph.specs import at_numbers
from smelt.graph.tree import map_leaves
from smelt.plan.build import build_plan
from smelt.plan.items import Item, LaunchItem, TogetherItem
from smelt.plan.steps import Plan
from smelt.plan.target import Target
from smelt.schedule.schedule import ExternItem, Schedule, ViewItem

Values = Mapping[Sym, int]


@dataclass(frozen=True)
class Template:
    """A schedule of sizes with symbols, what `target` compiled it to, and the inputs that are Python numbers."""

    schedule: Schedule
    items: Sequence[Item]
    target: Target
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, schedule: Schedule, target: Target, numbers: tuple[int, ...] = ()) -> Template:
        """Compiles the schedule. Raises NeedsFixedSize for what is only compiled for numbers."""
        items = target.compile(schedule)
        for item in items:
            _refuse_sizes_on_a_gpu(item)
        return cls(schedule, items, target, numbers)

    def at(self, values: Values) -> Plan:
        """The plan for these sizes."""
        buffers = [replace(b, spec=at_numbers(b.spec, values)) for b in self.schedule.buffers]
        items = [_ITEMS[type(item)](item, values) for item in self.items]
        schedule = replace(self.schedule, buffers=buffers)
        plan = build_plan(schedule, replace(self.target, compile=lambda _: items))
        return replace(plan, numbers=self.numbers)


def _refuse_sizes_on_a_gpu(item: Item) -> None:
    parts = item.parts if isinstance(item, TogetherItem) else (item,) if isinstance(item, LaunchItem) else ()
    for code in (part.code for part in parts):
        sizes = (code.extent, *code.sizes)
        symbols = frozenset[Sym]().union(*map(free_syms, sizes))
        if code.function.block is not None and symbols:
            raise NeedsFixedSize(f"{code.name} is launched on a GPU over sizes that change", symbols)


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


_ITEMS: dict[type, Callable[[Any, Values], Item]] = {
    LaunchItem: _launch,
    TogetherItem: _together,
    ExternItem: _extern,
    ViewItem: _view,
}
