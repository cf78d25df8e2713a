"""User kernels (`graph/user_kernel_calls.py`) that write in place, as in eager.

In a functional graph a launch returns new values of the tensors that it writes, which would require a copy of each first.
If the old value has no later reader, the launch writes the tensor itself, and readers of the new value read it there. This
holds for temporaries, and for inputs that hold the new value at the end; otherwise the copy is a step of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.user_kernel_calls import RUN_KERNEL, RUN_KERNEL_FUNCTIONAL
from smelt.ops.node_builders import CLONE
from smelt.ops.registry import REGISTRY, row
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.plan.schema_aliases import aliased_values, returns_alias
from smelt.schedule.schedule import BufRef, ExternItem, Schedule, ViewItem
from smelt.shapes.expr import contiguous_stride

_QUIET = (RUN_KERNEL, RUN_KERNEL_FUNCTIONAL, WRITE_INPUT)


def in_place(schedule: Schedule, items: Sequence[Item]) -> tuple[Schedule, list[Item]]:
    """The schedule and items with launches that write in place."""
    if not any(isinstance(item, ExternItem) and item.op is RUN_KERNEL_FUNCTIONAL for item in items):
        return schedule, list(items)
    return _Rewriter(schedule, items).run()


@dataclass
class _Rewriter:
    schedule: Schedule
    original: Sequence[Item]

    def __post_init__(self) -> None:
        self.buffers = list(self.schedule.buffers)
        self.items: list[Item | None] = list(self.original)  # None: dropped
        self.same: dict[int, int] = {}  # a buffer -> the one that is written in its place
        self.roots: dict[int, int] = {}
        self.last: dict[int, list[int]] = {}  # by root: the items that touch it, in order
        for i, item in enumerate(self.original):
            for buffer in _touched(item):
                self.last.setdefault(self.root(buffer), [])
            for out, source in _aliases(item):
                self._join(out, source)
            for buffer in _touched(item):
                self.last.setdefault(self.root(buffer), []).append(i)
        self.returned = {self.root(b) for b in self.schedule.outputs if b is not None}
        self.n_inputs = sum(b.kind == "input" for b in self.buffers)

    def root(self, buffer: int) -> int:
        while (up := self.roots.get(buffer, buffer)) != buffer:
            buffer = up
        return buffer

    def _join(self, out: int, source: int) -> None:
        a, b = self.root(out), self.root(source)
        if a != b:
            self.roots[a] = b
            self.last[b] = sorted({*self.last.get(a, ()), *self.last.get(b, ())})

    def run(self) -> tuple[Schedule, list[Item]]:
        made: list[Item] = []
        for i in range(len(self.items)):
            item = self.items[i]
            if item is None:
                continue
            item = self._renamed(item)
            if isinstance(item, ExternItem) and item.op is RUN_KERNEL_FUNCTIONAL:
                made += self._launch(i, item)
            else:
                made.append(item)
        outputs = tuple(None if b is None else self.same.get(b, b) for b in self.schedule.outputs)
        return replace(self.schedule, buffers=self.buffers, outputs=outputs), made

    def _launch(self, i: int, item: ExternItem) -> list[Item]:
        """The items that replace a launch."""
        call, written, others = item.args
        operands: list[BufRef] = list(written)  # type: ignore[call-overload]
        copies: list[Item] = []
        for k, (operand, out) in enumerate(zip(operands, item.outs)):
            if self._may_write(i, item, operand.id, out):
                self._replace(out, operand.id)
            elif out is not None and self._is_copied_by_clone(operand.id, out):
                copies.append(ExternItem(CLONE, (operand,), {}, (out,), item.note))
                operands[k] = BufRef(out)
            else:
                return [item]
        return [*copies, ExternItem(RUN_KERNEL, (call, operands, others), {}, (), item.note)]

    def _is_copied_by_clone(self, source: int, out: int) -> bool:
        specs = self.buffers[source].spec, self.buffers[out].spec
        return all(s.stride == contiguous_stride(s.shape) for s in specs)

    def _may_write(self, i: int, item: ExternItem, buffer: int, out: int | None) -> bool:
        """Whether the launch, item number i, may write a buffer in place; `out` is the buffer's new value."""
        root = self.root(buffer)
        if root != buffer or [self.root(ref.id) for ref in leaves(item.args, BufRef)].count(root) > 1:
            return False
        if out is not None and not _same_layout(self.buffers[buffer].spec, self.buffers[out].spec):
            return False
        later = [k for k in self.last[root] if k > i]
        kind = self.buffers[root].kind
        if kind != "input":
            return kind != "constant" and not later and root not in self.returned
        if out is None or self.root(out) in self.returned or len(later) != 1:
            return False
        target, source = self._copied(later[0])
        settled = source == out or max(self.last[self.root(out)]) < later[0]
        return target == buffer and settled and not any(_may_raise(item) for item in self.items[i + 1 :])

    def _copied(self, i: int) -> tuple[int | None, int | None]:
        """Target and source, if item number i only copies one buffer to another."""
        item = self.items[i]
        if not isinstance(item, ExternItem) or item.op is not WRITE_INPUT:
            return None, None
        target, source = (ref.id for ref in leaves(item.args, BufRef))
        return target, self.same.get(source, source)

    def _replace(self, out: int | None, buffer: int) -> None:
        """Let `buffer` hold the value of `out`."""
        if out is None:
            return
        if buffer < self.n_inputs:
            copy = self.last[buffer][-1]
            if self._copied(copy)[1] == out:  # what is left of it would be a copy onto itself
                self.items[copy] = None
        else:
            self.buffers[buffer] = replace(self.buffers[buffer], kind=self.buffers[out].kind)
        if self.root(out) in self.returned:
            self.returned.add(buffer)
        self.same[out] = buffer
        self._join(out, buffer)

    def _renamed(self, item: Item) -> Item:
        if not self.same:
            return item
        get = self.same.get
        match item:
            case ViewItem():
                return replace(item, src=get(item.src, item.src))
            case LaunchItem():
                return replace(item, buffers=tuple(get(b, b) for b in item.buffers))
            case ParallelLaunchItem():
                return replace(item, parts=tuple(self._renamed(part) for part in item.parts))  # type: ignore[misc]
            case _:
                args, kwargs = (
                    map_leaves(a, BufRef, lambda r: BufRef(get(r.id, r.id))) for a in (item.args, item.kwargs)
                )
                return replace(item, args=args, kwargs=kwargs)


