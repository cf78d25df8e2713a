"""The loops of a reduction: vectors, several accumulators, cascaded sums, and the remainder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

import torch

from smelt.codegen.llvm import reduction_codegen
from smelt.codegen.llvm.ir_builder import Ref
from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.loop_body import Body, Point
from smelt.codegen.llvm.loop_nests import Loops, count_vectors
from smelt.codegen.llvm.math_functions import MATH_OPS
from smelt.codegen.llvm.reduction_codegen import State
from smelt.loops.kernel_ir import Loop, ReduceStage, stage_values, walk
from smelt.shapes.expr import Size, Sym, bounds, likely

CHAIN = 16  # sequential additions to one accumulator; a power of two
MANY = 1 << 20  # the number of partial results that cascades of symbolic length are sized for


class ReduceLoops:
    """The loops of one reduce stage. `vector`: the last loop runs over lanes.

    Sums of floats are cascades: after CHAIN additions (up to twice as many if there are no more) an accumulator is
    emptied, its lanes added up, into one of the next level, which in turn is emptied after CHAIN of those. Rounding
    errors then grow with the logarithm of the number of values (Higham, "The accuracy of floating point summation",
    1993), and values that cancel between lanes do so early. The next level of float32 is float64, and is the last. For
    symbolic sizes, sums are always cascades, and loops that may be empty are tested for it; lanes are added up at the
    end only, as rows may be short.
    """

    def __init__(self, body: Body, loops: Loops, stage: ReduceStage, vector: bool) -> None:
        self.body, self.loops, self.stage, self.vector = body, loops, stage, vector
        self.b = body.b
        self.step = self.b.lanes if vector else 1
        self.unroll = _unroll(stage)
        self.rounds_off = any(reduction_codegen.rounds_off(r) for r in stage.reductions)
        self.open = any(not isinstance(l.size, int) for l in stage.loops)

    def run(self, p: Point, loops: Sequence[Loop], states: list[State]) -> list[State]:
        """`states` combined with the values at all points of `loops`, outermost first."""
        loop, inner = loops[0], loops[1:]
        size = loop.size
        if not inner:
            return self.innermost(p, loop, states)
        if size == 1:
            return self.run(p.at(loop.sym, self.b.const("i64", 0)), inner, states)

        def rounds(start: Ref, stop: Ref, states: list[State]) -> list[State]:
            with self.b.loop(start, stop, 1, _flat(states)) as it:
                it.next = _flat(self.run(p.at(loop.sym, it.index), inner, self.like(it.carried, states)))
            return self.like(it.next, states)

        *between, last = (likely(l.size) for l in inner)
        return self.cascade(size, 1, prod(between) * self._additions(last), rounds, states)

    def _additions(self, size: int) -> int:
        """The number of values of the last loop that `innermost` adds to one accumulator."""
        return ceil(size / (self.step * (self.unroll if self._unrolled_groups(size) else 1)))

    def _unrolled_groups(self, size: int) -> int:
        """The number of groups of vectors of the last loop before the remainder."""
        groups = size // (self.step * self.unroll)
        return groups if groups >= (2 if self.unroll > 1 else 2 * CHAIN) else 0

    def innermost(self, p: Point, loop: Loop, states: list[State]) -> list[State]:
        """Emit the last loop: fully unrolled, unrolled, or one vector at a time."""
        size = loop.size
        if self.loops.inline and self.vector and count_vectors(size, self.step) is not None:
            return self.straight(p, loop.sym, size, states)
        width = self.step * self.unroll
        done = self._unrolled_groups(size) * width if isinstance(size, int) else size - size % width

        def vectors(start: Ref, stop: Ref, states: list[State]) -> list[State]:
            return self.unrolled(p, loop.sym, start, stop, states)

        if done != 0:
            states = self.cascade(done, width, 1, vectors, states)
        if isinstance(size, int) and isinstance(done, int):
            return self.remainder(p, loop.sym, size, done, states) if done < size else states
        return self.open_remainder(p, loop.sym, size, done, states) if done != size else states

    def cascade(
        self,
        size: Size,
        step: int,
        additions: int,
        rounds: Callable[[Ref, Ref, list[State]], list[State]],
        states: list[State],
    ) -> list[State]:
        """`states` combined with the results of `rounds(start, stop, ...)` over range(0, size, step), where one round
        makes `additions` additions to an accumulator. `size` is a multiple of `step`, a power of two."""
        b = self.b
        zero, whole, may_skip = b.const("i64", 0), self.loops.count(size), bounds(size)[0] < 1
        most = bounds(size)[1]
        if not self.rounds_off or most // step * additions <= 2 * CHAIN:
            return self.skip_if_empty(may_skip, whole, rounds, states)
        block = step * max(1, CHAIN >> (additions.bit_length() - 1))
        first = self.as_next_level(self.fresh(states))
        levels = [first for _ in range(cascade_levels(min(-(-most // block), MANY), self.stage))]
        with b.loop(zero, whole, block, _flat_sets(levels), may_skip) as it:
            end = b.op("add", it.index, b.const("i64", block))
            stop = b.intrinsic("smin", end, whole) if size % block != 0 else end
            partial = self.as_next_level(rounds(it.index, stop, self.fresh(states)))
            it.next = _flat_sets(self.propagate(end, block, self.split(it.carried, first), partial))
        lowest, *higher = self.split(it.next, first)
        for level in higher:
            lowest = self.join(level, lowest)
        return self.join(states, self.as_accumulators(lowest, states))

    def skip_if_empty(
        self,
        may_skip: bool,
        whole: Ref,
        rounds: Callable[[Ref, Ref, list[State]], list[State]],
        states: list[State],
    ) -> list[State]:
        """`states` combined with the result of `rounds` over [0, whole); an empty range is skipped if `may_skip`."""
        zero = self.b.const("i64", 0)
        if not may_skip:
            return rounds(zero, whole, states)
        with self.b.loop(zero, whole, 1 << 62, _flat(states), may_skip) as it:
            it.next = _flat(rounds(zero, whole, self.like(it.carried, states)))
        return self.like(it.next, states)

    def propagate(
        self, end: Ref, block: int, levels: list[list[State]], partial: list[State]
    ) -> list[list[State]]:
        """Combine `partial` with the first of `levels`, and levels that hold CHAIN partial results with the level
        above. `end`: a multiple of `block`, a power of two, for each partial result."""
        b = self.b
        levels = [self.join(levels[0], partial), *levels[1:]]
        for k in range(len(levels) - 1):
            mask = b.const("i64", block * CHAIN ** (k + 1) - 1)
            full = b.compare("icmp eq", b.op("and", end, mask), b.const("i64", 0))
            upper = self.join(levels[k + 1], levels[k])
            levels[k + 1] = self.choose(full, upper, levels[k + 1])
            levels[k] = self.choose(full, self.as_next_level(self.fresh(partial)), levels[k])
        return levels

    def as_next_level(self, states: list[State]) -> list[State]:
        """Accumulators converted to the next level of a cascade."""
        pairs = list(zip(self.stage.reductions, states, strict=True))
        if self.vector and not self.open:
            pairs = [
                (r, reduction_codegen.across_lanes(self.b, r.kind, TYPES[r.value.dtype], s)) for r, s in pairs
            ]
        return [reduction_codegen.wide(self.b, r, s) for r, s in pairs]

    def as_accumulators(self, states: list[State], like: list[State]) -> list[State]:
        """A cascade level converted to accumulators with the lanes of `like`."""
        narrow = [
            reduction_codegen.narrow(self.b, r, s) for r, s in zip(self.stage.reductions, states, strict=True)
        ]
        if not self.vector or self.open:
            return narrow
        empty = self.fresh(like)
        return [
            [self.b.insert(e, n, 0) for e, n in zip(*pair, strict=True)]
            for pair in zip(empty, narrow, strict=True)
        ]

    def choose(self, condition: Ref, xs: list[State], ys: list[State]) -> list[State]:
        """`xs` if the scalar condition holds, else `ys`."""
        return [
            [self.b.select(condition, x, y) for x, y in zip(*state, strict=True)]
            for state in zip(xs, ys, strict=True)
        ]

    def straight(self, p: Point, sym: Sym, size: Size, states: list[State]) -> list[State]:
        """Emit the points without loops, alternating between two accumulators."""
        turns = [states, self.fresh(states)] if count_vectors(size, self.step) != 1 else [states]
        for i, (first, mask) in enumerate(self.loops.vectors(size)):
            turns[i % 2] = self.accumulate(p.at(sym, first, mask), turns[i % 2], mask)
        return self.join(*turns) if len(turns) > 1 else turns[0]

    def unrolled(self, p: Point, sym: Sym, start: Ref, stop: Ref, states: list[State]) -> list[State]:
        """Emit full vectors, with `unroll` accumulators to hide the latency of additions."""
        b = self.b
        sets = [states] + [self.fresh(states) for _ in range(self.unroll - 1)]
        flat = _flat_sets(sets)
        with b.loop(start, stop, self.step * self.unroll, flat) as it:
            carried = self.split(it.carried, states)
            for u, partial in enumerate(carried):
                where = b.op("add", it.index, b.const("i64", u * self.step)) if u else it.index
                it.next += _flat(self.accumulate(p.at(sym, where), partial, None))
        sets = self.split(it.next, states)
        while len(sets) > 1:
            sets = [self.join(x, y) for x, y in zip(sets[::2], sets[1::2])]
        return sets[0]

    def remainder(self, p: Point, sym: Sym, size: int, done: int, states: list[State]) -> list[State]:
        """Emit [done, size), one vector at a time."""
        b, step = self.b, self.step
        full = size - size % step
        masked_loop = b.target.masks and size - done > step
        stop = size if masked_loop else full
        if stop - done > step:
            with b.loop(b.const("i64", done), b.const("i64", stop), step, _flat(states)) as it:
                mask = self.loops.mask_below(it.index, size) if stop > full else None
                carried = self.like(it.carried, states)
                it.next = _flat(self.accumulate(p.at(sym, it.index, mask), carried, mask))
            states = self.like(it.next, states)
        elif stop > done:
            states = self.accumulate(p.at(sym, b.const("i64", done)), states, None)
        if stop < size:
            mask = self.loops.mask_first(size - full)
            states = self.accumulate(p.at(sym, b.const("i64", full), mask), states, mask)
        return states

    def open_remainder(self, p: Point, sym: Sym, size: Size, done: Size, states: list[State]) -> list[State]:
        """Like `remainder`, for symbolic sizes."""
        count = self.loops.count
        with self.b.loop(count(done), count(size), self.step, _flat(states), may_skip=True) as it:
            mask = self.loops.mask_below(it.index, size) if self.vector and size % self.step != 0 else None
            carried = self.like(it.carried, states)
            it.next = _flat(self.accumulate(p.at(sym, it.index, mask), carried, mask))
        return self.like(it.next, states)

    def accumulate(self, p: Point, states: list[State], mask: Ref | None) -> list[State]:
        """Combine the values at `p` with `states`, in the lanes of `mask`."""
        b = self.b
        out: list[State] = []
        for new, state in zip(
            reduction_codegen.with_point(self.body, p, self.stage, states), states, strict=True
        ):
            out.append([b.select(mask, n, o) if mask else n for n, o in zip(new, state, strict=True)])
        self.body.stores(p, self.stage.stores)
        return out

    def fresh(self, states: list[State]) -> list[State]:
        """Initial partial results, with the lanes of `states`."""
        return reduction_codegen.start(self.b, self.stage, states[0][0].lanes)

    def join(self, xs: list[State], ys: list[State]) -> list[State]:
        """Two sets of partial results, combined."""
        return reduction_codegen.join(self.b, self.stage, xs, ys)

    def like(self, flat: list[Ref], states: list[State]) -> list[State]:
        """`flat` in the structure of `states`."""
        it = iter(flat)
        return [[next(it) for _ in s] for s in states]

    def split(self, flat: list[Ref], states: list[State]) -> list[list[State]]:
        """`flat` as several sets in the structure of `states`."""
        width = len(_flat(states))
        return [self.like(flat[i : i + width], states) for i in range(0, len(flat), width)]


def _flat(states: list[State]) -> list[Ref]:
    return [r for s in states for r in s]


def _flat_sets(sets: list[list[State]]) -> list[Ref]:
    return [r for states in sets for r in _flat(states)]


def cascade_levels(partials: int, stage: ReduceStage) -> int:
    """The number of levels of a cascade of that many partial results above the first accumulators: each adds up at
    most 2 * CHAIN partial results if it is no more precise than the values."""
    precise = all(r.value.dtype is not torch.float64 for r in stage.reductions)
    return 1 if precise or partials <= 2 * CHAIN else 1 + cascade_levels(partials // CHAIN, stage)


def _unroll(stage: ReduceStage) -> int:
    """The number of accumulators: many for cheap values, which otherwise wait for the previous addition."""
    ops = sum(4 * (v.op in MATH_OPS) + 1 for v in walk(stage_values(stage))) + 2 * len(stage.reductions)
    return 4 if ops <= 6 else 2 if ops <= 14 else 1
