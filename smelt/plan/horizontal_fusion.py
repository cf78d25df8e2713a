"""Kernels of the same code, gathered in a schedule: those that do not depend on one another and may stand side by side.

An optimizer updates each parameter by the same kernel; under autocast each weight is cast where it is used, and each
gradient where it was made. On a GPU a launch costs as much as some megabytes, and launches of the same code can be one
(`plan.steps.Together`). So kernels move up to the first like them, then those that are left move down to the last: past all
that neither reads nor writes what they touch.

What it costs to move: what a kernel that moves up makes, and what one that moves down still needs, is in memory for longer.
That is free where others take more memory at their time (also what a library takes to convert what it is given), so kernels
move as long as the most that is in memory at once stays what it was in the given order (for small calls about that:
`plan.arena_allocation.allowed`). And whoever stood beside a kernel no longer finds its data in the cache, which is why
those that touch more than SMALL bytes stay. (Not measured yet.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from smelt.ops.registry import row
from smelt.plan.arena_allocation import allowed
from smelt.plan.buffer_reuse import in_place, replaced
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
    time: int  # its place in the order that was given
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    calls: bool = False  # ATen's, which may raise


def gather(
    schedule: Schedule, items: Sequence[Item | LaunchItem], kind_of: Callable[[KernelItem], Kind | None]
) -> list[Slot]:
    """`items`, the schedule's with launches in place of some, in an order that does the same. `kind_of` a kernel: None if it
    stays alone."""
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
    """Each slot joins the last one of its kind before it if it may; `downwards`: the next one behind it. At no time are more
    than `most` bytes in memory, if there were not before."""
    placed: list[Slot] = []
    opened: dict[Kind, _Open] = {}
    times = range(len(slots))
    for time, slot in zip(reversed(times) if downwards else times, slots[::-1] if downwards else slots):
        found = opened.get(slot.kind) if slot.kind is not None else None
        place = len(placed)
        if found is not None and _joins(found, slot) and memory.moved(slot, time, found.time, most):
            found.slot.items += slot.items
            found.slot.touched = _union(found.slot.touched, slot.touched)
            found.slot.nbytes = max(found.slot.nbytes, slot.nbytes)
            found.slot.writes_input |= slot.writes_input
            place = found.place
        else:
            placed.append(slot)
            if slot.kind is not None:
                opened[slot.kind] = _Open(slot, place, time)
        if any(isinstance(item, ExternItem) and is_foreign(item.op) for item in slot.items):
            opened.clear()  # it may look at anything
        for other in opened.values():
            if other.place < place:
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
    """The bytes that are in memory while each slot runs, of what slots make: from the slot that makes it to the last that
    uses it, or to the end for what outlives the call. What takes the place of an operand is in its memory."""

    def __init__(self, slots: Sequence[Slot], roots: Roots) -> None:
        self.roots = roots
        self.span: dict[int, tuple[int, int]] = {}  # of roots: when they are made, when they are used last
        for time, slot in enumerate(slots):
            for root in self._touched(slot):
                self.span[root] = self.span.get(root, (0 if root < roots.n_held else time,))[0], time
        for root, (begin, _) in self.span.items():
            if roots.is_kept(root):
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
        """Bytes of what calls in the slot convert while they run: nothing where it is channels-last already."""
        calls = [i for i in slot.items if isinstance(i, ExternItem) and row(i.op).converts]
        touched = (
            [*references((c.args, c.kwargs)), *(out for out in c.outs if out is not None)] for c in calls
        )
        converted = (buffers for buffers in touched if not any(map(self.roots.is_channels_last, buffers)))
        return sum(static(self.roots.nbytes(b)) for buffers in converted for b in buffers)

    def _counted(self, root: int) -> int:
        """Bytes that torch's allocator may count for it: a block for more than REST may be larger by up to REST."""
        nbytes = static(self.roots.nbytes(root))
        return nbytes if nbytes <= REST else nbytes + REST

    def _touched(self, slot: Slot) -> set[int]:
        """The roots that it touches whose memory does not stay."""
        return set(filter(self.roots.ends, map(self.roots.root, slot.touched.read | slot.touched.written)))

    def _heirs(self, slots: Sequence[Slot]) -> dict[int, int]:
        """Results in the place of operands, and whose place it is."""
        dying: dict[int, list[int]] = {}
        for root, (_, end) in self.span.items():
            dying.setdefault(end, []).append(root)
        heirs: dict[int, int] = {}
        for time, slot in enumerate(slots):
            kernels = [item for item in slot.items if isinstance(item, KernelItem)]
            uses = [(item.buffers, in_place(item.kernel)) for item in kernels]
            if any(pairs for _, pairs in uses):
                pairs = replaced(uses, dying.get(time, ()), self.roots)
                heirs |= {out: self.roots.root(operand) for out, operand in pairs}
        return heirs

    def moved(self, slot: Slot, time: int, to: int, most: int) -> bool:
        """Moves a slot from one time to another if no more than `most` bytes are in memory then; else does nothing."""
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
    """Neither writes what the other reads or writes."""
    return b.written.isdisjoint(a.read) and b.written.isdisjoint(a.written) and b.read.isdisjoint(a.written)


def _passes(found: _Open, slot: Slot) -> None:
    found.read |= slot.touched.read
    found.written |= slot.touched.written
    found.calls |= any(isinstance(item, ExternItem) for item in slot.items)


def _union(a: Touched, b: Touched) -> Touched:
    return Touched(a.read | b.read, a.written | b.written)


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
        nbytes = sum(static(self.roots.nbytes(b)) for b, _ in used)
        return Slot([item], self.kind_of(item), Touched(read, self._all(made)), nbytes, writes_input)

    def _all(self, buffers: Iterable[int]) -> frozenset[int]:
        """They and their roots."""
        buffers = list(buffers)
        return frozenset(buffers) | frozenset(map(self.roots.root, buffers))
