"""Outer mode over strips of columns, for stages that loop over rows (a sum over dim 0).

One vector at a time would load a cache line of every row again and again. Instead a *strip* of neighbouring lanes
passes through a stage at once, a few rows at a time, along memory. Values per column (partial results of reductions,
expressions that are invariant in the stage's loops) are stored in *slots*: scratch arrays with one element per column
of the strip, which stay in the L1 cache.

An item is a granule of columns; consecutive items are processed as strips as wide as the slots. Rows are added in groups,
pairwise, and many groups as a cascade (`reduction_loops.py`); results do not depend on how the items are split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from smelt.codegen.llvm import reduction_codegen
from smelt.codegen.llvm.ir_builder import Ref, type_text
from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.loop_body import Body, Point
from smelt.codegen.llvm.loop_nests import Loops
from smelt.codegen.llvm.math_functions import MATH_OPS
from smelt.codegen.llvm.reduction_codegen import State
from smelt.codegen.llvm.reduction_loops import CHAIN, MANY, cascade_levels
from smelt.codegen.llvm.vectorization import Choice, lane_stride
from smelt.loops.kernel_ir import (
    Kernel,
    Loop,
    ReduceStage,
    ScanStage,
    Stage,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.shapes.expr import Size, Sym, bounds, ceil_div, free_syms, likely, numel

GRANULE = 2  # vectors of an item: two cache lines, which are fetched as a pair
SLOT_BYTES = 16 << 10  # all slots of a strip
WIDEST = 2048  # columns of a strip
GROUP_ROWS, GROUP_OPS = 8, 160  # limits of a group of rows: memory streams, instructions


def applies(kernel: Kernel, sym: Sym, lanes: int) -> bool:
    """Whether strips suit lanes along `sym`: some stage loops over rows, all row accesses are contiguous along `sym`,
    and there is more than one vector of columns."""
    size = next(l.size for l in kernel.outer if l.sym is sym)
    rows = [s for s in kernel.stages if any(l.size != 1 for l in stage_loops(s))]
    if likely(size) <= lanes or not rows or any(b.role == "local" for b in kernel.buffers):
        return False
    if any(isinstance(s, ScanStage) or 0 in (l.size for l in stage_loops(s)) for s in kernel.stages):
        return False
    return all(lane_stride(e, sym, lanes) in (0, 1) for s in rows for e in _moving(s))


def _moving(stage: Stage) -> Iterator[Size]:
    """The indices of the accesses that vary with the stage's own loops."""
    syms = {l.sym for l in stage_loops(stage)}
    loads = (v.args[1] for v in walk(stage_values(stage)) if v.op == "load")
    for e in (*loads, *(s.index for s in stage_stores(stage))):
        if not free_syms(e).isdisjoint(syms):
            yield e


@dataclass(frozen=True)
class _Slot:
    """One element of LLVM type `elem` (in memory: `memory`) for each column of a strip, at `address`."""

    address: Ref
    elem: str
    memory: str


