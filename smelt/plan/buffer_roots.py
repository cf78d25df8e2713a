"""The root of each buffer: the buffer whose memory it shares.

Views, and results that an operator's schema declares as aliases, share the memory of their root. A root may be in the
arena only if it is a `temp` in the target's memory that neither the user nor a foreign operator can retain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.graph.memory_format import is_last
from smelt.graph.pytree import leaves
from smelt.graph.user_kernel_calls import RUN_KERNEL, RUN_KERNEL_FUNCTIONAL
from smelt.plan.plan_device import Memory
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.plan.schema_aliases import aliased_values, is_foreign
from smelt.plan.size_decisions import Decisions
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Schedule, ViewItem
from smelt.shapes.expr import Size


class Roots:
    """The root of each buffer, and the roots that must not be in the arena. `by_pointer`: buffers whose strides a
    launch, a view or a user kernel relies on."""

    def __init__(self, schedule: Schedule, items: Sequence[Item], decisions: Decisions | None = None) -> None:
        self.decisions = decisions or Decisions()
        self.buffers = schedule.buffers
        self.n_inputs = sum(b.kind == "input" for b in schedule.buffers)
        self.n_held = self.n_inputs + len(schedule.constants)
        self.donated = schedule.donated
        self._root: dict[int, int] = {}
        self._retained: set[int] = set()
        self.by_pointer: set[int] = set()
        for item in items:
            _ALIASES[type(item)](self, item)
        for out in schedule.outputs:
            if out is not None:
                self.retain(out)

    def root(self, buffer: int) -> int:
        """The buffer whose memory `buffer` shares: `buffer` itself if it has its own."""
        while (up := self._root.get(buffer, buffer)) != buffer:
            buffer = up
        return buffer

    def is_channels_last(self, buffer: int) -> bool:
        """Whether the buffer holds channels-last images."""
        return buffer < len(self.buffers) and is_last(self.buffers[buffer].spec)

    def nbytes(self, buffer: int) -> Size:
        """Bytes from the first to the last element; 0 for a register that is not a buffer of the schedule."""
        if buffer >= len(self.buffers):
            return 0
        spec = self.buffers[buffer].spec
        return self.decisions.elements(spec.shape, spec.stride) * spec.dtype.itemsize

    def ends(self, root: int) -> bool:
        """Whether the memory of a root is free after its last use unless it is retained."""
        return root >= self.n_held or root in self.donated

    def join(self, out: int, src: int) -> None:
        """Record that `out` shares memory with `src`."""
        a, b = self.root(out), self.root(src)
        if a != b:
            self._root[a] = b
            if a in self._retained:
                self._retained.add(b)

    def retain(self, buffer: int) -> None:
        """Record that a user or a foreign operator may hold the memory after the call."""
        self._retained.add(self.root(buffer))

    def is_retained(self, buffer: int) -> bool:
        """Whether a user or a foreign operator may hold the memory after the call."""
        return self.root(buffer) in self._retained

    def may_use_arena(self, register: int, memory: Memory) -> bool:
        """Whether the register is a temporary with memory of its own, on a device that `memory` covers."""
        if register >= len(self.buffers):
            return False
        buffer: BufferSpec = self.buffers[register]
        root = self.root(register)
        return (
            buffer.kind == "temp"
            and memory.holds(buffer.spec)
            and root == register
            and root not in self._retained
        )


def _launch_aliases(roots: Roots, item: LaunchItem) -> None:
    roots.by_pointer.update(item.buffers)


def _parallel_launch_aliases(roots: Roots, item: ParallelLaunchItem) -> None:
    for part in item.parts:
        _launch_aliases(roots, part)


def _view_aliases(roots: Roots, item: ViewItem) -> None:
    roots.join(item.out, item.src)
    roots.by_pointer.add(item.src)
    if item.user_visible:
        roots.retain(item.out)


def _extern_aliases(roots: Roots, item: ExternItem) -> None:
    if is_foreign(item.op):
        for buffer in references((item.args, item.kwargs)):
            roots.retain(buffer)
    if item.op in (RUN_KERNEL, RUN_KERNEL_FUNCTIONAL):  # which are given strides as numbers
        roots.by_pointer.update(references((item.args, item.kwargs)))
    for result, out in enumerate(item.outs):
        if out is not None:
            for buffer in references(aliased_values(item.op, result, item.args, item.kwargs)):
                roots.join(out, buffer)


_ALIASES: dict[type, Callable[[Roots, Any], None]] = {
    LaunchItem: _launch_aliases,
    ParallelLaunchItem: _parallel_launch_aliases,
    ViewItem: _view_aliases,
    ExternItem: _extern_aliases,
}


def used(item: Item) -> list[int]:
    """The buffers that an item reads or defines."""
    if isinstance(item, LaunchItem):
        return list(item.buffers)
    if isinstance(item, ParallelLaunchItem):
        return [b for part in item.parts for b in part.buffers]
    if isinstance(item, ViewItem):
        return [item.src, item.out]
    return [*references((item.args, item.kwargs)), *(out for out in item.outs if out is not None)]


def references(value: Any) -> list[int]:
    """The buffers inside an extern call's arguments."""
    return [ref.id for ref in leaves(value, BufRef)]
