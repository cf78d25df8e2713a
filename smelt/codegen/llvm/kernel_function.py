"""One kernel as one LLVM function: `void name(void **buffers, i64 begin, i64 end)`.

`buffers` holds the addresses of the kernel's non-local buffers, in order, then the kernel's sizes, each an i64.
[begin, end) is a range of *items*: outer points in inner mode, blocks of them in outer mode (see `vectorization.py`).
Results do not depend on how [0, extent) is split into ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from smelt.codegen.llvm import column_strips
from smelt.codegen.llvm.flat_elementwise import ANY
from smelt.codegen.llvm.ir_builder import Builder, Module, Ref
from smelt.codegen.llvm.kernel_stages import Stages
from smelt.codegen.llvm.llvm_types import TYPES, Type
from smelt.codegen.llvm.loop_body import Body, Point
from smelt.codegen.llvm.loop_nests import Loops
from smelt.codegen.llvm.short_rows import INLINE_VECTORS, has_short_rows
from smelt.codegen.llvm.vectorization import (
    LOCAL_BYTES,
    Choice,
    choose,
    count_lanes,
    lane_stride,
    local_bytes,
)
from smelt.loops.kernel_ir import Kernel, Loop, stage_stores, stage_values, walk
from smelt.shapes.expr import Size, Sym, bounds, ceil_div, likely, numel, static

THREAD_CYCLES = 20_000  # a thread's work should hide its launch (about 5 us)
ITEM_CYCLES = 4_000  # an item should hide the decoding of its index
TILE = 64  # iterations of the loop that shares cache lines with gathered lanes


@dataclass(frozen=True)
class KernelText:
    """The text of a kernel's function, its number of items, and the minimum number per thread. `points`: of an item,
    for a kernel of any size (`flat`), whose `extent` is meaningless."""

    text: str
    extent: Size
    grain: int
    points: int = 0


@dataclass(frozen=True)
class _Items:
    """How outer mode numbers its items: over `loops`, segments of `segment` (a loop of symbolic size, `length` points
    each), tiles of `tile`, then chunks of the vector loop. `serial` loops run inside an item."""

    loops: tuple[Loop, ...]
    segment: Loop | None
    length: int
    serial: tuple[Loop, ...]
    tile: Loop | None
    chunk: int
    cycles: float


def emit_kernel(kernel: Kernel, name: str, module: Module) -> KernelText:
    """The kernel as the function `name` of `module`, for the module's target."""
    lanes = count_lanes(kernel, module.target.lanes)
    return _Emitter(kernel, module, lanes).function(name)


