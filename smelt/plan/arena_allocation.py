"""The allocations of a plan that get a place in its arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from smelt.plan.arena_placement import Interval, Placement, place
from smelt.plan.plan_device import Memory
from smelt.plan.schema_aliases import aliased_values
from smelt.plan.steps import Alloc, Aten, Free, Step, View, defines, reads, registers_in
from smelt.shapes.expr import Size, static

ALIGNMENT = 64  # bytes, of the arena itself; every target's offsets are multiples of it
# Bytes that a call may take beyond what is in use at once: where that is SMALL at most, to have fewer allocations and
# launches, and else to have fewer allocations. Small calls wait for the host, which allocates
# (docs/plan.md has what that takes).
SMALL = 8 << 20
SLACK_OF_SMALL = 1 << 20
SLACK = 8 << 10


def allowed(most: int, slack: int = 0) -> int:
    """How many bytes a call may take that needs `most` of them at once; `slack`: beyond them, of one that is not small."""
    return most + (SLACK_OF_SMALL if most <= SMALL else slack)


def aligned(nbytes: int, alignment: int) -> int:
    """`nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


# ---- of a plan


@dataclass
class _Place:
    """Memory of a plan's: of an allocation, of those that come in its place, and of all their views; or of what an ATen call
    gives."""

    nbytes: Size
    begin: int
    end: int
    may_use_arena: bool


def with_arena(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    memory: Memory,
    given: Iterable[int] = (),
) -> tuple[tuple[Step, ...], int]:
    """Gives arena offsets to the allocations that may have one, and should. `nbytes`: of a register's memory. `given`:
    inputs whose memory is freed behind their last use."""
    roots, places = _places(steps, may_use_arena, nbytes, given)
    inside = {r for r, place in places.items() if place.may_use_arena}
    if memory.single:
        placement = _most_placed(places, inside, len(steps), memory)
    else:
        placement = _placement(places, inside, memory.alignment)
    return _with_offsets(steps, roots, placement.offsets), placement.nbytes


def with_intervals(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    given: Iterable[int] = (),
) -> tuple[tuple[Step, ...], tuple[Interval, ...]]:
    """The same where bytes have symbols: allocations have the number of an interval in place of an offset."""
    roots, places = _places(steps, may_use_arena, nbytes, given)
    intervals = _intervals(places, (r for r, place in places.items() if place.may_use_arena))
    numbers = {interval.key: number for number, interval in enumerate(intervals)}
    return _with_offsets(steps, roots, numbers), intervals


def _with_offsets(
    steps: Sequence[Step], roots: Mapping[int, int], offsets: Mapping[int, int]
) -> tuple[Step, ...]:
    return tuple(
        replace(s, arena=offsets[roots[s.out]]) if isinstance(s, Alloc) and roots[s.out] in offsets else s
        for s in steps
    )


def _places(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    given: Iterable[int],
) -> tuple[dict[int, int], dict[int, _Place]]:
    """Which register each one has its memory from, and the places of these. A view keeps its source's memory alive."""
    roots = {r: r for r in given}
    places = {r: _Place(nbytes(r), 0, 0, False) for r in roots}
    for i, step in enumerate(steps):
        if isinstance(step, Free):
            continue
        for r in reads(step):
            if r in roots:
                places[roots[r]].end = i
        shared = dict(shares(step))
        for out in defines(step):
            source = step.over if isinstance(step, Alloc) else shared.get(out)
            allocated = isinstance(step, Alloc) and may_use_arena(out)
            if source in roots:
                roots[out] = roots[source]
                places[roots[out]].end = i
                places[roots[out]].may_use_arena &= allocated or not isinstance(step, Alloc)
            elif source is None:
                roots[out] = out
                places[out] = _Place(nbytes(out), i, i, allocated)
    freed = {r for step in steps if isinstance(step, Free) for r in step.regs}
    for r in roots.keys() - freed:
        places[roots[r]].end = len(steps) - 1
    return roots, places


def _most_placed(places: dict[int, _Place], inside: set[int], steps: int, memory: Memory) -> Placement:
    """An arena of those of `inside` that are to be in it. It is there from its first temporary on until the call ends, and
    holds as many as may be, if several, while a call takes about as much memory as is in use at once. Kept out of it is
    what is large, or also what begins before the last time that much is in use."""
    used = _levels(places.values(), steps)
    enough = allowed(max(used, default=0), SLACK)
    best = Placement({}, 0)
    limit = max((static(places[r].nbytes) for r in inside), default=0)
    while limit:
        small = {r for r in inside if static(places[r].nbytes) <= limit}
        least = max(_levels([places[r] for r in small], steps), default=0)
        behind = max((i + 1 for i, u in enumerate(used) if u + least > enough), default=0)
        for begin in dict.fromkeys((0, behind)):
            chosen = {r for r in small if places[r].begin >= begin}
            if len(chosen) > max(len(best.offsets), 1):
                best = _placed_within(enough, used, places, chosen, memory.alignment) or best
        limit //= 2
    return best


def _placed_within(
    enough: int, used: Sequence[int], places: dict[int, _Place], inside: set[int], alignment: int
) -> Placement | None:
    """An arena of all of `inside`; None if a call would take more than `enough` bytes with it. `used`:
    bytes in use at each step."""
    within = _levels([places[r] for r in inside], len(used))
    beside = [u - w for u, w in zip(used, within)]
    first = min(places[r].begin for r in inside)
    before, meanwhile = max(beside[:first], default=0), max(beside[first:])
    if max(before, meanwhile + max(within)) > enough:
        return None
    placement = _placement(places, inside, alignment)
    return placement if meanwhile + placement.nbytes <= enough else None


def _levels(places: Iterable[_Place], steps: int) -> list[int]:
    """The bytes that are in use at each step."""
    changes = [0] * (steps + 1)
    for p in places:
        changes[p.begin] += static(p.nbytes)
        changes[p.end + 1] -= static(p.nbytes)
    return list(accumulate(changes))[:steps]


def _placement(places: dict[int, _Place], inside: Iterable[int], alignment: int) -> Placement:
    return place(_intervals(places, inside), alignment)


def _intervals(places: Mapping[int, _Place], inside: Iterable[int]) -> tuple[Interval, ...]:
    return tuple(Interval(r, places[r].nbytes, places[r].begin, places[r].end) for r in sorted(inside))


def shares(step: Step) -> Iterator[tuple[int, int]]:
    """Pairs (defined register, register whose memory it shares)."""
    if isinstance(step, View):
        yield step.out, step.src
    elif isinstance(step, Aten):
        for result, out in enumerate(step.outs):
            if out is not None:
                for src in registers_in(aliased_values(step.op, result, step.args, step.kwargs)):
                    yield out, src
