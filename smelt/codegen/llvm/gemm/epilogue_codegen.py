"""Machine code of an epilogue: the function that finishes one tile of a matrix product.

Size-dependent numbers (strides, divisors) are constants in the code, or are read from slots after the buffers (`Slots`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.llvm.gemm.gemm_driver import EPILOGUE_PARAMETERS
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.llvm.gemm.gemm_tiling import Tile
from smelt.codegen.llvm.ir_builder import Builder, Module, Ref, suffix, type_text
from smelt.codegen.llvm.llvm_types import TYPES, convert, from_memory
from smelt.codegen.llvm.pointwise_codegen import emit
from smelt.loops.kernel_ir import Value
from smelt.shapes.expr import Expr, Quotient, Size, Sym, affine


@dataclass
class Slots:
    """Numbers that the code reads from the slots of %buffers from `first` on. Equal numbers share a slot."""

    first: int
    slot_of: dict[int, int] = field(default_factory=dict)

    def of(self, number: int) -> int:
        """The slot of `number`."""
        return self.slot_of.setdefault(number, self.first + len(self.slot_of))


def write_epilogue(
    module: Module, name: str, p: Product, tile: Tile, *, full: bool, slots: Slots | None = None
) -> str:
    """The function (EPILOGUE_PARAMETERS) that finishes one tile: reads sums at `source`, rows `step` bytes apart,
    writes C. `full`: the tile is `tile.columns` wide; else only its first `cols` columns exist. `slots`: the function
    serves products of other sizes too, and reads their numbers from slots; both variants of a product request the same
    numbers in the same order."""
    linkage = "internal " if slots is None else ""
    return _Writer(module, p, tile, full, slots).function(name, linkage)


class _Writer:
    """Writes one epilogue: a loop over rows around the unrolled vectors of a row."""

    def __init__(self, module: Module, p: Product, tile: Tile, full: bool, slots: Slots | None) -> None:
        self.p, self.tile, self.full, self.slots = p, tile, full, slots
        self.b = Builder(module, tile.lanes)
        self.syms = {BATCH: Ref("%batch", "i64"), COL: Ref("%col", "i64")}

    def function(self, name: str, linkage: str) -> str:
        b = self.b
        with b.loop(b.const("i64", 0), Ref("%rows", "i64"), 1) as loop:
            self.syms[ROW] = b.op("add", Ref("%row", "i64"), loop.index)
            source = self._at(Ref("%source", "ptr"), b.op("mul", loop.index, Ref("%step", "i64")))
            for first in range(0, self.tile.columns, self.tile.lanes):
                self._vector(source, first)
        return (
            f"define {linkage}void @{name}({EPILOGUE_PARAMETERS}) nounwind {{\n{b.lines()}\n  ret void\n}}\n"
        )

    def _vector(self, source: Ref, first: int) -> None:
        """Emit columns [first, first + lanes) of the current row."""
        p, tile, b = self.p, self.tile, self.b
        mask = None if self.full else self._columns_from(first)
        address = self._at(source, b.const("i64", first * tile.size))
        total = b.ordered(f"load {tile.vector}, {address}, align {tile.size}", tile.scalar, tile.lanes)
        value = (
            total
            if p.epilogue.value is None
            else b.widen(self._value(p.epilogue.value, total, first, mask, {}))
        )
        outer, inner = BATCH // p.batch[1], BATCH % p.batch[1]
        index = outer * p.c.outer + inner * p.c.inner + ROW * p.c.row + COL
        address = self._at(self._buffer(2 + len(p.epilogue.inputs)), self._bytes(index, first, tile.size))
        if mask is None:
            b.line(f"store {value}, {address}, align {tile.size}")
            return
        name = f"@llvm.masked.store.{suffix(tile.scalar, tile.lanes)}.p0"
        b.declare(name, f"void {name}({tile.vector}, ptr, {tile.mask})")
        b.line(f"call void {name}({value}, ptr align {tile.size} {address.text}, {mask})")

    def _value(self, value: Value, total: Ref, first: int, mask: Ref | None, memo: dict[int, Ref]) -> Ref:
        """`value` from column `first` of the current row on; one vector, or a scalar that all columns share."""
        ref = memo.get(id(value))
        if ref is None:
            ref = memo[id(value)] = self._compute(value, total, first, mask, memo)
        return ref

    def _compute(self, value: Value, total: Ref, first: int, mask: Ref | None, memo: dict[int, Ref]) -> Ref:
        target = TYPES[value.dtype]
        if value.op == "result":
            return total
        if value.op == "const":
            return self.b.const(target.elem, value.args[0])
        if value.op == "load":
            return self._load(value, first, mask)
        operands = [self._value(v, total, first, mask, memo) for v in value.args]
        kind = TYPES[value.args[-1].dtype]
        if value.op == "cast":
            return convert(self.b, operands[0], kind, target)
        return emit(self.b, value.op, kind, *operands)

    def _load(self, value: Value, first: int, mask: Ref | None) -> Ref:
        """An input: a vector, or one scalar if it does not vary with the column. Inputs are not written meanwhile, so
        a load is hoisted to its address: a bias is loaded once per tile."""
        buffer, index, _ = value.args
        t, lanes, size = TYPES[value.dtype], self.tile.lanes, value.dtype.itemsize
        varies = affine(index, COL) != (0, index)
        address = self._at(self._buffer(2 + buffer), self._bytes(index, first if varies else 0, size))
        if mask is None or not varies:
            kind = type_text(t.memory, lanes if varies else 1)
            ref = self.b.pure(
                f"load {kind}, {address}, align {size}", t.memory, lanes if varies else 1, address.depth
            )
        else:
            kind, name = type_text(t.memory, lanes), f"@llvm.masked.load.{suffix(t.memory, lanes)}.p0"
            self.b.declare(name, f"{kind} {name}(ptr, {type_text('i1', lanes)}, {kind})")
            operands = f"ptr align {size} {address.text}, {mask}, {kind} zeroinitializer"
            depth = max(address.depth, mask.depth)
            ref = self.b.pure(f"call {kind} {name}({operands})", t.memory, lanes, depth)
        return from_memory(self.b, ref, t)

    def _columns_from(self, first: int) -> Ref:
        """The mask of lanes whose column, counted from `first`, is below `cols`."""
        b, lanes = self.b, self.tile.lanes
        lane_indices = ", ".join(f"i32 {first + i}" for i in range(lanes))
        cols = b.widen(b.convert("trunc", Ref("%cols", "i64"), "i32"), lanes)
        return b.compare("icmp slt", Ref(f"<{lane_indices}>", "i32", lanes), cols)

    def _buffer(self, number: int) -> Ref:
        address = self._at(Ref("%buffers", "ptr"), self.b.const("i64", 8 * number))
        return self.b.pure(f"load ptr, {address}, align 8", "ptr", 1, address.depth)

    def _at(self, pointer: Ref, offset: Ref) -> Ref:
        depth = max(pointer.depth, offset.depth)
        return self.b.pure(f"getelementptr i8, {pointer}, {offset}", "ptr", 1, depth)

    def _bytes(self, index: Size, first: int, size: int) -> Ref:
        """The byte offset of the element at `index`, `first` columns further."""
        ahead = self.b.const("i64", first * size)
        return self.b.op("add", self._integer(index, size), ahead) if first else self._integer(index, size)

    def _integer(self, e: Size, factor: int = 1) -> Ref:
        """`factor` times an index expression; dividends of its quotients are non-negative."""
        b = self.b
        if isinstance(e, int):
            return self._maybe_from_slot(e * factor)
        if factor != 1 or not isinstance(e, (Sym, Quotient)):
            return self._sum(e, factor)
        if isinstance(e, Sym):
            return self.syms[e]
        return b.op("udiv" if e.op == "floordiv" else "urem", self._integer(e.left), self._integer(e.right))

    def _sum(self, e: Expr, factor: int) -> Ref:
        b = self.b
        total = self._maybe_from_slot(e.const * factor)
        for atoms, coefficient in e.terms:
            # A column's coefficient is always a constant: adjacent columns are adjacent in memory.
            scale = (
                b.const("i64", coefficient * factor)
                if atoms == (COL,)
                else self._maybe_from_slot(coefficient * factor)
            )
            term = scale
            for atom in atoms:
                term = b.op("mul", self._integer(atom), term)
            total = b.op("add", term, total)
        return total

    def _maybe_from_slot(self, number: int) -> Ref:
        """A number that may differ in a product of other sizes: a constant, or a load from its slot."""
        b = self.b
        if self.slots is None or number in (0, 1):
            return b.const("i64", number)
        address = self._at(Ref("%buffers", "ptr"), b.const("i64", 8 * self.slots.of(number)))
        return b.pure(f"load i64, {address}, align 8", "i64", 1, address.depth)
