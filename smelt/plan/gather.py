"""Kernels of the same code, gathered in a schedule: those that do not depend on one another and may stand side by side.

An optimizer updates each parameter by the same kernel; under autocast each weight is cast where it is used, and each
gradient where it was made. On a GPU a launch costs as much as some megabytes, and launches of the same code can be one
(`plan.steps.Together`). So kernels move up to the first like them, then those that are left move down to the last: past all
that neither reads nor writes what they touch.

What it costs to move: what a kernel that moves up makes, and what one that moves down still needs, is in memory for longer,
up to AHEAD bytes for each kind of kernel, not counting what outlives the call anyway; and whoever stood beside it no longer
finds its data in the cache, which is why those that touch more than SMALL bytes stay. (Neither is measured yet.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from smelt.plan.aliases import is_foreign, written_values
from smelt.plan.items import LaunchItem
from smelt.plan.roots import Roots, references
from smelt.plan.steps import span_bytes
from smelt.plan.together import Touched
from smelt.schedule.schedule import ExternItem, Item, KernelItem, Schedule, ViewItem

AHEAD = 64 << 20
SMALL = 16 << 20


@dataclass(frozen=True)
class Kind:
    """Kernels whose `key` is equal have the same code, and `room` of them can be one launch."""

    key: Hashable
    room: int


@dataclass
class Slot:
    """Items at one place of the schedule: one, or kernels of one kind that do not depend on one another."""

    items: list[Item | LaunchItem]
    kind: Kind | None
    touched: Touched
    nbytes: int = 0  # that its largest kernel touches
    writes_input: bool = False


@dataclass
class _Open:
    """A slot that takes more kernels, and what stands between it and them."""

    slot: Slot
    place: int
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    calls: bool = False  # ATen's, which may raise
    ahead: int = 0  # bytes


def gather(
    schedule: Schedule, items: Sequence[Item | LaunchItem], kind_of: Callable[[KernelItem], Kind | None]
) -> list[Slot]:
    """`items`, the schedule's with launches in place of some, in an order that does the same. `kind_of` a kernel: None if it
    stays alone."""
    slots = _Slots(schedule, items, kind_of).all()
    up = _gathered(slots, lambda item: _temporaries(schedule, item, "out"))
    down = _gathered(up[::-1], lambda item: _temporaries(schedule, item, "in"))
    return down[::-1]


def _gathered(slots: Sequence[Slot], cost: Callable[[KernelItem], int]) -> list[Slot]:
    """Each slot joins the last one of its kind before it if it may. `cost`: bytes that are in memory for longer."""
    placed: list[Slot] = []
    opened: dict[Kind, _Open] = {}
    for slot in slots:
        found = opened.get(slot.kind) if slot.kind is not None else None
        place = len(placed)
        if found is not None and _joins(found, slot, cost):
            found.slot.items += slot.items
            found.slot.touched = _union(found.slot.touched, slot.touched)
            found.slot.nbytes = max(found.slot.nbytes, slot.nbytes)
            found.slot.writes_input |= slot.writes_input
            place = found.place
        else:
            placed.append(slot)
            if slot.kind is not None:
                opened[slot.kind] = _Open(slot, place)
        if any(isinstance(item, ExternItem) and is_foreign(item.op) for item in slot.items):
            opened.clear()  # it may look at anything
        for other in opened.values():
            if other.place < place:
                _passes(other, slot)
    return placed


def _joins(found: _Open, slot: Slot, cost: Callable[[KernelItem], int]) -> bool:
    assert slot.kind is not None
    if len(found.slot.items) + len(slot.items) > slot.kind.room or (slot.writes_input and found.calls):
        return False
    if not _apart(found.slot.touched, slot.touched) or not _apart(found, slot.touched):
        return False
    if not found.read and not found.written:
        return True
    ahead = found.ahead + sum(cost(item) for item in slot.items if isinstance(item, KernelItem))
    if ahead > AHEAD or slot.nbytes > SMALL:
        return False
    found.ahead = ahead
    return True


def _apart(a: Touched | _Open, b: Touched) -> bool:
    """Neither writes what the other reads or writes."""
    return b.written.isdisjoint(a.read) and b.written.isdisjoint(a.written) and b.read.isdisjoint(a.written)


def _passes(found: _Open, slot: Slot) -> None:
    found.read |= slot.touched.read
    found.written |= slot.touched.written
    found.calls |= any(isinstance(item, ExternItem) for item in slot.items)


def _union(a: Touched, b: Touched) -> Touched:
    return Touched(a.read | b.read, a.written | b.written)


def _temporaries(schedule: Schedule, item: KernelItem, role: str) -> int:
    """Bytes of those that the kernel makes or only reads."""
    return sum(
        _nbytes(schedule, b)
        for b, formal in zip(item.buffers, item.kernel.buffers)
        if b is not None and formal.role == role and schedule.buffers[b].kind == "temp"
    )


def _nbytes(schedule: Schedule, buffer: int) -> int:
    spec = schedule.buffers[buffer].spec
    return span_bytes(spec.shape, spec.stride, spec.dtype)


class _Slots:
    """A slot for each item, with what it touches: roots, and what a view or a call gives a name."""

    def __init__(
        self,
        schedule: Schedule,
        items: Sequence[Item | LaunchItem],
        kind_of: Callable[[KernelItem], Kind | None],
    ) -> None:
        others = [item for item in items if not isinstance(item, KernelItem)]
        self.schedule, self.items, self.kind_of = schedule, items, kind_of
        self.roots = Roots(schedule, others)

    def all(self) -> list[Slot]:
        return [self._slot(item) for item in self.items]

    def _slot(self, item: Item | LaunchItem) -> Slot:
        if isinstance(item, LaunchItem):
            *operands, result = item.buffers  # of a product
            return Slot([item], None, Touched(self._all(operands), self._all([result])))
        if isinstance(item, ViewItem):
            return Slot([item], None, Touched(frozenset((item.src,)), frozenset((item.out,))))
        if isinstance(item, ExternItem):
            written = references(written_values(item.op, item.args, item.kwargs))
            made = [*written, *(out for out in item.outs if out is not None)]
            return Slot(
                [item], None, Touched(self._all(references((item.args, item.kwargs))), self._all(made))
            )
        used = [(b, f.role) for b, f in zip(item.buffers, item.kernel.buffers) if b is not None]
        read = self._all(b for b, role in used if role != "out")
        made = [b for b, role in used if role != "in"]
        writes_input = any(self.roots.root(b) < self.roots.n_inputs for b in made)
        nbytes = sum(_nbytes(self.schedule, b) for b, _ in used)
        return Slot([item], self.kind_of(item), Touched(read, self._all(made)), nbytes, writes_input)

    def _all(self, buffers: Iterable[int]) -> frozenset[int]:
        """They and their roots."""
        buffers = list(buffers)
        return frozenset(buffers) | frozenset(map(self.roots.root, buffers))
