"""Placement of lifetimes at arena offsets.

What always holds of a placement: two intervals that share a step never share a byte, and offsets are multiples of the
alignment. `native/plan/arena_placement.cpp` has how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt import _native
from smelt.shapes.expr import Size, static


@dataclass(frozen=True)
class Interval:
    """The steps during which a temporary needs its memory: `begin` to `end`, inclusive. `key` names it."""

    key: int
    nbytes: Size
    begin: int
    end: int


@dataclass(frozen=True)
class Placement:
    """`offsets[key]` in bytes; `nbytes` is the size of the arena."""

    offsets: dict[int, int]
    nbytes: int


def place(intervals: Sequence[Interval], alignment: int) -> Placement:
    """Greedy by size: the largest interval first, each into the tightest gap left by intervals that overlap it in
    time. `alignment`: of every offset, in bytes. Sizes must be concrete."""
    intervals_of_bytes = [(static(i.nbytes), i.begin, i.end) for i in intervals]
    offsets, nbytes = _native.assign_arena_offsets(intervals_of_bytes, alignment)
    return Placement(dict(zip((i.key for i in intervals), offsets, strict=True)), nbytes)
