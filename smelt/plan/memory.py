"""Lifetimes to arena offsets, and the allocations of a plan that get one.

An interval is the steps during which a temporary must keep its memory, ends included. What always holds of a placement:
two intervals that share a step never share a byte, and offsets are multiples of the alignment.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from smelt.plan.aliases import aliased_values
from smelt.plan.steps import Alloc, Aten, Free, Step, View, reads, registers_in, span_bytes

ALIGNMENT = 64  # bytes, of the arena itself; every target's offsets are multiples of it


@dataclass(frozen=True)
class Interval:
    """`key` names the temporary; it lives in steps `begin` to `end`, both included."""

    key: int
    nbytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class Placement:
    """`offsets[key]` in bytes; `nbytes` is the size of the arena."""

    offsets: dict[int, int]
    nbytes: int


def place(intervals: Sequence[Interval], alignment: int) -> Placement:
    """Greedy by size: the largest first, each into the tightest gap left by those that live at the same time. `alignment`:
    of every offset, in bytes."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end offset, begin step, end step; by offset
    offsets: dict[int, int] = {}
    for interval in sorted(intervals, key=lambda i: (-i.nbytes, i.begin)):
        size = aligned(max(interval.nbytes, 1), alignment)
        offset = _tightest_gap(placed, interval, size)
        offsets[interval.key] = offset
        insort(placed, (offset, offset + size, interval.begin, interval.end))
    return Placement(offsets, max((end for _, end, _, _ in placed), default=0))


def aligned(nbytes: int, alignment: int) -> int:
    """`nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def _tightest_gap(placed: list[tuple[int, int, int, int]], interval: Interval, size: int) -> int:
    """The offset of the smallest gap that fits, else the end of all that live at the same time."""
    best, best_gap = -1, 0
    top = 0
    begin, end = interval.begin, interval.end
    for offset, stop, first, last in placed:
        if first > end or last < begin:
            continue
        gap = offset - top
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = top, gap
        if stop > top:
            top = stop
    return top if best < 0 else best


# ---- of a plan


def with_arena(
    steps: Sequence[Step], may_use_arena: Callable[[int], bool], alignment: int
) -> tuple[tuple[Step, ...], int]:
    """Gives arena offsets, multiples of `alignment`, to the allocations that may have one. A raw view keeps its source's
    memory alive."""
    root: dict[int, int] = {}
    born: dict[int, tuple[int, Alloc]] = {}
    dies: dict[int, int] = {}
    for i, step in enumerate(steps):
        if isinstance(step, Alloc) and may_use_arena(step.out):
            root[step.out] = step.out
            born[step.out] = (i, step)
        elif not isinstance(step, Free):
            dies.update((root[r], i) for r in reads(step) if r in root)
            root.update((out, root[src]) for out, src in shares(step) if src in root)
    placement = place(
        [
            Interval(r, span_bytes(a.shape, a.stride, a.dtype), i, max(i, dies.get(r, i)))
            for r, (i, a) in born.items()
        ],
        alignment,
    )
    placed = tuple(
        replace(s, arena=placement.offsets[s.out]) if isinstance(s, Alloc) and s.out in born else s
        for s in steps
    )
    return placed, placement.nbytes


def shares(step: Step) -> Iterator[tuple[int, int]]:
    """Pairs (defined register, register whose memory it shares)."""
    if isinstance(step, View):
        yield step.out, step.src
    elif isinstance(step, Aten):
        for result, out in enumerate(step.outs):
            if out is not None:
                for src in registers_in(aliased_values(step.op, result, step.args, step.kwargs)):
                    yield out, src
