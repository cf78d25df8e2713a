"""Horizontal fusion: independent kernels with the same code become one launch.

An optimizer updates each parameter by the same kernel; under autocast each weight is cast where it is used, and each
gradient where it is computed. A launch on a GPU costs as much as some megabytes of traffic, and launches of the same
code can be one (`plan.steps.ParallelLaunch`). Kernels move up to the first kernel of their kind, then the remaining
ones move down to the last, past all items that neither read nor write their buffers.

Moving a kernel lengthens the lifetime of its results (up) or of its operands (down). That is free while other steps
use more memory (including the temporaries of library conversions), so kernels move as long as peak memory stays what
it was in the original order (for small calls about that: `plan.arena_allocation.allowed`). A neighbour of a moved
kernel loses the data in the cache, so kernels that touch more than SMALL bytes stay. (Not measured yet.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from smelt.ops.registry import row
from smelt.plan.arena_allocation import allowed
from smelt.plan.buffer_reuse import replaced, reusable_operands
from smelt.plan.buffer_roots import Roots, references
from smelt.plan.parallel_launches import Touched
from smelt.plan.plan_items import LaunchItem
from smelt.plan.schema_aliases import is_foreign, written_values
from smelt.schedule.schedule import ExternItem, Item, KernelItem, Schedule, ViewItem
from smelt.shapes.expr import static

SMALL = 16 << 20
REST = 1 << 20  # bytes: blocks of torch's allocator are not cut where no more would be left


@dataclass(frozen=True)
class Kind:
    """Kernels with equal `key` have the same code; one launch takes `room` of them."""

    key: Hashable
    room: int


@dataclass
class Slot:
    """A position of the schedule: one item, or independent kernels of one kind."""

    items: list[Item | LaunchItem]
    kind: Kind | None
    touched: Touched
    nbytes: int = 0  # that its largest kernel touches
    writes_input: bool = False


@dataclass
class _Open:
    """A slot that can take more kernels, and the reads and writes between it and the current position."""

    slot: Slot
    position: int
    time: int  # its index in the original order
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    calls: bool = False  # ATen's, which may raise


def fuse_horizontally(
    schedule: Schedule, items: Sequence[Item | LaunchItem], kind_of: Callable[[KernelItem], Kind | None]
) -> list[Slot]:
    """Reorder `items` (the schedule's, with launches in place of some) so that kernels of one kind share a slot.
    `kind_of` returns None for a kernel that stays alone."""
    made = _Slots(schedule, items, kind_of)
    slots, roots = made.all(), made.roots
    kinds = [slot.kind for slot in slots if slot.kind is not None]
    if len(set(kinds)) == len(kinds):
        return slots
    memory = _InUse(slots, roots)
    most = allowed(max(memory.level))
    up = _gathered(slots, memory, most)
    return _gathered(up, _InUse(up, roots), most, downwards=True)


def _gathered(slots: Sequence[Slot], memory: _InUse, most: int, downwards: bool = False) -> list[Slot]:
    """Each slot joins the last one of its kind before it (`downwards`: the next one behind it) if that is legal.
    Memory in use stays at most `most` bytes wherever it was before."""
    placed: list[Slot] = []
    opened: dict[Kind, _Open] = {}
    times = range(len(slots))
    for time, slot in zip(reversed(times) if downwards else times, slots[::-1] if downwards else slots):
        found = opened.get(slot.kind) if slot.kind is not None else None
        position = len(placed)
        if found is not None and _joins(found, slot) and memory.moved(slot, time, found.time, most):
            found.slot.items += slot.items
            found.slot.touched = _union(found.slot.touched, slot.touched)
            found.slot.nbytes = max(found.slot.nbytes, slot.nbytes)
            found.slot.writes_input |= slot.writes_input
            position = found.position
        else:
            placed.append(slot)
            if slot.kind is not None:
                opened[slot.kind] = _Open(slot, position, time)
        if any(isinstance(item, ExternItem) and is_foreign(item.op) for item in slot.items):
            opened.clear()  # it may look at anything
        for other in opened.values():
            if other.position < position:
                _passes(other, slot)
    return placed[::-1] if downwards else placed


def _joins(found: _Open, slot: Slot) -> bool:
    assert slot.kind is not None
    if len(found.slot.items) + len(slot.items) > slot.kind.room or (slot.writes_input and found.calls):
        return False
    if not _apart(found.slot.touched, slot.touched) or not _apart(found, slot.touched):
        return False
    moves = bool(found.read or found.written)
    return not moves or slot.nbytes <= SMALL


class _InUse:
    """Bytes in use while each slot runs: a root counts from the slot that defines it to its last use, or to the end if
    it outlives the call. A result that reuses an operand's memory counts once."""

    def __init__(self, slots: Sequence[Slot], roots: Roots) -> None:
        self.roots = roots
        self.span: dict[int, tuple[int, int]] = {}  # of roots: when they are made, when they are used last
        for time, slot in enumerate(slots):
            for root in self._touched(slot):
                self.span[root] = self.span.get(root, (0 if root < roots.n_held else time,))[0], time
        for root, (begin, _) in self.span.items():
            if roots.is_retained(root):
                self.span[root] = begin, len(slots) - 1
        heirs = self._heirs(slots)
        self.shared = {*heirs, *heirs.values()}  # roots that have memory one after the other
        changes = [0] * (len(slots) + 1)
        for root, (begin, end) in self.span.items():
            begin = self.span[heirs[root]][1] + 1 if root in heirs else begin
            changes[begin] += self._counted(root)
            changes[end + 1] -= self._counted(root)
        self.level = [sum(both) for both in zip(accumulate(changes), map(self._converted, slots))]

    def _converted(self, slot: Slot) -> int:
        """Bytes that calls in the slot allocate to convert layouts; none if the operands are channels-last."""
        calls = [i for i in slot.items if isinstance(i, ExternItem) and row(i.op).converts]
        touched = (
            [*references((c.args, c.kwargs)), *(out for out in c.outs if out is not None)] for c in calls
        )
        converted = (buffers for buffers in touched if not any(map(self.roots.is_channels_last, buffers)))
        return sum(static(self.roots.nbytes(b)) for buffers in converted for b in buffers)

    def _counted(self, root: int) -> int:
        """Bytes that torch's allocator may count for the root: blocks of more than REST bytes may be larger by REST."""
        nbytes = static(self.roots.nbytes(root))
        return nbytes if nbytes <= REST else nbytes + REST

    def _touched(self, slot: Slot) -> set[int]:
        """The roots that the slot touches and whose memory ends with the call."""
        return set(filter(self.roots.ends, map(self.roots.root, slot.touched.read | slot.touched.written)))

    def _heirs(self, slots: Sequence[Slot]) -> dict[int, int]:
        """Results that reuse an operand's memory, with that operand's root."""
        dying: dict[int, list[int]] = {}
        for root, (_, end) in self.span.items():
            dying.setdefault(end, []).append(root)
        heirs: dict[int, int] = {}
        for time, slot in enumerate(slots):
            kernels = [item for item in slot.items if isinstance(item, KernelItem)]
            uses = [(item.buffers, reusable_operands(item.kernel)) for item in kernels]
            if any(pairs for _, pairs in uses):
                pairs = replaced(uses, dying.get(time, ()), self.roots)
                heirs |= {out: self.roots.root(operand) for out, operand in pairs}
        return heirs

    def moved(self, slot: Slot, time: int, to: int, most: int) -> bool:
        """Move a slot if at most `most` bytes are in use then; whether it moved."""
        spans = {}
        for root in self._touched(slot):
            begin, end = self.span[root]
            new = (to, end) if begin == time and root >= self.roots.n_held else (begin, max(end, to))
            if new != (begin, end):
                if root in self.shared:
                    return False
                spans[root] = new
        first, last = min(time, to), max(time, to)
        level = self.level[first : last + 1]
        for root, (begin, end) in spans.items():
            nbytes, (was, until) = self._counted(root), self.span[root]
            for k in range(first, last + 1):
                level[k - first] += nbytes * ((begin <= k <= end) - (was <= k <= until))
        if any(new > most and new > old for new, old in zip(level, self.level[first:])):
            return False
        self.level[first : last + 1] = level
        self.span |= spans
        return True


def _apart(a: Touched | _Open, b: Touched) -> bool:
    """Whether neither writes a root that the other reads or writes."""
    return b.written.isdisjoint(a.read) and b.written.isdisjoint(a.written) and b.read.isdisjoint(a.written)


def _passes(found: _Open, slot: Slot) -> None:
    found.read |= slot.touched.read
    found.written |= slot.touched.written
    found.calls |= any(isinstance(item, ExternItem) for item in slot.items)


def _union(a: Touched, b: Touched) -> Touched:
    return Touched(a.read | b.read, a.written | b.written)


class _Slots:
    """A slot for each item, with the roots and names that it touches."""

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
        nbytes = sum(static(self.roots.nbytes(b)) for b, _ in used)
        return Slot([item], self.kind_of(item), Touched(read, self._all(made)), nbytes, writes_input)

    def _all(self, buffers: Iterable[int]) -> frozenset[int]:
        """The buffers and their roots."""
        buffers = list(buffers)
        return frozenset(buffers) | frozenset(map(self.roots.root, buffers))
