"""Matrix products as Triton source.

A program computes a tile of XBLOCK rows and RBLOCK columns of one product of a batch, in steps of KBLOCK, and does to it
what the product's epilogue says before it is stored. Operands are expressions too: what is elementwise in front of a product
(a cast, mostly) can be computed as the operand is read. Operands are multiplied as float16 or bfloat16, sums are of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from smelt.codegen.llvm.products.epilogue import BATCH, COL, ROW
from smelt.codegen.triton import values
from smelt.codegen.triton.blocks import Blocks
from smelt.codegen.triton.source import Place, Printer, R, Source, X
from smelt.codegen.triton.values import NAMES, Dialect
from smelt.graph.sizes import Size, Sym, bounds, subs
from smelt.loops.ir import Buffer, Kernel, Loop, MapStage, ReduceStage, Reduction, Store, Value, walk
from smelt.loops.values import Moved

PRODUCT = "product"  # the name of the sums, as a `result` of float32


@dataclass(frozen=True)
class Operand:
    """A matrix whose element at BATCH, ROW, COL is `value`. Loads name `inputs` by number."""

    inputs: tuple[Buffer, ...]
    value: Value


@dataclass(frozen=True)
class TiledProduct:
    """C[BATCH, ROW, COL] = value(sum over k of A[BATCH, ROW, k] * B[BATCH, k, COL]), stored at `index`, as `value`'s dtype.
    Loads of `value` name `inputs` by number.

    A and B are of one dtype, float16 or bfloat16. The kernel's buffers are the inputs of A, of B, `inputs`, and C, which
    overlaps none of them."""

    name: str = field(compare=False)
    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    inputs: tuple[Buffer, ...]
    value: Value
    index: Size

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands as they are multiplied."""
        return self.a.value.dtype


@dataclass(frozen=True, order=True)
class Tile:
    """How a product is cut: `x` rows, `r` columns and `k` of the sums at once; `group` tiles of rows are done for each tile
    of columns before the next one, so that what they read is still in the cache."""

    x: int
    r: int
    k: int
    warps: int
    stages: int
    group: int = 8


