"""The loops of a kernel's function: scalar nests, the loop over lanes, decoding of work item indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from smelt.codegen.llvm.ir_builder import Builder, Ref
from smelt.codegen.llvm.loop_body import Point, iota, scalar
from smelt.loops.kernel_ir import Loop
from smelt.shapes.expr import Size, Sym, bounds


def count_vectors(size: Size, lanes: int) -> int | None:
    """The number of vectors of range(size), the last one possibly partial; None if it is not constant."""
    least, most = (-(-end // lanes) for end in bounds(size))
    return most if least == most else None


class Loops:
    """Writes loops around a function of the point. `inline`: rows of a few vectors are unrolled, so that later stages
    find the values of earlier ones in registers. `sizes`: registers of the kernel's sizes."""

    def __init__(self, b: Builder, inline: bool = False, sizes: Mapping[Sym, Ref] | None = None) -> None:
        self.b, self.inline, self.sizes = b, inline, dict(sizes or {})

    def count(self, size: Size) -> Ref:
        """A size as an i64."""
        return scalar(self.b, size, self.sizes)

    # ---- items

    def decode(self, item: Ref, counts: Sequence[Size]) -> list[Ref]:
        """The row-major digits of an item's index."""
        b = self.b
        digits: list[Ref] = []
        remaining = item
        for position, count in reversed(list(enumerate(counts))):
            if count == 1:
                digits.append(b.const("i64", 0))
            elif all(c == 1 for c in counts[:position]):
                digits.append(remaining)
            else:
                digits.append(b.op("urem", remaining, self.count(count)))
                remaining = b.op("udiv", remaining, self.count(count))
        return digits[::-1]

    def segment(self, segment_index: Ref, chunk: int, size: Size) -> tuple[Ref, Ref]:
        """The bounds [start, stop) of segment `number` of range(size), `chunk` points each."""
        b = self.b
        if chunk >= bounds(size)[1]:
            return b.const("i64", 0), self.count(size)
        start = b.op("mul", segment_index, b.const("i64", chunk))
        stop = b.op("add", start, b.const("i64", chunk))
        if size % chunk != 0:
            stop = b.intrinsic("smin", stop, self.count(size))
        return start, stop

    # ---- nests and vectors

    def nest(self, p: Point, loops: Sequence[Loop], inside: Callable[[Point], None]) -> None:
        """Emit scalar loops around `inside`."""
        if not loops:
            return inside(p)
        loop, remaining = loops[0], loops[1:]
        if loop.size == 1:
            return self.nest(p.at(loop.sym, self.b.const("i64", 0)), remaining, inside)
        with self.b.loop(self.b.const("i64", 0), self.count(loop.size), 1) as it:
            self.nest(p.at(loop.sym, it.index), remaining, inside)

    def lanes(
        self, p: Point, sym: Sym, size: Size, start: Ref, stop: Ref, inside: Callable[[Point], None]
    ) -> None:
        """Emit `inside` for vectors of `sym` over [start, stop) of range(size); start is a multiple of the lanes. The
        last vector is masked, and is a copy of `inside`: masked stores in a loop cost up to a third of it (float32,
        Zen 5), of bytes and words more than half."""
        b, lanes = self.b, self.b.lanes
        full, vectors = size - size % lanes, count_vectors(size, lanes)
        if vectors == 1 or (vectors is not None and self.inline):
            for first, mask in self.vectors(size):
                inside(p.at(sym, first, mask))
        elif size == full:
            with b.loop(start, stop, lanes) as it:
                inside(p.at(sym, it.index))
        else:
            end = self.count(full)
            full_end = end if stop.is_const else b.intrinsic("smin", stop, end)
            with b.when(b.compare("icmp slt", start, full_end)), b.loop(start, full_end, lanes) as it:
                inside(p.at(sym, it.index))
            with b.when(b.compare("icmp sgt", stop, end)):
                inside(p.at(sym, end, self.mask_last(size, end)))

    def vectors(self, size: Size) -> Iterator[tuple[Ref, Ref | None]]:
        """The start and mask of each vector of range(size), for a constant number of vectors."""
        lanes, count = self.b.lanes, count_vectors(size, self.b.lanes)
        assert count is not None
        for k in range(count):
            first = self.b.const("i64", k * lanes)
            yield first, None if k < count - 1 else self.mask_last(size, first)

    def mask_last(self, size: Size, full: Ref) -> Ref | None:
        """The mask of the last vector of range(size), which begins at `full`; None: all lanes."""
        if isinstance(size, int):
            return self.mask_first(size % self.b.lanes or self.b.lanes)
        if size % self.b.lanes == 0:
            return None
        return self.mask_left(full, self.count(size))

    def mask_first(self, count: int) -> Ref | None:
        """The mask of the first `count` lanes; None: all."""
        if count == self.b.lanes:
            return None
        bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(self.b.lanes))
        return Ref(f"<{bits}>", "i1", self.b.lanes)

    def mask_below(self, index: Ref, size: Size) -> Ref:
        """The mask of lanes whose iteration index + lane is less than `size`."""
        if not isinstance(size, int) or size >= 1 << 31:
            return self.mask_left(index, self.count(size))
        return self._first_lanes(self.b.op("sub", self.b.const("i64", size), index))

    def mask_left(self, index: Ref, end: Ref) -> Ref:
        """The mask of lanes whose iteration index + lane is less than `end`."""
        left = self.b.op("sub", end, index)
        return self._first_lanes(self.b.intrinsic("smin", left, self.b.const("i64", self.b.lanes)))

    def _first_lanes(self, count: Ref) -> Ref:
        return self.b.compare("icmp slt", iota(self.b, "i32"), self.b.convert("trunc", count, "i32"))
