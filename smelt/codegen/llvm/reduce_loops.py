"""The loops of a reduction: vectors, several accumulators, blocks of their own for long rows, and what remains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smelt.codegen.llvm import reduce
from smelt.codegen.llvm.body import Body, Point
from smelt.codegen.llvm.builder import Ref
from smelt.codegen.llvm.loops import Loops
from smelt.codegen.llvm.reduce import State
from smelt.codegen.llvm.vmath import MATH_OPS
from smelt.graph.sizes import Sym, static
from smelt.loops.ir import Loop, ReduceStage, stage_values, walk

CASCADE = 128  # vectors summed into one accumulator before it is added to an outer one


class ReduceLoops:
    """The loops of one reduce stage. `vector`: the last loop runs over lanes."""

    def __init__(self, body: Body, loops: Loops, stage: ReduceStage, vector: bool) -> None:
        self.body, self.loops, self.stage, self.vector = body, loops, stage, vector
        self.b = body.b
        self.step = self.b.lanes if vector else 1
        self.unroll = _unroll(stage)

    def run(self, p: Point, loops: Sequence[Loop], states: list[State]) -> list[State]:
        """`states` joined with the values at all points of `loops`, outermost first."""
        loop, rest = loops[0], loops[1:]
        if not rest:
            return self.innermost(p, loop, states)
        b = self.b
        if static(loop.size) == 1:
            return self.run(p.at(loop.sym, b.const("i64", 0)), rest, states)
        apart = prod(static(l.size) for l in rest) >= 16 * self.step  # partial sums of their own: a cascade
        with b.loop(b.const("i64", 0), b.const("i64", static(loop.size)), 1, _flat(states)) as it:
            outer = self.like(it.carried, states)
            inner = self.run(p.at(loop.sym, it.index), rest, self.fresh(states) if apart else outer)
            it.next = _flat(self.join(outer, inner) if apart else inner)
        return self.like(it.next, states)

    def innermost(self, p: Point, loop: Loop, states: list[State]) -> list[State]:
        """The last loop: without a loop, in cascading blocks, unrolled, or one vector at a time."""
        size = static(loop.size)
        if self.loops.inline and self.vector:
            return self.straight(p, loop.sym, size, states)
        groups = size // (self.step * self.unroll)
        done = 0
        if groups >= 8 * CASCADE:
            states, done = self.cascade(p, loop.sym, groups // CASCADE, states)
        elif groups >= 2 and self.unroll > 1:
            done = groups * self.step * self.unroll
            states = self.unrolled(p, loop.sym, self.b.const("i64", 0), self.b.const("i64", done), states)
        return self.remainder(p, loop.sym, size, done, states) if done < size else states

    def straight(self, p: Point, sym: Sym, size: int, states: list[State]) -> list[State]:
        """Without loops, into two accumulators by turns."""
        turns = [states, self.fresh(states)] if size > self.step else [states]
        for i, first in enumerate(range(0, size, self.step)):
            mask = self.loops.mask_first(min(size - first, self.step))
            at = p.at(sym, self.b.const("i64", first), mask)
            turns[i % 2] = self.accumulate(at, turns[i % 2], mask)
        return self.join(*turns) if len(turns) > 1 else turns[0]

    def cascade(self, p: Point, sym: Sym, blocks: int, states: list[State]) -> tuple[list[State], int]:
        """Blocks of CASCADE groups are summed apart, which keeps rounding errors small."""
        b = self.b
        width = CASCADE * self.step * self.unroll
        with b.loop(b.const("i64", 0), b.const("i64", blocks * width), width, _flat(states)) as it:
            stop = b.op("add", it.index, b.const("i64", width))
            inner = self.unrolled(p, sym, it.index, stop, self.fresh(states))
            it.next = _flat(self.join(self.like(it.carried, states), inner))
        return self.like(it.next, states), blocks * width

    def unrolled(self, p: Point, sym: Sym, start: Ref, stop: Ref, states: list[State]) -> list[State]:
        """Full vectors, `unroll` accumulators to overlap the latency of adding."""
        b = self.b
        sets = [states] + [self.fresh(states) for _ in range(self.unroll - 1)]
        flat = [r for s in sets for r in _flat(s)]
        with b.loop(start, stop, self.step * self.unroll, flat) as it:
            carried = self.split(it.carried, states)
            for u, part in enumerate(carried):
                where = b.op("add", it.index, b.const("i64", u * self.step)) if u else it.index
                it.next += _flat(self.accumulate(p.at(sym, where), part, None))
        sets = self.split(it.next, states)
        while len(sets) > 1:
            sets = [self.join(x, y) for x, y in zip(sets[::2], sets[1::2])]
        return sets[0]

    def remainder(self, p: Point, sym: Sym, size: int, done: int, states: list[State]) -> list[State]:
        """[done, size), one vector at a time."""
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

    def accumulate(self, p: Point, states: list[State], mask: Ref | None) -> list[State]:
        """Joins the values at `p` into `states`, in the lanes of `mask`."""
        b = self.b
        out: list[State] = []
        for new, state in zip(
            self.join(states, reduce.at_point(self.body, p, self.stage)), states, strict=True
        ):
            out.append([b.select(mask, n, o) if mask else n for n, o in zip(new, state, strict=True)])
        self.body.stores(p, self.stage.stores)
        return out

    def fresh(self, states: list[State]) -> list[State]:
        """Partial results before any point, of as many lanes as `states`."""
        return reduce.start(self.b, self.stage, states[0][0].lanes)

    def join(self, xs: list[State], ys: list[State]) -> list[State]:
        """Two sets of partial results, combined."""
        return reduce.join(self.b, self.stage, xs, ys)

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


def _unroll(stage: ReduceStage) -> int:
    """Accumulators: many for cheap values, which otherwise wait for the previous addition."""
    ops = sum(4 * (v.op in MATH_OPS) + 1 for v in walk(stage_values(stage))) + 2 * len(stage.reductions)
    return 4 if ops <= 6 else 2 if ops <= 14 else 1
