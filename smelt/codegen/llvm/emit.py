"""One kernel as one LLVM function: `void name(void **buffers, i64 begin, i64 end)`.

`buffers` holds the addresses of the kernel's buffers that are not local, in order. [begin, end) is a range of *items*:
outer points in inner mode, blocks of them in outer mode (see `vectorize`). Any split of [0, extent) into ranges
gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from smelt.codegen.llvm import columns, reduce
from smelt.codegen.llvm.body import Body, Point, iota
from smelt.codegen.llvm.builder import Builder, Module, Ref
from smelt.codegen.llvm.flat import ANY
from smelt.codegen.llvm.reduce import State
from smelt.codegen.llvm.types import TYPES, Type, rounded
from smelt.codegen.llvm.vectorize import (
    LOCAL_BYTES,
    Choice,
    choose,
    count_lanes,
    lane_stride,
    local_bytes,
)
from smelt.codegen.llvm.vmath import MATH_OPS
from smelt.graph.sizes import Size, Sym
from smelt.loops.ir import (
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    ScanStage,
    Stage,
    Store,
    fixed,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)

PIECE_CYCLES = 20_000  # a thread's piece of work should hide its launch (about 5 us)
ITEM_CYCLES = 4_000  # an item should hide the decoding of its number
CASCADE = 128  # vectors summed into one accumulator before it is added to an outer one
INLINE_VECTORS, INLINE_OPS = 8, 160  # rows that stay in registers from stage to stage: vectors, instructions
TILE = 64  # iterations of the loop that shares cache lines with gathered lanes


@dataclass(frozen=True)
class Function:
    """The text of a kernel's function, its number of items, and how many a thread should take at least. `points`: of an
    item, for a kernel of any size (`flat`), whose `extent` means nothing."""

    text: str
    extent: int
    grain: int
    points: int = 0


@dataclass(frozen=True)
class _Items:
    """How outer mode numbers its items: over `loops`, then tiles of `tile`, then chunks of the vector loop. `serial`
    loops run inside an item."""

    loops: tuple[Loop, ...]
    serial: tuple[Loop, ...]
    tile: Loop | None
    chunk: int
    cycles: float


def emit_kernel(kernel: Kernel, name: str, module: Module) -> Function:
    lanes = count_lanes(kernel, module.target.lanes)
    return _Emitter(kernel, module, lanes).function(name)


class _Emitter:
    def __init__(self, kernel: Kernel, module: Module, lanes: int) -> None:
        self.kernel, self.b = kernel, Builder(module, lanes)
        self.choice: Choice = choose(kernel, lanes)
        self.inline = self.choice.outer is None and _short_rows(kernel, self.choice, lanes)
        self.entry: list[str] = []
        self.exit: list[str] = []
        self.body = Body(self.b, kernel.buffers, self._pointers())

    # ---- frame

    def function(self, name: str) -> Function:
        if any(fixed(l.size) == 0 for l in self.kernel.outer):
            return Function(_frame(name, [], [], []), 0, 1)
        if any(fixed(l.size) >= ANY for l in self.kernel.outer):
            points, cycles = self._flat_items()
            text = _frame(name, self.entry, [self.b.lines()], self.exit)
            return Function(text, 0, ceil(PIECE_CYCLES / cycles), points)
        if self.choice.outer is None:
            extent, cycles = self._inner_items()
        elif columns.applies(self.kernel, self.choice.outer, self.b.lanes):
            extent, cycles = columns.Strips(self, self.choice.outer).items()
        else:
            extent, cycles = self._outer_items(self.choice.outer)
        text = _frame(name, self.entry, [self.b.lines()], self.exit)
        return Function(text, extent, ceil(PIECE_CYCLES / cycles))

    def _pointers(self) -> list[Ref]:
        b = self.b
        pointers: list[Ref] = []
        argument = 0
        on_stack = local_bytes(self.kernel, b.lanes) <= LOCAL_BYTES
        for i, buffer in enumerate(self.kernel.buffers):
            if buffer.role == "local":
                pointers.append(self._local(i, fixed(buffer.size), TYPES[buffer.dtype], on_stack))
                continue
            slot = b.pure(f"getelementptr ptr, ptr %buffers, i64 {argument}", "ptr", 1, 0)
            pointers.append(b.pure(f"load ptr, {slot}", "ptr", 1, 0))
            argument += 1
        return pointers

    def _local(self, i: int, size: int, t: Type, on_stack: bool) -> Ref:
        """Scratch of one outer point, or of `lanes` of them side by side."""
        count = size * (self.b.lanes if self.choice.outer is not None else 1)
        ref = Ref(f"%local{i}", "ptr")
        if on_stack:
            self.entry.append(f"  {ref.text} = alloca [{count} x {t.memory}], align 64")
            return ref
        self.b.declare("@malloc", "ptr @malloc(i64)")
        self.b.declare("@free", "void @free(ptr)")
        self.entry.append(f"  {ref.text} = call ptr @malloc(i64 {count * t.bytes})")
        self.exit.append(f"  call void @free({ref})")
        return ref

    # ---- items

    def _inner_items(self) -> tuple[int, float]:
        with self.b.loop(Ref("%begin", "i64"), Ref("%end", "i64"), 1) as item:
            indices = self._decode(item.index, [fixed(l.size) for l in self.kernel.outer])
            self._stages(Point({l.sym: r for l, r in zip(self.kernel.outer, indices, strict=True)}))
        return prod(fixed(l.size) for l in self.kernel.outer), self.choice.point_cost

    def _flat_items(self) -> tuple[int, float]:
        """Items of a kernel of any size: vectors, or points of which the last ones are fewer than a vector."""
        b, sym, cost = self.b, self.choice.outer, self.choice.point_cost
        begin, end = Ref("%begin", "i64"), Ref("%end", "i64")
        if sym is None:
            self._inner_items()
            return 1, cost
        point = Point({}, sym, None, True)
        if self._size(sym) % b.lanes == 0:
            lanes = b.const("i64", b.lanes)
            with b.loop(b.op("mul", begin, lanes), b.op("mul", end, lanes), b.lanes) as it:
                self._stages(point.at(sym, it.index))
            return b.lanes, cost * b.lanes
        rest = b.op("urem", b.op("sub", end, begin), b.const("i64", b.lanes))
        whole = b.op("sub", end, rest)
        with b.when(b.compare("icmp slt", begin, whole)), b.loop(begin, whole, b.lanes) as it:
            self._stages(point.at(sym, it.index))
        with b.when(b.compare("icmp slt", whole, end)):
            self._stages(point.at(sym, whole, self._mask_left(whole, end)))
        return 1, cost

    def _outer_items(self, sym: Sym) -> tuple[int, float]:
        items = self._divide(sym)
        size = self._size(sym)
        counts = [fixed(l.size) for l in items.loops]
        if items.tile:
            counts.append(ceil(fixed(items.tile.size) / TILE))
        counts.append(ceil(size / items.chunk))
        with self.b.loop(Ref("%begin", "i64"), Ref("%end", "i64"), 1) as item:
            indices = self._decode(item.index, counts)
            syms = {l.sym: r for l, r in zip(items.loops, indices)}
            start, stop = self._piece(indices[-1], items.chunk, size)
            point = Point(syms, sym, None, True)

            def blocks(p: Point) -> None:
                tile = self._piece(indices[-2], TILE, fixed(items.tile.size)) if items.tile else None
                self._lanes(p, sym, size, start, stop, lambda q: self._tiled(q, items.tile, tile))

            self._nest(point, items.serial, blocks)
        return prod(counts), items.cycles

    def _tiled(self, p: Point, loop: Loop | None, piece: tuple[Ref, Ref] | None) -> None:
        if loop is None or piece is None:
            return self._stages(p)
        with self.b.loop(*piece, 1) as tile:
            self._stages(p.at(loop.sym, tile.index))

    def _size(self, sym: Sym) -> int:
        return next(fixed(l.size) for l in self.kernel.outer if l.sym is sym)

    def _divide(self, sym: Sym) -> _Items:
        """Chooses items of about ITEM_CYCLES: part of the vector loop, or all of it and more loops."""
        lanes, size = self.b.lanes, self._size(sym)
        block = self.choice.point_cost * lanes
        others = [l for l in self.kernel.outer if l.sym is not sym]
        tile = self._shared_lines(sym, others)
        if tile is not None:
            others.remove(tile)
            block *= min(TILE, fixed(tile.size))
        chunks = max(1, round(ceil(size / lanes) * block / ITEM_CYCLES))
        chunk = ceil(ceil(size / chunks) / lanes) * lanes
        cycles = chunk / lanes * block
        serial: list[Loop] = []
        while chunks == 1 and tile is None and others and cycles * fixed(others[-1].size) <= ITEM_CYCLES:
            serial.insert(0, others.pop())
            cycles *= fixed(serial[0].size)
        return _Items(tuple(others), tuple(serial), tile, chunk, cycles)

    def _shared_lines(self, sym: Sym, others: Sequence[Loop]) -> Loop | None:
        """An outer loop along which something is contiguous that lanes gather or scatter: run inside the lanes' loop,
        it uses whole cache lines (a transpose)."""
        for index in _indices(self.kernel):
            if lane_stride(index, sym, self.b.lanes) in (0, 1):
                continue
            for loop in others:
                if fixed(loop.size) >= 4 and lane_stride(index, loop.sym, 4) == 1:
                    return loop
        return None

    def _decode(self, item: Ref, counts: Sequence[int]) -> list[Ref]:
        """Row-major digits of an item's number."""
        b = self.b
        digits: list[Ref] = []
        rest = item
        for position, count in reversed(list(enumerate(counts))):
            if count == 1:
                digits.append(b.const("i64", 0))
            elif all(c == 1 for c in counts[:position]):
                digits.append(rest)
            else:
                digits.append(b.op("urem", rest, b.const("i64", count)))
                rest = b.op("udiv", rest, b.const("i64", count))
        return digits[::-1]

    def _piece(self, number: Ref, chunk: int, size: int) -> tuple[Ref, Ref]:
        """[start, stop) of piece `number` of range(size)."""
        b = self.b
        if chunk >= size:
            return b.const("i64", 0), b.const("i64", size)
        start = b.op("mul", number, b.const("i64", chunk))
        stop = b.op("add", start, b.const("i64", chunk))
        if size % chunk:
            stop = b.intrinsic("smin", stop, b.const("i64", size))
        return start, stop

    # ---- loops

    def _nest(self, p: Point, loops: Sequence[Loop], inside: Callable[[Point], None]) -> None:
        """Scalar loops around `inside`."""
        if not loops:
            return inside(p)
        loop, rest = loops[0], loops[1:]
        if fixed(loop.size) == 1:
            return self._nest(p.at(loop.sym, self.b.const("i64", 0)), rest, inside)
        with self.b.loop(self.b.const("i64", 0), self.b.const("i64", fixed(loop.size)), 1) as it:
            self._nest(p.at(loop.sym, it.index), rest, inside)

    def _lanes(
        self, p: Point, sym: Sym, size: int, start: Ref, stop: Ref, inside: Callable[[Point], None]
    ) -> None:
        """`inside` for vectors of `sym` over [start, stop) of range(size); start is a multiple of the lanes. The last
        vector is masked, and is a copy of `inside`: masked stores in a loop cost up to a third of it (float32, Zen 5),
        of bytes and words more than half."""
        b, lanes = self.b, self.b.lanes
        full = size - size % lanes
        if size <= lanes:
            inside(p.at(sym, b.const("i64", 0), self._mask_first(size)))
        elif self.inline:
            for first in range(0, size, lanes):
                inside(p.at(sym, b.const("i64", first), self._mask_first(min(size - first, lanes))))
        elif size == full:
            with b.loop(start, stop, lanes) as it:
                inside(p.at(sym, it.index))
        else:
            end = b.const("i64", full)
            whole = end if stop.is_const else b.intrinsic("smin", stop, end)
            with b.when(b.compare("icmp slt", start, whole)), b.loop(start, whole, lanes) as it:
                inside(p.at(sym, it.index))
            with b.when(b.compare("icmp sgt", stop, end)):
                inside(p.at(sym, end, self._mask_first(size - full)))

    def _mask_first(self, count: int) -> Ref | None:
        """The first `count` lanes."""
        if count == self.b.lanes:
            return None
        bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(self.b.lanes))
        return Ref(f"<{bits}>", "i1", self.b.lanes)

    def _mask_below(self, index: Ref, size: int) -> Ref:
        """Lanes whose iteration index + lane is less than `size`."""
        if size >= 1 << 31:
            return self._mask_left(index, self.b.const("i64", size))
        return self._first_lanes(self.b.op("sub", self.b.const("i64", size), index))

    def _mask_left(self, index: Ref, end: Ref) -> Ref:
        left = self.b.op("sub", end, index)
        return self._first_lanes(self.b.intrinsic("smin", left, self.b.const("i64", self.b.lanes)))

    def _first_lanes(self, count: Ref) -> Ref:
        return self.b.compare("icmp slt", iota(self.b, "i32"), self.b.convert("trunc", count, "i32"))

    # ---- stages

    def _stages(self, p: Point) -> None:
        for i, stage in enumerate(self.kernel.stages):
            p.values.clear()  # what a stage loaded, another may have stored
            if any(fixed(l.size) == 0 for l in stage_loops(stage)):
                if isinstance(stage, ReduceStage):
                    self._finish(stage, reduce.start(self.b, stage, 1), False)
            else:
                _STAGES[type(stage)](self, p, stage, self.choice.inner[i])

    def _map(self, p: Point, stage: MapStage, vector: Sym | None) -> None:
        def inside(q: Point) -> None:
            self._stores(q, stage.stores)

        loops, last = _vector_last(stage.loops, vector)
        if last is None:
            return self._nest(p, loops, inside)
        size = fixed(last.size)
        zero, stop = self.b.const("i64", 0), self.b.const("i64", size)
        point = Point(p.syms, last.sym, p.mask)
        self._nest(point, loops, lambda q: self._lanes(q, last.sym, size, zero, stop, inside))

    def _stores(self, p: Point, stores: Sequence[Store]) -> None:
        values = [self.body.value(p, s.value) for s in stores]
        for store, value in zip(stores, values, strict=True):
            self.body.store(p, store, value)

    def _scan(self, p: Point, stage: ScanStage, vector: Sym | None) -> None:
        b, t = self.b, TYPES[stage.store.value.dtype]
        first = reduce.identity(b, stage.kind, t, b.lanes if p.outer_lanes else 1, "i64")
        stop = b.const("i64", fixed(stage.loop.size))
        with b.loop(b.const("i64", 0), stop, 1, first) as it:
            q = p.at(stage.loop.sym, it.index)
            value = reduce.first_state(b, stage.kind, t, self.body.value(q, stage.store.value), None)
            it.next = [rounded(b, r, t) for r in reduce.combine(b, stage.kind, t, it.carried, value)]
            self.body.store(q, stage.store, it.next[0])

    def _reduce(self, p: Point, stage: ReduceStage, vector: Sym | None) -> None:
        loops, last = _vector_last(stage.loops, vector)
        wide = vector is not None or p.outer_lanes
        states = reduce.start(self.b, stage, self.b.lanes if wide else 1)
        if last is not None:
            p = Point(p.syms, last.sym, p.mask)
            loops = (*loops, last)
        if loops:
            states = _ReduceLoops(self, stage, last is not None).run(p, loops, states)
        else:
            states = _ReduceLoops(self, stage, False).accumulate(p, states, None)
        self._finish(stage, states, last is not None)

    def _finish(self, stage: ReduceStage, states: list[State], horizontal: bool) -> None:
        for r, state in zip(stage.reductions, states, strict=True):
            if horizontal:
                state = reduce.across_lanes(self.b, r.kind, TYPES[r.value.dtype], state)
            self.body.results[r.name] = reduce.finished(self.b, r, state)