class _Emitter:
    def __init__(self, kernel: Kernel, module: Module, lanes: int) -> None:
        self.kernel, self.b = kernel, Builder(module, lanes)
        self.choice: Choice = choose(kernel, lanes)
        inline = has_short_rows(kernel, self.choice, lanes)
        self.loops = Loops(self.b, inline, self._sizes())
        self.entry: list[str] = []
        self.exit: list[str] = []
        self.scratch: list[Ref] = []  # of symbolic sizes
        self.body = Body(self.b, kernel.buffers, self._pointers())
        self.stages = Stages(kernel, self.body, self.loops, self.choice)

    # ---- frame

    def function(self, name: str) -> KernelText:
        if any(l.size == 0 for l in self.kernel.outer):
            return KernelText(_frame(name, [], [], []), 0, 1)
        if any(isinstance(l.size, int) and l.size >= ANY for l in self.kernel.outer):
            points, cycles = self._flat_items()
            text = _frame(name, self.entry, [self.b.lines()], self.exit)
            return KernelText(text, 0, ceil(THREAD_CYCLES / cycles), points)
        if self.choice.outer is None:
            extent, cycles = self._inner_items()
        elif column_strips.applies(self.kernel, self.choice.outer, self.b.lanes):
            extent, cycles = column_strips.Strips(
                self.kernel, self.body, self.loops, self.entry, self.choice
            ).items()
        else:
            extent, cycles = self._outer_items(self.choice.outer)
        for scratch in self.scratch:
            self.b.line(f"call void @free({scratch})")
        text = _frame(name, self.entry, [self.b.lines()], self.exit)
        return KernelText(text, extent, ceil(THREAD_CYCLES / cycles))

    def _sizes(self) -> dict[Sym, Ref]:
        b = self.b
        first = sum(buffer.role != "local" for buffer in self.kernel.buffers)
        sizes: dict[Sym, Ref] = {}
        for k, sym in enumerate(self.kernel.sizes, first):
            slot = b.pure(f"getelementptr i64, ptr %buffers, i64 {k}", "ptr", 1, 0)
            sizes[sym] = b.pure(f"load i64, {slot}", "i64", 1, 0)
        return sizes

    def _pointers(self) -> list[Ref]:
        b = self.b
        pointers: list[Ref] = []
        argument = 0
        on_stack = local_bytes(self.kernel, b.lanes) <= LOCAL_BYTES
        for i, buffer in enumerate(self.kernel.buffers):
            if buffer.role == "local":
                pointers.append(self._local(i, buffer.size, TYPES[buffer.dtype], on_stack))
                continue
            slot = b.pure(f"getelementptr ptr, ptr %buffers, i64 {argument}", "ptr", 1, 0)
            pointers.append(b.pure(f"load ptr, {slot}", "ptr", 1, 0))
            argument += 1
        return pointers

    def _local(self, i: int, size: Size, t: Type, on_stack: bool) -> Ref:
        """Scratch memory of one outer point, or of `lanes` adjacent ones."""
        count = size * (self.b.lanes if self.choice.outer is not None else 1)
        if bounds(count)[1] <= INLINE_VECTORS * self.b.lanes:
            count = bounds(count)[1]
        ref = Ref(f"%local{i}", "ptr")
        if on_stack and isinstance(count, int):
            self.entry.append(f"  {ref.text} = alloca [{count} x {t.memory}], align 64")
            return ref
        self.b.declare("@malloc", "ptr @malloc(i64)")
        self.b.declare("@free", "void @free(ptr)")
        if not isinstance(count, int):
            self.scratch.append(
                self.b.ordered(f"call ptr @malloc({self.loops.count(count * t.bytes)})", "ptr", 1)
            )
            return self.scratch[-1]
        self.entry.append(f"  {ref.text} = call ptr @malloc(i64 {count * t.bytes})")
        self.exit.append(f"  call void @free({ref})")
        return ref

    # ---- items

    def _inner_items(self) -> tuple[Size, float]:
        sizes = [l.size for l in self.kernel.outer]
        with self.b.loop(Ref("%begin", "i64"), Ref("%end", "i64"), 1) as item:
            indices = self.loops.decode(item.index, sizes)
            syms = {l.sym: r for l, r in zip(self.kernel.outer, indices, strict=True)}
            self.stages.run(Point({**self.loops.sizes, **syms}))
        return numel(sizes), self.choice.point_cost

    def _flat_items(self) -> tuple[int, float]:
        """Emit the items of a kernel of any size: vectors, or points, of which the last are fewer than a vector."""
        b, sym, cost = self.b, self.choice.outer, self.choice.point_cost
        begin, end = Ref("%begin", "i64"), Ref("%end", "i64")
        if sym is None:
            self._inner_items()
            return 1, cost
        point = Point({}, sym, None, True)
        if static(self._size(sym)) % b.lanes == 0:
            lanes = b.const("i64", b.lanes)
            with b.loop(b.op("mul", begin, lanes), b.op("mul", end, lanes), b.lanes) as it:
                self.stages.run(point.at(sym, it.index))
            return b.lanes, cost * b.lanes
        partial = b.op("urem", b.op("sub", end, begin), b.const("i64", b.lanes))
        whole = b.op("sub", end, partial)
        with b.when(b.compare("icmp slt", begin, whole)), b.loop(begin, whole, b.lanes) as it:
            self.stages.run(point.at(sym, it.index))
        with b.when(b.compare("icmp slt", whole, end)):
            self.stages.run(point.at(sym, whole, self.loops.mask_left(whole, end)))
        return 1, cost

    def _outer_items(self, sym: Sym) -> tuple[Size, float]:
        items = self._divide(sym)
        size = self._size(sym)
        counts: list[Size] = [l.size for l in items.loops]
        if items.segment:
            counts.append(ceil_div(items.segment.size, items.length))
        if items.tile:
            counts.append(ceil_div(items.tile.size, TILE))
        counts.append(ceil_div(size, items.chunk))
        with self.b.loop(Ref("%begin", "i64"), Ref("%end", "i64"), 1) as item:
            indices = self.loops.decode(item.index, counts)
            syms = {**self.loops.sizes, **{l.sym: r for l, r in zip(items.loops, indices)}}
            start, stop = self.loops.segment(indices[-1], items.chunk, size)
            point = Point(syms, sym, None, True)

            def blocks(p: Point) -> None:
                tile = self.loops.segment(indices[-2], TILE, items.tile.size) if items.tile else None
                self.loops.lanes(p, sym, size, start, stop, lambda q: self._tiled(q, items.tile, tile))

            if items.segment is None:
                self.loops.nest(point, items.serial, blocks)
            else:
                segment = self.loops.segment(indices[len(items.loops)], items.length, items.segment.size)
                with self.b.loop(*segment, 1) as it:
                    self.loops.nest(point.at(items.segment.sym, it.index), items.serial, blocks)
        return numel(counts), items.cycles

    def _tiled(self, p: Point, loop: Loop | None, tile_range: tuple[Ref, Ref] | None) -> None:
        if loop is None or tile_range is None:
            return self.stages.run(p)
        with self.b.loop(*tile_range, 1) as tile:
            self.stages.run(p.at(loop.sym, tile.index))

    def _size(self, sym: Sym) -> Size:
        return next(l.size for l in self.kernel.outer if l.sym is sym)

    def _divide(self, sym: Sym) -> _Items:
        """Choose items of about ITEM_CYCLES: part of the vector loop, or all of it and further loops of constant size."""
        lanes, size = self.b.lanes, likely(self._size(sym))
        block = self.choice.point_cost * lanes
        others = [l for l in self.kernel.outer if l.sym is not sym]
        tile = self._shared_lines(sym, others)
        if tile is not None:
            others.remove(tile)
            block *= min(TILE, likely(tile.size))
        chunks = max(1, round(ceil(size / lanes) * block / ITEM_CYCLES))
        chunk = ceil(ceil(size / chunks) / lanes) * lanes
        if not isinstance(self._size(sym), int):
            chunk = max(1, round(ITEM_CYCLES / block)) * lanes
        cycles = chunk / lanes * block
        serial: list[Loop] = []
        whole = chunks == 1 and tile is None and isinstance(self._size(sym), int)
        while whole and others and cycles * bounds(others[-1].size)[1] <= ITEM_CYCLES:
            serial.insert(0, others.pop())
            cycles *= bounds(serial[0].size)[1]
        segment, length = None, max(1, round(ITEM_CYCLES / cycles))
        if whole and length > 1 and others and not isinstance(others[-1].size, int):
            segment = others.pop()
            cycles *= length
        return _Items(tuple(others), segment, length, tuple(serial), tile, chunk, cycles)

    def _shared_lines(self, sym: Sym, others: Sequence[Loop]) -> Loop | None:
        """An outer loop along which an access is contiguous that lanes gather or scatter: inside the lanes' loop it
        uses full cache lines (a transpose)."""
        for index in _indices(self.kernel):
            if lane_stride(index, sym, self.b.lanes) in (0, 1):
                continue
            for loop in others:
                if likely(loop.size) >= 4 and lane_stride(index, loop.sym, 4) == 1:
                    return loop
        return None


def _indices(kernel: Kernel) -> list[Size]:
    """The indices of the kernel's loads and stores, except those of local buffers."""
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
