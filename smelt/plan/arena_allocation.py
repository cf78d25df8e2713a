"""Which allocations of a plan live in its arena."""

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
# launches, and else to have fewer allocations. Small calls wait for the host, which allocates: BERT base with one
# sequence ran 5.0 times as fast as eager on an H100, and 4.3 times with SMALL = 0.
SMALL = 8 << 20
SLACK_BELOW_SMALL = 1 << 20
SLACK = 8 << 10


def allowed(most: int, slack: int = 0) -> int:
    """Bytes that a call may take if its peak is `most`; `slack`: the excess that a call above SMALL may take."""
    return most + (SLACK_BELOW_SMALL if most <= SMALL else slack)


# ---- of a plan


@dataclass
class _Lifetime:
    """The memory of an allocation, those that reuse it, and all their views; or of an ATen call's result."""

    nbytes: Size
    begin: int
    end: int
    may_use_arena: bool


def with_arena(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    memory: Memory,
    donated: Iterable[int] = (),
) -> tuple[tuple[Step, ...], int]:
    """Assign arena offsets to the allocations that may have one and gain from it. `nbytes`: bytes of a register's
    memory. `donated`: donated inputs, freed after their last use."""
    roots, lifetimes = _lifetimes(steps, may_use_arena, nbytes, donated)
    inside = {r for r, life in lifetimes.items() if life.may_use_arena}
    if memory.single:
        placement = _most_placed(lifetimes, inside, len(steps), memory)
    else:
        placement = _placement(lifetimes, inside, memory.alignment)
    return _with_offsets(steps, roots, placement.offsets), placement.nbytes


def with_intervals(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    donated: Iterable[int] = (),
) -> tuple[tuple[Step, ...], tuple[Interval, ...]]:
    """Like `with_arena` for symbolic sizes: an allocation has the number of an interval in place of an offset."""
    roots, lifetimes = _lifetimes(steps, may_use_arena, nbytes, donated)
    intervals = _intervals(lifetimes, (r for r, life in lifetimes.items() if life.may_use_arena))
    numbers = {interval.key: number for number, interval in enumerate(intervals)}
    return _with_offsets(steps, roots, numbers), intervals


def _with_offsets(
    steps: Sequence[Step], roots: Mapping[int, int], offsets: Mapping[int, int]
) -> tuple[Step, ...]:
    return tuple(
        replace(s, arena=offsets[roots[s.out]]) if isinstance(s, Alloc) and roots[s.out] in offsets else s
        for s in steps
    )


def _lifetimes(
    steps: Sequence[Step],
    may_use_arena: Callable[[int], bool],
    nbytes: Callable[[int], Size],
    donated: Iterable[int],
) -> tuple[dict[int, int], dict[int, _Lifetime]]:
    """The register that each register's memory comes from (a view's is its source's), and the lifetimes of those."""
    roots = {r: r for r in donated}
    lifetimes = {r: _Lifetime(nbytes(r), 0, 0, False) for r in roots}
    for i, step in enumerate(steps):
        if isinstance(step, Free):
            continue
        for r in reads(step):
            if r in roots:
                lifetimes[roots[r]].end = i
        shared = dict(shares(step))
        for out in defines(step):
            source = step.over if isinstance(step, Alloc) else shared.get(out)
            allocated = isinstance(step, Alloc) and may_use_arena(out)
            if source in roots:
                roots[out] = roots[source]
                lifetimes[roots[out]].end = i
                lifetimes[roots[out]].may_use_arena &= allocated or not isinstance(step, Alloc)
            elif source is None:
                roots[out] = out
                lifetimes[out] = _Lifetime(nbytes(out), i, i, allocated)
    freed = {r for step in steps if isinstance(step, Free) for r in step.regs}
    for r in roots.keys() - freed:
        lifetimes[roots[r]].end = len(steps) - 1
    return roots, lifetimes


def _most_placed(lifetimes: dict[int, _Lifetime], inside: set[int], steps: int, memory: Memory) -> Placement:
    """An arena for as many of `inside` as pay. It lives from its first temporary to the end of the call. It holds as
    many temporaries as it can, if several, while the call takes about as much memory as is in use at its peak. Large
    temporaries stay out, or also those that begin before the last peak."""
    used = _levels(lifetimes.values(), steps)
    enough = allowed(max(used, default=0), SLACK)
    best = Placement({}, 0)
    limit = max((static(lifetimes[r].nbytes) for r in inside), default=0)
    while limit:
        small = {r for r in inside if static(lifetimes[r].nbytes) <= limit}
        least = max(_levels([lifetimes[r] for r in small], steps), default=0)
        behind = max((i + 1 for i, u in enumerate(used) if u + least > enough), default=0)
        for begin in dict.fromkeys((0, behind)):
            chosen = {r for r in small if lifetimes[r].begin >= begin}
            if len(chosen) > max(len(best.offsets), 1):
                best = _placed_within(enough, used, lifetimes, chosen, memory.alignment) or best
        limit //= 2
    return best


def _placed_within(
    enough: int, used: Sequence[int], lifetimes: dict[int, _Lifetime], inside: set[int], alignment: int
) -> Placement | None:
    """An arena for all of `inside`; None if a call would exceed `enough` bytes. `used`: bytes at each step."""
    within = _levels([lifetimes[r] for r in inside], len(used))
    outside_arena = [u - w for u, w in zip(used, within)]
    first = min(lifetimes[r].begin for r in inside)
    before, meanwhile = max(outside_arena[:first], default=0), max(outside_arena[first:])
    if max(before, meanwhile + max(within)) > enough:
        return None
    placement = _placement(lifetimes, inside, alignment)
    return placement if meanwhile + placement.nbytes <= enough else None


def _levels(lifetimes: Iterable[_Lifetime], steps: int) -> list[int]:
    """Bytes in use at each step."""
    changes = [0] * (steps + 1)
    for p in lifetimes:
        changes[p.begin] += static(p.nbytes)
        changes[p.end + 1] -= static(p.nbytes)
    return list(accumulate(changes))[:steps]


def _placement(lifetimes: dict[int, _Lifetime], inside: Iterable[int], alignment: int) -> Placement:
    return place(_intervals(lifetimes, inside), alignment)


def _intervals(lifetimes: Mapping[int, _Lifetime], inside: Iterable[int]) -> tuple[Interval, ...]:
    return tuple(
        Interval(r, lifetimes[r].nbytes, lifetimes[r].begin, lifetimes[r].end) for r in sorted(inside)
    )


def shares(step: Step) -> Iterator[tuple[int, int]]:
    """Pairs (defined register, register whose memory it shares)."""
    if isinstance(step, View):
        yield step.out, step.src
    elif isinstance(step, Aten):
        for result, out in enumerate(step.outs):
            if out is not None:
                for src in registers_in(aliased_values(step.op, result, step.args, step.kwargs)):
                    yield out, src