class _ReduceLoops:
    """The loops of one reduce stage. `vector`: the last loop runs over lanes."""

    def __init__(self, emitter: _Emitter, stage: ReduceStage, vector: bool) -> None:
        self.emitter, self.stage, self.vector = emitter, stage, vector
        self.b, self.body = emitter.b, emitter.body
        self.step = self.b.lanes if vector else 1
        self.unroll = _unroll(stage)

    def run(self, p: Point, loops: Sequence[Loop], states: list[State]) -> list[State]:
        loop, rest = loops[0], loops[1:]
        if not rest:
            return self.innermost(p, loop, states)
        b = self.b
        if fixed(loop.size) == 1:
            return self.run(p.at(loop.sym, b.const("i64", 0)), rest, states)
        apart = prod(fixed(l.size) for l in rest) >= 16 * self.step  # partial sums of their own: a cascade
        with b.loop(b.const("i64", 0), b.const("i64", fixed(loop.size)), 1, _flat(states)) as it:
            outer = self.like(it.carried, states)
            inner = self.run(p.at(loop.sym, it.index), rest, self.fresh(states) if apart else outer)
            it.next = _flat(self.join(outer, inner) if apart else inner)
        return self.like(it.next, states)

    def innermost(self, p: Point, loop: Loop, states: list[State]) -> list[State]:
        size = fixed(loop.size)
        if self.emitter.inline and self.vector:
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
            mask = self.emitter._mask_first(min(size - first, self.step))
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
                mask = self.emitter._mask_below(it.index, size) if stop > full else None
                carried = self.like(it.carried, states)
                it.next = _flat(self.accumulate(p.at(sym, it.index, mask), carried, mask))
            states = self.like(it.next, states)
        elif stop > done:
            states = self.accumulate(p.at(sym, b.const("i64", done)), states, None)
        if stop < size:
            mask = self.emitter._mask_first(size - full)
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
        self.emitter._stores(p, self.stage.stores)
        return out

    def fresh(self, states: list[State]) -> list[State]:
        return reduce.start(self.b, self.stage, states[0][0].lanes)

    def join(self, xs: list[State], ys: list[State]) -> list[State]:
        return reduce.join(self.b, self.stage, xs, ys)

    def like(self, flat: list[Ref], states: list[State]) -> list[State]:
        """`flat` in the structure of `states`."""
        it = iter(flat)
        return [[next(it) for _ in s] for s in states]

    def split(self, flat: list[Ref], states: list[State]) -> list[list[State]]:
        width = len(_flat(states))
        return [self.like(flat[i : i + width], states) for i in range(0, len(flat), width)]


