"""Machine code of windows: one function per window, over planes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, prod

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW, product_value
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.ir_builder import Builder, Module, Ref, suffix, type_text
from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.loop_body import Body, Point, iota
from smelt.codegen.llvm.object_files import assemble_functions
from smelt.codegen.llvm.pointwise_codegen import emit
from smelt.codegen.llvm.windows.window_spec import Window, lanes_for, scratch_for
from smelt.plan.machine_code import CompiledKernel, Function
from smelt.shapes.expr import Sym

ACCUMULATORS = 8  # output rows per block
BLOCK_STEPS = 100  # instructions of the innermost block, which compiles in a few milliseconds
UNROLLED_TAPS = 16  # larger windows loop over columns, unless even and odd columns are separate
REGISTER_TAPS = 12  # weights of a plane that stay in registers


def compile_windows(windows: Sequence[Window]) -> list[CompiledKernel]:
    """Machine code for windows that `refusal` accepts, with distinct names."""
    writers = {p.name: partial(write_window, p=p) for p in windows}
    library = assemble_functions(writers, host())
    return [CompiledKernel(p.name, Function(library, p.name), p.extent, p.grain) for p in windows]


def write_window(module: Module, p: Window) -> str:
    """The text of the function `p.name`."""
    return _Writer(module, p, lanes_for(p, module.target)).function()


class _Writer:
    def __init__(self, module: Module, p: Window, lanes: int) -> None:
        self.p, self.lanes = p, lanes
        self.b = Builder(module, lanes)
        self.type = TYPES[p.dtype]
        self.scratch = scratch_for(p, lanes)
        self.plane = Ref("%scratch", "ptr")
        self.rows = self._block_rows()
        first = 2 if p.kind == "sum" else 1
        inputs = p.epilogue.inputs
        self.x, self.w = self._buffer(0), self._buffer(1) if p.kind == "sum" else None
        self.y = self._buffer(first + len(inputs))
        self.body = Body(self.b, inputs, [self._buffer(first + i) for i in range(len(inputs))])

    def _block_rows(self) -> int:
        """Output rows per block: many, and a divisor of the rows if possible."""
        looped = prod(self.p.kernel) > UNROLLED_TAPS and self.p.stride[1] == 1
        steps = self.p.kernel[0] if looped else prod(self.p.kernel)
        most = max(1, min(self.p.out[0], ACCUMULATORS, BLOCK_STEPS // steps))
        return next((r for r in range(most, most // 2, -1) if self.p.out[0] % r == 0), most)

    def function(self) -> str:
        p, b = self.p, self.b
        count = self.scratch.rows * self.scratch.row
        with b.loop(self._int(0), self._int(count), self.lanes) as it:
            self._store(b.widen(self._identity()), self._at(self.plane, it.index), None)
        with b.loop(Ref("%begin", "i64"), Ref("%end", "i64"), 1) as plane:
            image = b.op("udiv", plane.index, self._int(p.planes[1]))
            channel = b.op("urem", plane.index, self._int(p.planes[1]))
            self._copy(self._offset(self.x, (image, p.x_strides[0]), (channel, p.x_strides[1])))
            self._blocks(image, channel)
        return (
            f"define void @{p.name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\nentry:\n"
            f"  %scratch = alloca [{count} x {self.type.elem}], align 64\n"
            "  %any = icmp slt i64 %begin, %end\n  br i1 %any, label %work, label %done\nwork:\n"
            f"{b.lines()}\n  br label %done\ndone:\n  ret void\n}}\n"
        )

    # ---- the plane into scratch memory

    def _copy(self, source: Ref) -> None:
        p, b = self.p, self.b
        width, step = p.size[1], self.lanes * p.stride[1]
        full = width // step
        into = self._at(self.plane, self._int(p.padding[0] * self.scratch.row))
        with b.loop(self._int(0), self._int(p.size[0]), 1) as row:
            from_row = self._offset(source, (row.index, p.x_strides[2]))
            column = p.x_strides[3]
            to_row = self._offset(into, (row.index, self.scratch.row))
            if full > 4:
                with b.loop(self._int(0), self._int(full), 1) as it:
                    self._copy_chunk(
                        self._offset(from_row, (it.index, step * column)),
                        self._offset(to_row, (it.index, self.lanes)),
                        step,
                    )
            else:
                for i in range(full):
                    self._copy_chunk(
                        self._at(from_row, self._int(i * step * column)),
                        self._at(to_row, self._int(i * self.lanes)),
                        step,
                    )
            if width % step:
                self._copy_chunk(
                    self._at(from_row, self._int(full * step * column)),
                    self._at(to_row, self._int(full * self.lanes)),
                    width % step,
                )

    def _copy_chunk(self, source: Ref, target: Ref, count: int) -> None:
        """Copy `count` elements, at most one vector for each phase."""
        left, lanes = self.p.padding[1], self.lanes
        if self.p.stride[1] == 1:
            value = self._columns(source, self._first(count))
            self._store(value, self._at(target, self._int(left)), self._first(count))
            return
        low = self._columns(source, self._first(count))
        high = low
        if count > lanes:
            beyond = self._at(source, self._int(lanes * self.p.x_strides[3]))
            high = self._columns(beyond, self._first(count - lanes))
        for parity in (0, 1):
            count_of_phase = (count - parity + 1) // 2
            if count_of_phase:
                value = self._every_second(low, high, parity)
                column = left + parity
                pointer = column % 2 * self.scratch.run + column // 2
                self._store(value, self._at(target, self._int(pointer)), self._first(count_of_phase))

    def _every_second(self, low: Ref, high: Ref, parity: int) -> Ref:
        picks = ", ".join(f"i32 {2 * i + parity}" for i in range(self.lanes))
        kind = type_text(low.elem, self.lanes)
        text = f"shufflevector {kind} {low.text}, {kind} {high.text}, <{self.lanes} x i32> <{picks}>"
        return self.b.pure(text, low.elem, self.lanes, max(low.depth, high.depth))

    # ---- windows

    def _blocks(self, image: Ref, channel: Ref) -> None:
        p, b, lanes = self.p, self.b, self.lanes
        (height, width), rows = p.out, self.rows
        weights = self._weights(channel)
        result = self._offset(self.y, (image, p.y_strides[0]), (channel, p.y_strides[1]))
        with b.loop(self._int(0), self._int(height), rows) as block:
            top = self._within(block.index, height, rows)
            with b.loop(self._int(0), self._int(width), lanes) as it:
                left = self._within(it.index, width, lanes)
                origin = self._offset(self.plane, (top, p.stride[0] * self.scratch.row), (left, 1))
                sums = self._combine(origin, weights)
                pixel = b.op("add", b.op("mul", top, self._int(width)), left)
                for row, value in enumerate(sums):
                    at = b.op("add", pixel, self._int(row * width))
                    self._finish(value, {BATCH: image, ROW: channel, COL: at}, result)

    def _within(self, start: Ref, size: int, step: int) -> Ref:
        """The start of a step, moved back if it would end past `size`."""
        if size <= step:
            return self._int(0)
        return start if size % step == 0 else self.b.intrinsic("smin", start, self._int(size - step))

    def _combine(self, origin: Ref, weights: Ref | None) -> list[Ref]:
        """The combination of each output row of a block over all taps, by column; many are a loop, to compile fast."""
        p, b = self.p, self.b
        states = [b.widen(self._identity())] * self.rows
        if prod(p.kernel) <= UNROLLED_TAPS or p.stride[1] > 1:
            for j in range(p.kernel[1]):
                run, column = j * p.dilation[1] % p.stride[1], j * p.dilation[1] // p.stride[1]
                pointer = self._at(origin, self._int(run * self.scratch.run + column))
                states = self._column(pointer, self._taps(weights, self._int(j)), states)
            return states
        with b.loop(self._int(0), self._int(p.kernel[1]), 1, states) as it:
            pointer = self._offset(origin, (it.index, p.dilation[1]))
            it.next = self._column(pointer, self._taps(weights, it.index), it.carried)
        return it.next

    def _column(self, pointer: Ref, taps: Sequence[Ref], states: list[Ref]) -> list[Ref]:
        """`states` with one column of the window: each input row is loaded once, for all output rows it belongs to."""
        p, states = self.p, list(states)
        for y in range((self.rows - 1) * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] + 1):
            uses = [(r, divmod(y - r * p.stride[0], p.dilation[0])) for r in range(self.rows)]
            row_uses = [(r, i) for r, (i, rest) in uses if rest == 0 and 0 <= i < p.kernel[0]]
            if row_uses:
                value = self._load(self._at(pointer, self._int(y * self.scratch.row)), None)
                for r, i in row_uses:
                    states[r] = self._step(states[r], value, taps[i] if taps else None)
        return states

    def _identity(self) -> Ref:
        return self.b.const(self.type.elem, -inf if self.p.kind == "max" else 0)

    def _step(self, state: Ref, value: Ref, weight: Ref | None) -> Ref:
        if weight is not None:
            return self.b.fma(value, weight, state)
        if self.p.kind == "mean":
            return self.b.op("fadd", state, value)
        return emit(self.b, "maximum", self.type, state, value)

    def _weights(self, channel: Ref) -> Ref | None:
        """The address of a plane's weights."""
        return None if self.w is None else self._offset(self.w, (channel, self.p.w_strides[0]))

    def _taps(self, weights: Ref | None, j: Ref) -> list[Ref]:
        """Column j of the weights: in registers for the whole plane if they are few."""
        if weights is None:
            return []
        column = self._offset(weights, (j, self.p.w_strides[2]))
        addresses = [self._at(column, self._int(i * self.p.w_strides[1])) for i in range(self.p.kernel[0])]
        elem = self.type.elem
        if prod(self.p.kernel) <= REGISTER_TAPS:
            return [self.b.widen(self.b.pure(f"load {elem}, {x}", elem, 1, x.depth)) for x in addresses]
        return [self.b.widen(self.b.ordered(f"load {elem}, {x}", elem, 1)) for x in addresses]

    def _finish(self, value: Ref, syms: dict[Sym, Ref], result: Ref) -> None:
        """Emit the epilogue of one vector, and its store."""
        p, b = self.p, self.b
        if p.kind == "mean":
            value = b.op("fdiv", value, b.like(value, p.divisor))
        mask = self._first(p.out[1])
        if p.epilogue.value is not None:
            self.body.results[product_value(p.dtype).args[0]] = value
            value = b.widen(self.body.value(Point(syms, COL, mask), p.epilogue.value))
        self._store(value, self._at(result, syms[COL]), mask)

    # ---- memory

    def _int(self, value: int) -> Ref:
        return self.b.const("i64", value)

    def _buffer(self, count_of_phase: int) -> Ref:
        b = self.b
        slot = b.pure(f"getelementptr ptr, ptr %buffers, i64 {count_of_phase}", "ptr", 1, 0)
        return b.pure(f"load ptr, {slot}", "ptr", 1, 0)

    def _at(self, base: Ref, index: Ref) -> Ref:
        if index.text == "0":
            return base
        depth = max(base.depth, index.depth)
        return self.b.pure(f"getelementptr {self.type.elem}, {base}, {index}", "ptr", 1, depth)

    def _offset(self, base: Ref, *terms: tuple[Ref, int]) -> Ref:
        for index, stride in terms:
            if stride:
                base = self._at(base, index if stride == 1 else self.b.op("mul", index, self._int(stride)))
        return base

    def _first(self, count: int) -> Ref | None:
        """The mask of the first `count` lanes; None: all."""
        if count >= self.lanes:
            return None
        bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(self.lanes))
        return Ref(f"<{bits}>", "i1", self.lanes)

    def _columns(self, address: Ref, mask: Ref | None) -> Ref:
        """Neighbouring columns of the input, gathered if they are not adjacent in memory."""
        b, elem, stride = self.b, self.type.elem, self.p.x_strides[3]
        kind = type_text(elem, self.lanes)
        if stride == 1:
            return self._load(address, mask)
        offsets = iota(b, "i64", stride)
        addresses = b.pure(f"getelementptr {elem}, {address}, {offsets}", "ptr", self.lanes, address.depth)
        mask = mask or b.widen(b.const("i1", True))
        name = f"@llvm.masked.gather.{suffix(elem, self.lanes)}.v{self.lanes}p0"
        b.declare(name, f"{kind} {name}(<{self.lanes} x ptr>, i32, {type_text('i1', self.lanes)}, {kind})")
        text = f"call {kind} {name}({addresses}, i32 {self.type.bytes}, {mask}, {kind} zeroinitializer)"
        return b.ordered(text, elem, self.lanes)

    def _load(self, address: Ref, mask: Ref | None) -> Ref:
        b, elem, kind = self.b, self.type.elem, type_text(self.type.elem, self.lanes)
        if mask is None:
            return b.ordered(f"load {kind}, {address}, align {self.type.bytes}", elem, self.lanes)
        name = f"@llvm.masked.load.{suffix(elem, self.lanes)}.p0"
        b.declare(name, f"{kind} {name}(ptr, i32, {type_text('i1', self.lanes)}, {kind})")
        text = f"call {kind} {name}({address}, i32 {self.type.bytes}, {mask}, {kind} zeroinitializer)"
        return b.ordered(text, elem, self.lanes)

    def _store(self, value: Ref, address: Ref, mask: Ref | None) -> None:
        b, kind = self.b, type_text(self.type.elem, self.lanes)
        if mask is None:
            return b.line(f"store {value}, {address}, align {self.type.bytes}")
        name = f"@llvm.masked.store.{suffix(self.type.elem, self.lanes)}.p0"
        b.declare(name, f"void {name}({kind}, ptr, i32, {type_text('i1', self.lanes)})")
        return b.line(f"call void {name}({value}, {address}, i32 {self.type.bytes}, {mask})")
