"""Whose memory is it: which *root* (a buffer with memory of its own) each buffer of a schedule belongs to.

Views, and results that an operator's schema declares as aliases, belong to the root whose memory they share. Only roots of
kind `temp` in the target's memory that neither the user nor a foreign operator can keep may be in the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.graph.memory_format import is_last
from smelt.graph.pytree import leaves
from smelt.graph.user_kernel_calls import RUN_KERNEL, RUN_KERNEL_FUNCTIONAL
from smelt.plan.plan_device import Memory
from smelt.plan.plan_items import Item, LaunchItem, TogetherItem
from smelt.plan.schema_aliases import aliased_values, is_foreign
from smelt.plan.size_decisions import Decisions
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Schedule, ViewItem
from smelt.shapes.expr import Size


class Roots:
    """Which root each buffer belongs to, and which roots must not be in the arena. `by_pointer`: buffers whose strides
    somebody relies on."""

    def __init__(self, schedule: Schedule, items: Sequence[Item], decisions: Decisions | None = None) -> None:
        self.decisions = decisions or Decisions()
        self.buffers = schedule.buffers
        self.n_inputs = sum(b.kind == "input" for b in schedule.buffers)
        self.n_held = self.n_inputs + len(schedule.constants)
        self.given = schedule.given
        self._root: dict[int, int] = {}
        self._kept: set[int] = set()
        self.by_pointer: set[int] = set()
        for item in items:
            _ALIASES[type(item)](self, item)
        for out in schedule.outputs:
            if out is not None:
                self.keep(out)

    def root(self, buffer: int) -> int:
        """The buffer whose memory `buffer` shares: itself if it has its own."""
        while (up := self._root.get(buffer, buffer)) != buffer:
            buffer = up
        return buffer

    def is_channels_last(self, buffer: int) -> bool:
        """Whether it holds images, channels-last."""
        return buffer < len(self.buffers) and is_last(self.buffers[buffer].spec)

    def nbytes(self, buffer: int) -> Size:
        """From its first to its last element; 0 for a register that is no buffer of the schedule."""
        if buffer >= len(self.buffers):
            return 0
        spec = self.buffers[buffer].spec
        return self.decisions.elements(spec.shape, spec.stride) * spec.dtype.itemsize

    def ends(self, root: int) -> bool:
        """Whether the memory of a root is free behind its last use, if nobody keeps it."""
        return root >= self.n_held or root in self.given

    def join(self, out: int, src: int) -> None:
        """`out` shares memory with `src`."""
        a, b = self.root(out), self.root(src)
        if a != b:
            self._root[a] = b
            if a in self._kept:
                self._kept.add(b)

    def keep(self, buffer: int) -> None:
        """Somebody may hold on to the memory after the call."""
        self._kept.add(self.root(buffer))

    def is_kept(self, buffer: int) -> bool:
        """Whether somebody may hold on to its memory after the call."""
        return self.root(buffer) in self._kept

    def may_use_arena(self, register: int, memory: Memory) -> bool:
        """Whether the register is a temporary with memory of its own that ends with the call, of a kind `memory` holds."""
        if register >= len(self.buffers):
            return False
        buffer: BufferSpec = self.buffers[register]
        root = self.root(register)
        return (
            buffer.kind == "temp"
            and memory.holds(buffer.spec)
            and root == register
            and root not in self._kept
        )


def _launch_aliases(roots: Roots, item: LaunchItem) -> None:
    roots.by_pointer.update(item.buffers)


def _together_aliases(roots: Roots, item: TogetherItem) -> None:
    for part in item.parts:
        _launch_aliases(roots, part)


def _view_aliases(roots: Roots, item: ViewItem) -> None:
    roots.join(item.out, item.src)
    roots.by_pointer.add(item.src)
    if item.user_visible:
        roots.keep(item.out)


def _extern_aliases(roots: Roots, item: ExternItem) -> None:
    if is_foreign(item.op):
        for buffer in references((item.args, item.kwargs)):
            roots.keep(buffer)
    if item.op in (RUN_KERNEL, RUN_KERNEL_FUNCTIONAL):  # which are given strides as numbers
        roots.by_pointer.update(references((item.args, item.kwargs)))
    for result, out in enumerate(item.outs):
        if out is not None:
            for buffer in references(aliased_values(item.op, result, item.args, item.kwargs)):
                roots.join(out, buffer)


_ALIASES: dict[type, Callable[[Roots, Any], None]] = {
    LaunchItem: _launch_aliases,
    TogetherItem: _together_aliases,
    ViewItem: _view_aliases,
    ExternItem: _extern_aliases,
}


def used(item: Item) -> list[int]:
    """The buffers that an item reads or makes."""
    if isinstance(item, LaunchItem):
        return list(item.buffers)
    if isinstance(item, TogetherItem):
        return [b for part in item.parts for b in part.buffers]
    if isinstance(item, ViewItem):
        return [item.src, item.out]
    return [*references((item.args, item.kwargs)), *(out for out in item.outs if out is not None)]


def references(value: Any) -> list[int]:
    """The buffers inside an extern's arguments."""
    return [ref.id for ref in leaves(value, BufRef)]