def _same_layout(a: Any, b: Any) -> bool:
    return bool((a.shape, a.stride, a.dtype, a.device) == (b.shape, b.stride, b.dtype, b.device))


def _touched(item: Item) -> list[int]:
    match item:
        case ViewItem():
            return [item.src, item.out]
        case LaunchItem():
            return list(item.buffers)
        case ParallelLaunchItem():
            return [b for part in item.parts for b in part.buffers]
        case _:
            refs = leaves([item.args, item.kwargs], BufRef)
            return [*(r.id for r in refs), *(out for out in item.outs if out is not None)]


def _aliases(item: Item) -> list[tuple[int, int]]:
    """Pairs of buffers that share memory."""
    if isinstance(item, ViewItem):
        return [(item.out, item.src)]
    if not isinstance(item, ExternItem) or not returns_alias(item.op):
        return []
    return [
        (out, ref.id)
        for n, out in enumerate(item.outs)
        if out is not None
        for ref in leaves(aliased_values(item.op, n, item.args, item.kwargs), BufRef)
    ]


def _may_raise(item: Item | None) -> bool:
    """Whether this item may cause an eager replay. A failing launch raises before it writes."""
    if not isinstance(item, ExternItem) or item.op in _QUIET:
        return False
    return REGISTRY.module(item.op) is None or row(item.op).raises is not False