class Strips:
    """Emits the kernel's items. `left`, `right`: the columns of the strip. `entry`: the block that allocates the slots."""

    def __init__(self, kernel: Kernel, body: Body, loops: Loops, entry: list[str], choice: Choice) -> None:
        assert choice.outer is not None, "strips are of an outer loop"
        self.kernel, self.body, self.loops, self.entry = kernel, body, loops, entry
        self.b, self.sym, self.point_cost = body.b, choice.outer, choice.point_cost
        sym = choice.outer
        self.size = next(l.size for l in self.kernel.outer if l.sym is sym)
        self.granule = GRANULE * self.b.lanes
        self.invariants = {id(s): _invariants(self.kernel, s, sym) for s in self.kernel.stages}
        self.width = self._strip_width()
        self.states: dict[str, list[_Slot]] = {}
        self.left = self.right = Ref("0", "i64")

    def _strip_width(self) -> int:
        element = 4 if self.b.lanes * 4 == self.b.target.lanes(1) else 8
        slots = sum(map(len, self.invariants.values()))
        for stage in self.kernel.stages:
            if isinstance(stage, ReduceStage):
                slots += 4 * len(stage.reductions)
        fits = SLOT_BYTES // (element * max(slots, 1)) // self.granule * self.granule
        full_width = -(-bounds(self.size)[1] // self.granule) * self.granule
        return min(full_width, max(self.granule, min(fits, WIDEST)))

    # ---- items

    def items(self) -> tuple[Size, float]:
        """Emit all items; the number of items, and the estimated cycles of one."""
        b, per, sizes = self.b, ceil_div(self.size, self.granule), self.loops.sizes
        others = [l for l in self.kernel.outer if l.sym is not self.sym]
        rows = numel([l.size for l in others])
        begin, end = Ref("%begin", "i64"), Ref("%end", "i64")
        if rows == 1:
            zero = b.const("i64", 0)
            self._range(Point({**sizes, **{l.sym: zero for l in others}}, self.sym, None, True), begin, end)
        else:
            count = self.loops.count(per)
            first = b.op("udiv", begin, count)
            last = b.op("udiv", b.op("add", end, self.loops.count(per - 1)), count)
            with b.loop(first, last, 1) as row:
                digits = self.loops.decode(row.index, [l.size for l in others])
                syms = {l.sym: d for l, d in zip(others, digits, strict=True)}
                point = Point({**sizes, **syms}, self.sym, None, True)
                skipped = b.op("mul", row.index, count)
                start = b.intrinsic("smax", b.op("sub", begin, skipped), b.const("i64", 0))
                self._range(point, start, b.intrinsic("smin", b.op("sub", end, skipped), count))
        return rows * per, self.point_cost * self.granule

    def _range(self, p: Point, first: Ref, last: Ref) -> None:
        """Emit the granules [first, last) of one point of the other loops, strip by strip."""
        b, granule = self.b, self.b.const("i64", self.granule)
        start = b.op("mul", first, granule)
        stop = b.intrinsic("smin", b.op("mul", last, granule), self.loops.count(self.size))
        if self.width >= bounds(self.size)[1]:
            return self._strip(p, start, stop)
        with b.loop(start, stop, self.width) as strip:
            right = b.intrinsic("smin", b.op("add", strip.index, b.const("i64", self.width)), stop)
            self._strip(p, strip.index, right)

    def _strip(self, p: Point, left: Ref, right: Ref) -> None:
        self.left, self.right = left, right
        for stage in self.kernel.stages:
            self._stage(p, stage)

    def _vectors(self, p: Point, inside: Callable[[Point], None], stores: bool) -> None:
        """Emit `inside` for each vector of the strip. Masks are cheap without stores, and save a copy of it."""
        b = self.b
        if stores or self.size % b.lanes == 0 or not b.target.masks:
            return self.loops.lanes(p, self.sym, self.size, self.left, self.right, inside)
        with b.loop(self.left, self.right, b.lanes) as it:
            inside(p.at(self.sym, it.index, self.loops.mask_below(it.index, self.size)))

    def _slot_vectors(self, p: Point, inside: Callable[[Point], None]) -> None:
        """Like `_vectors`, for code that accesses slots only: they have room for full vectors."""
        with self.b.loop(self.left, self.right, self.b.lanes) as it:
            inside(p.at(self.sym, it.index))

    # ---- stages

    def _stage(self, p: Point, stage: Stage) -> None:
        cached = self._cache_invariants(p, stage)
        if isinstance(stage, ReduceStage):
            rows = bounds(numel([l.size for l in stage.loops]))[1] // _group_rows(stage)
            slots = self._new_states(p, stage, self._cascades(stage, rows))
            self._rows(p, stage, cached, slots)
            self.states.update(zip((r.name for r in stage.reductions), slots, strict=True))
        else:
            self._rows(p, stage, cached, [])

    def _cache_invariants(self, p: Point, stage: Stage) -> dict[int, _Slot]:
        """Compute the stage's loop-invariant expressions into slots; the slots by id of the value."""
        values = self.invariants[id(stage)]
        slots = {id(v): self._slot(TYPES[v.dtype].elem) for v in values}

        def inside(q: Point) -> None:
            self._bind_results(q, values)
            for v in values:
                self._write(q, slots[id(v)], self.body.value(q, v))

        if values:
            self._vectors(p, inside, False)
        return slots

    def _new_states(self, p: Point, stage: ReduceStage, wide: bool) -> list[list[_Slot]]:
        """Slots for the stage's reductions, initialized. `wide`: for the upper levels of a cascade."""
        start = reduction_codegen.start(self.b, stage, self.b.lanes)
        if wide:
            start = [
                reduction_codegen.wide(self.b, r, state)
                for r, state in zip(stage.reductions, start, strict=True)
            ]
        slots = [[self._slot(r.elem) for r in state] for state in start]
        self._slot_vectors(p, lambda q: self._put(q, slots, start))
        return slots

    def _rows(self, p: Point, stage: Stage, cached: dict[int, _Slot], slots: list[list[_Slot]]) -> None:
        """Emit all points of the stage, in groups of rows of its innermost loop."""
        loops = stage_loops(stage)
        if not loops:
            return self._vectors(p, lambda q: self._group(q, stage, cached, slots, None, ()), True)
        self._loops(p, stage, cached, slots, loops)

    def _loops(
        self,
        p: Point,
        stage: Stage,
        cached: dict[int, _Slot],
        slots: list[list[_Slot]],
        loops: Sequence[Loop],
    ) -> None:
        """Emit all points of `loops`, outermost first."""
        loop, remainder = loops[0], loops[1:]
        if not remainder:
            return self._row_loop(p, stage, cached, slots, loop)
        if loop.size == 1:
            return self._loops(p.at(loop.sym, self.b.const("i64", 0)), stage, cached, slots, remainder)

        def rounds(start: Ref, stop: Ref, into: list[list[_Slot]]) -> None:
            with self.b.loop(start, stop, 1) as it:
                self._loops(p.at(loop.sym, it.index), stage, cached, into, remainder)

        inside = max(1, prod(likely(l.size) for l in remainder) // _group_rows(stage))
        self._cascade(p, stage, loop.size, 1, inside, rounds, slots)

    def _row_loop(
        self, p: Point, stage: Stage, cached: dict[int, _Slot], slots: list[list[_Slot]], rows: Loop
    ) -> None:
        b, size, count = self.b, rows.size, _group_rows(stage)

        def group(into: list[list[_Slot]], first: Ref, n: int) -> None:
            which = [b.op("add", first, b.const("i64", k)) if k else first for k in range(n)]
            stores = bool(stage_stores(stage))
            self._vectors(p, lambda q: self._group(q, stage, cached, into, rows.sym, which), stores)

        def groups(start: Ref, stop: Ref, into: list[list[_Slot]], n: int = count) -> None:
            with b.loop(start, stop, n, may_skip=n == 1 and not isinstance(size, int)) as it:
                group(into, it.index, n)

        full = size - size % count
        if full != 0:
            self._cascade(p, stage, full, count, 1, groups, slots)
        if full != size:
            groups(self.loops.count(full), self.loops.count(size), slots, 1)

    def _cascade(
        self,
        p: Point,
        stage: Stage,
        size: Size,
        step: int,
        additions: int,
        rounds: Callable[[Ref, Ref, list[list[_Slot]]], None],
        slots: list[list[_Slot]],
    ) -> None:
        """Add the results of `rounds(start, stop, into)` over range(0, size, step) to `slots`; sums of floats are
        cascades as in `reduction_loops.py`. `additions`: of one round."""
        b, zero, full_width, most = self.b, self.b.const("i64", 0), self.loops.count(size), bounds(size)[1]
        may_skip = bounds(size)[0] < 1
        if not isinstance(stage, ReduceStage) or not self._cascades(stage, most // step * additions):
            with b.when(b.compare("icmp slt", zero, full_width)) if may_skip else nullcontext():
                rounds(zero, full_width, slots)
            return
        each = max(1, CHAIN // additions)
        partials = ceil_div(size, step * each)
        count = cascade_levels(min(bounds(partials)[1], MANY), stage)
        levels = [self._new_states(p, stage, k > 0) for k in range(count)]
        with b.loop(zero, self.loops.count(partials), 1, may_skip=may_skip) as it:
            start = b.op("mul", it.index, b.const("i64", step * each))
            end = b.op("add", start, b.const("i64", step * each))
            rounds(
                start, b.intrinsic("smin", end, full_width) if size % (step * each) != 0 else end, levels[0]
            )
            done = b.op("add", it.index, b.const("i64", 1))
            for k, (level, upper) in enumerate(pairwise([*levels, slots])):
                remainder = b.op("and", done, b.const("i64", CHAIN**k - 1))
                with b.when(b.compare("icmp eq", remainder, b.const("i64", 0))) if k else nullcontext():
                    self._flush(p, stage, level, upper)
        for level, upper in pairwise([*levels[1:], slots]):
            self._flush(p, stage, level, upper)

    def _cascades(self, stage: Stage, additions: int) -> bool:
        return (
            isinstance(stage, ReduceStage)
            and additions > 2 * CHAIN
            and any(map(reduction_codegen.rounds_off, stage.reductions))
        )

    def _flush(
        self, p: Point, stage: ReduceStage, level: list[list[_Slot]], upper: list[list[_Slot]]
    ) -> None:
        """Add the partial results of `level` to the level above, and reset them."""

        def flush(q: Point) -> None:
            self._add(q, stage, upper, self._get(q, level))
            self._put(q, level, reduction_codegen.start(self.b, stage, self.b.lanes))

        self._slot_vectors(p, flush)

    def _add(self, q: Point, stage: ReduceStage, into: list[list[_Slot]], states: list[State]) -> None:
        """Combine partial results with those in slots, in the precision of the slots."""
        before = self._get(q, into)
        for k, (r, slots) in enumerate(zip(stage.reductions, into, strict=True)):
            if slots[0].elem != states[k][0].elem:
                states[k] = reduction_codegen.wide(self.b, r, states[k])
        self._put(q, into, reduction_codegen.join(self.b, stage, before, states))

    def _group(
        self,
        q: Point,
        stage: Stage,
        cached: dict[int, _Slot],
        slots: list[list[_Slot]],
        sym: Sym | None,
        rows: Sequence[Ref],
    ) -> None:
        """Emit one vector of columns at some rows (`sym` None: of a stage without loops)."""
        self._bind_results(q, stage_values(stage), cached)
        cached_values = {v: self._read(q, slot) for v, slot in cached.items()}
        points = [q.at(sym, r) for r in rows] if sym is not None else [q]
        partials: list[list[State]] = []
        for k, point in enumerate(points):
            point.values.update(cached_values)
            if isinstance(stage, ReduceStage):
                if k % 2:
                    partials[-1] = reduction_codegen.with_point(self.body, point, stage, partials[-1])
                else:
                    partials.append(reduction_codegen.at_point(self.body, point, stage))
            self.body.stores(point, stage_stores(stage))
        if isinstance(stage, ReduceStage):
            while len(partials) > 1:
                pairs = [
                    reduction_codegen.join(self.b, stage, x, y) for x, y in zip(partials[::2], partials[1::2])
                ]
                partials = pairs + partials[len(partials) & ~1 :]
            self._add(q, stage, slots, partials[0])

    # ---- slots

    def _slot(self, elem: str) -> _Slot:
        memory = "i8" if elem == "i1" else elem
        address = Ref(f"%slot{len(self.entry)}", "ptr")
        self.entry.append(f"  {address.text} = alloca [{self.width} x {memory}], align 64")
        return _Slot(address, elem, memory)

    def _address(self, q: Point, slot: _Slot) -> Ref:
        """The address of the slot's elements for the columns at `q`."""
        b = self.b
        left = b.op("sub", b.const("i64", 0), self.left)
        base = b.pure(f"getelementptr {slot.memory}, {slot.address}, {left}", "ptr", 1, left.depth)
        column = q.syms[self.sym]
        depth = max(base.depth, column.depth)
        return b.pure(f"getelementptr {slot.memory}, {base}, {column}", "ptr", 1, depth)

    def _read(self, q: Point, slot: _Slot) -> Ref:
        b = self.b
        text = f"load {type_text(slot.memory, b.lanes)}, {self._address(q, slot)}, align 4"
        x = b.ordered(text, slot.memory, b.lanes)
        return b.compare("icmp ne", x, b.like(x, 0)) if slot.elem == "i1" else x

    def _write(self, q: Point, slot: _Slot, x: Ref) -> None:
        x = self.b.convert("zext", self.b.widen(x), "i8") if slot.elem == "i1" else self.b.widen(x)
        self.b.line(f"store {x}, {self._address(q, slot)}, align 4")

    def _get(self, q: Point, slots: list[list[_Slot]]) -> list[State]:
        return [[self._read(q, s) for s in state] for state in slots]

    def _put(self, q: Point, slots: list[list[_Slot]], states: list[State]) -> None:
        for into, state in zip(slots, states, strict=True):
            for slot, x in zip(into, state, strict=True):
                self._write(q, slot, x)

    def _bind_results(
        self, q: Point, values: Sequence[Value], cached: Sequence[int] | dict[int, _Slot] = ()
    ) -> None:
        """Load the reductions that `values` use (except inside cached values) at the columns of `q`."""
        done = {r.name: r for s in self.kernel.stages if isinstance(s, ReduceStage) for r in s.reductions}
        for v in _uncached(values, cached):
            if v.op == "result":
                name = v.args[0]
                state = [self._read(q, slot) for slot in self.states[name]]
                self.body.results[name] = reduction_codegen.finished(self.b, done[name], state)


def _uncached(values: Sequence[Value], cached: Sequence[int] | dict[int, _Slot]) -> Iterator[Value]:
    """The subexpressions of `values` that are not inside cached ones."""
    visited: set[int] = set(cached)
    stack = list(values)
    while stack:
        v = stack.pop()
        if id(v) not in visited:
            visited.add(id(v))
            yield v
            stack += [a for a in v.args if isinstance(a, Value)]


def _invariants(kernel: Kernel, stage: Stage, sym: Sym) -> list[Value]:
    """The largest expressions that vary with the column but not with the row, and cost more than a load."""
    loops = {l.sym for l in stage_loops(stage)}
    if not loops:
        return []
    facts: dict[int, tuple[bool, bool]] = {}

    def fact(v: Value) -> tuple[bool, bool]:
        """(varies with the rows, varies with the columns)"""
        found = facts.get(id(v))
        if found is None:
            syms = (
                free_syms(v.args[1]) if v.op == "load" else free_syms(v.args[0]) if v.op == "index" else set()
            )
            partials = [fact(a) for a in v.args if isinstance(a, Value)]
            rows = not loops.isdisjoint(syms) or any(r for r, _ in partials)
            columns = v.op == "result" or sym in syms or any(c for _, c in partials)
            found = facts[id(v)] = rows, columns
        return found

    found = walk(stage_values(stage), lambda v: fact(v)[0])
    return [v for v in found if fact(v) == (False, True) and not _is_cheap(kernel, v, sym)]


def _is_cheap(kernel: Kernel, v: Value, sym: Sym) -> bool:
    """Whether computing the value again costs no more than loading it from a slot."""
    if v.op == "result":
        return True
    if v.op != "load" or v.args[2] is not None:
        return False
    wide = TYPES[v.dtype].memory == TYPES[v.dtype].elem
    return kernel.buffers[v.args[0]].role == "in" and wide and lane_stride(v.args[1], sym, 64) in (0, 1)


def _group_rows(stage: Stage) -> int:
    """Rows per group: limited by memory streams and code size; few for maps, which have no partial results."""
    values = list(walk(stage_values(stage)))
    moving = len(set(_moving(stage)))
    ops = sum(8 * (v.op in MATH_OPS) + (v.op not in ("const", "index")) for v in values)
    most = GROUP_ROWS if isinstance(stage, ReduceStage) else 2
    rows = min(most, GROUP_ROWS // max(moving, 1), GROUP_OPS // max(ops, 1))
    return 1 << max(rows, 1).bit_length() - 1
