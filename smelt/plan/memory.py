"""Lifetimes to arena offsets.

An interval is the steps during which a temporary must keep its memory, ends included. What always holds of a placement:
two intervals that share a step never share a byte, and offsets are multiples of `ALIGNMENT`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from smelt.plan.steps import ALIGNMENT


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


def place(intervals: Sequence[Interval]) -> Placement:
    """Greedy by size: the largest first, each into the tightest gap left by those that live at the same time."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end offset, begin step, end step; by offset
    offsets: dict[int, int] = {}
    for interval in sorted(intervals, key=lambda i: (-i.nbytes, i.begin)):
        size = aligned(max(interval.nbytes, 1))
        offset = _tightest_gap(placed, interval, size)
        offsets[interval.key] = offset
        insort(placed, (offset, offset + size, interval.begin, interval.end))
    return Placement(offsets, max((end for _, end, _, _ in placed), default=0))


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