def tiles_of(p: TiledProduct, t: Tile) -> tuple[int, int]:
    """Along rows and columns."""
    return -(-p.m // t.x), -(-p.n // t.r)


def product_source(
    p: TiledProduct, tile: Tile, unaligned: frozenset[int] = frozenset(), dialect: Dialect = "ptx"
) -> Source:
    """`p` in tiles of `tile`. `unaligned`: buffers that need not begin at a multiple of 16 bytes. A launch's points are
    tiles; a program computes one."""
    return _Product(p, tile, dialect).source_of(unaligned)


class _Product(Printer):
    """The expressions are those of other kernels, on blocks with these axes: rows and columns of A, of B, of C."""

    loads_lines = False  # indices here are blocks of two axes

    def __init__(self, p: TiledProduct, tile: Tile, dialect: Dialect) -> None:
        super().__init__(as_loops(p), frozenset(), dialect, Blocks(tile.x, tile.r, tile.warps))
        self.p, self.tile = p, tile
        self.x_axes = X
        top = max(_top(p, operand.value, rows, columns) for operand, rows, columns in self._operands())
        top = max(top, _top(p, p.value, p.m, p.n), _highest(subs(p.index, _places(p.batch, p.m, p.n))))
        self.wide = "tl.int64" if top >= 1 << 31 else "tl.int32"

    def _operands(self) -> tuple[tuple[Operand, int, int], ...]:
        return (self.p.a, self.p.m, self.p.k), (self.p.b, self.p.k, self.p.n)

    def source_of(self, unaligned: frozenset[int]) -> Source:
        p, t = self.p, self.tile
        rows, columns = tiles_of(p, t)
        constants = {"XBLOCK": t.x, "RBLOCK": t.r, "KBLOCK": t.k}
        self._begin(rows, columns)
        self._sums()
        self._finish()
        passed = self._passed()
        arguments = [*passed, *(f"{name}: tl.constexpr" for name in constants)]
        body = "\n".join([f"def kernel({', '.join(arguments)}):", *self.lines, ""])
        pointers = {name for name, kind in passed.items() if kind.startswith("*")}
        return Source(
            text=f"{self.values.prelude(body)}\n\n@triton.jit\n{body}",
            points=p.batch * rows * columns,
            block=1,
            warps=t.warps,
            signature=passed | dict.fromkeys(constants, "constexpr"),
            aligned=frozenset(pointers - {f"p{i}" for i in unaligned}),
            constants=constants,
            stages=t.stages,
        )

    # ---- the program

    def _begin(self, rows: int, columns: int) -> None:
        """Which tile: programs that run at the same time share rows and columns."""
        group = min(self.tile.group, rows)
        wide = f".to({self.wide})" if self.wide == "tl.int64" else ""
        self.lines += [
            "    tile = tl.program_id(0)",
            f"    batch = (tile // {rows * columns}){wide}",
            f"    tile = tile % {rows * columns}",
            f"    first = tile // {group * columns} * {group}",
            f"    height = tl.minimum({rows} - first, {group})",
            f"    row = first + tile % {group * columns} % height",
            f"    column = tile % {group * columns} // height",
            f"    rows = (row * XBLOCK + tl.arange(0, XBLOCK)){wide}",
            f"    columns = (column * RBLOCK + tl.arange(0, RBLOCK)){wide}",
            "    x = rows[:, None]",
            "    r = columns[None, :]",
        ]
        self.masks = {}
        for axis, size, block in (("x", self.p.m, self.tile.x), ("r", self.p.n, self.tile.r)):
            if size % block:
                self.lines.append(f"    {axis}mask = {axis} < {size}")
                self.masks[axis] = f"{axis}mask"

    def _sums(self) -> None:
        p, t = self.p, self.tile
        sums = self._fresh(X | R)
        self.lines.append(f"    {sums} = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)")
        self.loop = len(self.lines)
        self.lines.append(f"    for start in range(0, {p.k}, KBLOCK):")
        steps = self._fresh(R)
        wide = f".to({self.wide})" if self.wide == "tl.int64" else ""
        self.lines.append(f"        {steps} = (start + tl.arange(0, KBLOCK)){wide}")
        masked = p.k % t.k != 0
        a = self._operand(p.a, 0, (p.m, p.k), (None, f"{steps}[None, :]"), masked)
        b = self._operand(p.b, len(p.a.inputs), (p.k, p.n), (f"{steps}[:, None]", None), masked)
        self.lines.append(f"        {sums} = tl.dot({a}, {b}, {sums})")
        self.loop = None
        self.results[PRODUCT] = sums

    def _operand(
        self,
        operand: Operand,
        first: int,
        sizes: tuple[int, int],
        steps: tuple[str | None, str | None],
        masked: bool,
    ) -> str:
        """A block of an operand; one of its axes is that of the sums, which `steps` names. What lies beyond them is zero."""
        names = []
        masks = {}
        for axis, size, text in zip("xr", sizes, steps, strict=True):
            if text is None:
                names.append(axis)
                if axis in self.masks:
                    masks[axis] = self.masks[axis]
                continue
            name = self._fresh(X if axis == "x" else R)
            self.inner.add(name)  # no expression of it may be moved out of the loop
            names.append(name)
            self.lines.append(f"        {name} = {text}")
            if masked:
                self.lines.append(f"        {name}mask = {name} < {size}")
                masks[axis] = f"{name}mask"
        at = Place(_places(self.p.batch, *sizes), X | R, 2, r=names[1], x=names[0], masks=masks)
        value = self.value(at, _at(operand.value, first, {}))
        shape = "[XBLOCK, KBLOCK]" if steps[0] is None else "[KBLOCK, RBLOCK]"
        whole = self.axes_of.get(value) == X | R
        if not whole:
            value = self._named(at, f"tl.broadcast_to({value}, {shape})", X | R, fixed=False)
        if masked and not (whole and _zero_of_zeros(operand.value)):
            mask = masks["r" if steps[0] is None else "x"]
            zero = values.literal(0, operand.value.dtype)
            value = self._named(
                at, f"tl.where({mask}, {value}, {zero}).to({NAMES[operand.value.dtype]})", X | R, False
            )
        if self.values.dialect == "torch" and operand.value.dtype is torch.bfloat16:
            value = f"{value}.to(tl.float32)"  # the interpreter would multiply their bits
        return value

    def _finish(self) -> None:
        p = self.p
        first = len(p.a.inputs) + len(p.b.inputs)
        at = Place(_places(p.batch, p.m, p.n), X | R, 1, r="r", x="x", masks=self.masks)
        self.store(
            at, Store(first + len(p.inputs), p.index, p.value), self.value(at, _at(p.value, first, {}))
        )


def as_loops(p: TiledProduct) -> Kernel:
    """The same as loops, of which no code for a GPU is made: what a product means."""
    sizes = {"batch": p.batch, "row": p.m, "column": p.n, "step": p.k}
    batch, row, column, step = (Sym(name, 0, max(size - 1, 0)) for name, size in sizes.items())
    firsts = 0, len(p.a.inputs), len(p.a.inputs) + len(p.b.inputs)
    a = _at(p.a.value, firsts[0], {BATCH: batch, ROW: row, COL: step})
    b = _at(p.b.value, firsts[1], {BATCH: batch, ROW: step, COL: column})
    place = {BATCH: batch, ROW: row, COL: column}
    f32 = torch.float32
    term = Value("mul", (Value("cast", (a,), f32), Value("cast", (b,), f32)), f32)
    buffers = (*p.a.inputs, *p.b.inputs, *p.inputs, Buffer("out", p.value.dtype, "out"))
    stored = Store(len(buffers) - 1, subs(p.index, place), _at(p.value, firsts[2], place))
    stages = (
        ReduceStage((Loop(step, p.k),), (Reduction(PRODUCT, "sum", term),)),
        MapStage((), (stored,)),
    )
    return Kernel(p.name, buffers, (Loop(batch, p.batch), Loop(row, p.m), Loop(column, p.n)), stages)


def _at(value: Value, first: int, place: Mapping[Sym, Size]) -> Value:
    """`value` with buffers counted from `first`, and its symbols replaced."""
    return Moved(place, lambda number: number + first).value(value)


def _places(batch: int, rows: int, columns: int) -> dict[Sym, Size]:
    """The symbols of expressions, with bounds, by the names that they have in the program."""
    sizes = ((BATCH, "batch", batch), (ROW, "x", rows), (COL, "r", columns))
    return {s: Sym(name, 0, max(size - 1, 0)) if size > 1 else 0 for s, name, size in sizes}


def _highest(index: Size) -> int:
    low, high = bounds(index)
    return max(abs(int(low)), abs(int(high)))


def _top(p: TiledProduct, value: Value, rows: int, columns: int) -> int:
    """The largest number that an index of `value` has."""
    places = _places(p.batch, rows, columns)
    indices = [v.args[1] if v.op == "load" else v.args[0] for v in walk([value]) if v.op in ("load", "index")]
    return max((_highest(subs(i, places)) for i in indices), default=0)


def _zero_of_zeros(value: Value) -> bool:
    """Whether this is zero where what it loads is: loads themselves, and casts of them."""
    while value.op == "cast":
        (value,) = value.args
    return value.op == "load"
