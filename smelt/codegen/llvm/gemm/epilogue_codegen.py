"""Machine code of an epilogue: the function that finishes one tile of a matrix product.

What differs between products of other sizes (strides, divisors) is constants of the code, or numbers that it reads behind
the buffers (`Slots`).
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
    """Numbers that code reads from the slots of %buffers from `first` on. Equal ones are one."""

    first: int
    places: dict[int, int] = field(default_factory=dict)

    def of(self, number: int) -> int:
        """The slot of `number`."""
        return self.places.setdefault(number, self.first + len(self.places))


def write_epilogue(
    module: Module, name: str, p: Product, tile: Tile, *, full: bool, slots: Slots | None = None
) -> str:
    """The function (EPILOGUE_PARAMETERS) that finishes one tile: reads sums at `source`, rows `step` bytes apart, writes
    C. `full`: the tile is `tile.columns` wide; otherwise only its first `cols` columns exist. `slots`: the function is
    that of products of other sizes as well, whose numbers go there; both of a product ask for the same in the same
    order."""
    linkage = "internal " if slots is None else ""
    return _Writer(module, p, tile, full, slots).function(name, linkage)


class _Writer:
    """Writes one epilogue: a loop over rows around the vectors of a row, side by side."""

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
        """Columns [first, first + lanes) of the current row."""
        p, tile, b = self.p, self.tile, self.b
        mask = None if self.full else self._columns_from(first)
        place = self._at(source, b.const("i64", first * tile.size))
        total = b.ordered(f"load {tile.vector}, {place}, align {tile.size}", tile.scalar, tile.lanes)
        value = (
            total
            if p.epilogue.value is None
            else b.widen(self._value(p.epilogue.value, total, first, mask, {}))
        )
        outer, inner = BATCH // p.batch[1], BATCH % p.batch[1]
        index = outer * p.c.outer + inner * p.c.inner + ROW * p.c.row + COL
        place = self._at(self._buffer(2 + len(p.epilogue.inputs)), self._bytes(index, first, tile.size))
        if mask is None:
            b.line(f"store {value}, {place}, align {tile.size}")
            return
        name = f"@llvm.masked.store.{suffix(tile.scalar, tile.lanes)}.p0"
        b.declare(name, f"void {name}({tile.vector}, ptr, {tile.mask})")
        b.line(f"call void {name}({value}, ptr align {tile.size} {place.text}, {mask})")

    def _value(self, value: Value, total: Ref, first: int, mask: Ref | None, memo: dict[int, Ref]) -> Ref:
        """`value` at columns first.. of the current row; one vector, or a scalar that all columns share."""
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
        """An input: a vector, or one scalar where the column does not matter. Inputs are not written meanwhile, so a load
        may stand as soon as its address is known: a bias is loaded once per tile."""
        buffer, index, _ = value.args
        t, lanes, size = TYPES[value.dtype], self.tile.lanes, value.dtype.itemsize
        varies = affine(index, COL) != (0, index)
        place = self._at(self._buffer(2 + buffer), self._bytes(index, first if varies else 0, size))
        if mask is None or not varies:
            kind = type_text(t.memory, lanes if varies else 1)
            ref = self.b.pure(
                f"load {kind}, {place}, align {size}", t.memory, lanes if varies else 1, place.depth
            )
        else:
            kind, name = type_text(t.memory, lanes), f"@llvm.masked.load.{suffix(t.memory, lanes)}.p0"
            self.b.declare(name, f"{kind} {name}(ptr, {type_text('i1', lanes)}, {kind})")
            operands = f"ptr align {size} {place.text}, {mask}, {kind} zeroinitializer"
            depth = max(place.depth, mask.depth)
            ref = self.b.pure(f"call {kind} {name}({operands})", t.memory, lanes, depth)
        return from_memory(self.b, ref, t)

    def _columns_from(self, first: int) -> Ref:
        """The mask of lanes whose column, counted from `first`, is below `cols`."""
        b, lanes = self.b, self.tile.lanes
        numbers = ", ".join(f"i32 {first + i}" for i in range(lanes))
        cols = b.widen(b.convert("trunc", Ref("%cols", "i64"), "i32"), lanes)
        return b.compare("icmp slt", Ref(f"<{numbers}>", "i32", lanes), cols)

    def _buffer(self, number: int) -> Ref:
        place = self._at(Ref("%buffers", "ptr"), self.b.const("i64", 8 * number))
        return self.b.pure(f"load ptr, {place}, align 8", "ptr", 1, place.depth)

    def _at(self, pointer: Ref, offset: Ref) -> Ref:
        depth = max(pointer.depth, offset.depth)
        return self.b.pure(f"getelementptr i8, {pointer}, {offset}", "ptr", 1, depth)

    def _bytes(self, index: Size, first: int, size: int) -> Ref:
        """Of an element's place, `first` columns further."""
        ahead = self.b.const("i64", first * size)
        return self.b.op("add", self._integer(index, size), ahead) if first else self._integer(index, size)

    def _integer(self, e: Size, factor: int = 1) -> Ref:
        """`factor` times an index expression, whose quotients are of non-negative numbers."""
        b = self.b
        if isinstance(e, int):
            return self._number(e * factor)
        if factor != 1 or not isinstance(e, (Sym, Quotient)):
            return self._sum(e, factor)
        if isinstance(e, Sym):
            return self.syms[e]
        return b.op("udiv" if e.op == "floordiv" else "urem", self._integer(e.left), self._integer(e.right))

    def _sum(self, e: Expr, factor: int) -> Ref:
        b = self.b
        total = self._number(e.const * factor)
        for atoms, coefficient in e.terms:
            # A column's place is a constant in any case: neighbours are.
            scale = (
                b.const("i64", coefficient * factor)
                if atoms == (COL,)
                else self._number(coefficient * factor)
            )
            term = scale
            for atom in atoms:
                term = b.op("mul", self._integer(atom), term)
            total = b.op("add", term, total)
        return total

    def _number(self, number: int) -> Ref:
        """A number that may be another one in a product of other sizes."""
        b = self.b
        if self.slots is None or number in (0, 1):
            return b.const("i64", number)
        place = self._at(Ref("%buffers", "ptr"), b.const("i64", 8 * self.slots.of(number)))
        return b.pure(f"load i64, {place}, align 8", "i64", 1, place.depth)