_STAGES: dict[type[Stage], Callable[..., None]] = {
    MapStage: _Emitter._map,
    ReduceStage: _Emitter._reduce,
    ScanStage: _Emitter._scan,
}


def _short_rows(kernel: Kernel, choice: Choice, lanes: int) -> bool:
    """Several stages go over the same few vectors: without loops, what one stage loaded or computed the next ones
    find in registers, as a common subexpression."""
    vector = [s for s, sym in zip(kernel.stages, choice.inner) if sym is not None]
    sizes = {tuple(fixed(l.size) for l in stage_loops(s)) for s in vector}
    if len(vector) < 2 or len(sizes) != 1 or len(next(iter(sizes))) != 1:
        return False
    vectors = ceil(next(iter(sizes))[0] / lanes)
    values = [v for s in vector for v in stage_values(s)]
    ops = sum(12 * (v.op in MATH_OPS) + 1 for v in walk(values))
    return vectors <= INLINE_VECTORS and vectors * ops <= INLINE_OPS


def _flat(states: list[State]) -> list[Ref]:
    return [r for s in states for r in s]


def _vector_last(loops: tuple[Loop, ...], vector: Sym | None) -> tuple[tuple[Loop, ...], Loop | None]:
    """The scalar loops, and the one that becomes lanes."""
    if vector is None:
        return loops, None
    return tuple(l for l in loops if l.sym is not vector), next(l for l in loops if l.sym is vector)


def _unroll(stage: ReduceStage) -> int:
    """Accumulators: many for cheap values, which otherwise wait for the previous addition."""
    ops = sum(4 * (v.op in MATH_OPS) + 1 for v in walk(stage_values(stage))) + 2 * len(stage.reductions)
    return 4 if ops <= 6 else 2 if ops <= 14 else 1


def _indices(kernel: Kernel) -> list[Size]:
    """Where the kernel loads and stores, local buffers aside."""
    indices: list[Size] = []
    for stage in kernel.stages:
        for value in walk(stage_values(stage)):
            if value.op == "load" and kernel.buffers[value.args[0]].role != "local":
                indices.append(value.args[1])
        indices += [s.index for s in stage_stores(stage) if kernel.buffers[s.buffer].role != "local"]
    return indices


def _frame(name: str, entry: list[str], lines: list[str], exits: list[str]) -> str:
    body = "\n".join(
        (*entry, "  %any = icmp slt i64 %begin, %end", "  br i1 %any, label %work, label %done", "work:")
    )
    tail = "\n".join(("  br label %done", "done:", *exits, "  ret void"))
    work = "\n".join(lines)
    return f"define void @{name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\nentry:\n{body}\n{work}\n{tail}\n}}"
