"""Matrix products as Triton source.

A program computes a tile of XBLOCK rows and RBLOCK columns of one product of a batch, in steps of KBLOCK, and applies
the product's epilogue before it stores. Operands are expressions too: an elementwise prologue (mostly a cast) can be
computed as the operand is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.triton.block_gemm import (
    Operand,
    Tile,
    TilePrinter,
    counted,
    highest,
    indices_of,
    named_symbols,
)
from smelt.codegen.triton.kernel_source import Position, R, Source, X
from smelt.codegen.triton.value_expressions import Dialect
from smelt.loops.kernel_ir import Buffer, Kernel, Loop, MapStage, ReduceStage, Reduction, Store, Value
from smelt.shapes.expr import Size, Sym, subs

PRODUCT = "product"  # the name of the sums, as a `result` of float32


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
    def sizes(self) -> str:
        """Batch, rows, columns, depth, for display."""
        return f"{self.batch}×{self.m}×{self.n}×{self.k}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the operands in the product."""
        return self.a.value.dtype


def tiles_of(p: TiledProduct, t: Tile) -> tuple[int, int]:
    """The number of tiles along rows and columns."""
    return -(-p.m // t.x), -(-p.n // t.r)


def product_source(
    p: TiledProduct, tile: Tile, unaligned: frozenset[int] = frozenset(), dialect: Dialect = "ptx"
) -> Source:
    """`p` in tiles of `tile`, a program for each. `unaligned`: buffers that may begin at any address."""
    return _Product(p, tile, dialect).source_of(unaligned)


class _Product(TilePrinter):
    """Blocks have these axes: rows and columns of A, of B, of C."""

    def __init__(self, p: TiledProduct, tile: Tile, dialect: Dialect) -> None:
        parts = [(operand.value, (p.batch, rows, columns)) for operand, rows, columns in _operands(p)]
        parts.append((p.value, (p.batch, p.m, p.n)))
        top = max(highest(indices_of(value), sizes) for value, sizes in parts)
        super().__init__(as_loops(p), tile, dialect, max(top, highest([p.index], (p.batch, p.m, p.n))))
        self.p = p

    def source_of(self, unaligned: frozenset[int]) -> Source:
        p, t = self.p, self.tile
        rows, columns = tiles_of(p, t)
        self._begin(rows, columns)
        self._sums()
        self._finish()
        constants = {"XBLOCK": t.x, "RBLOCK": t.r, "KBLOCK": t.k}
        return self.module_of_tiles(p.batch * rows * columns, constants, unaligned)

    # ---- the program

    def _begin(self, rows: int, columns: int) -> None:
        """The tile: concurrent programs share rows and columns."""
        group = min(self.tile.group, rows)
        self.lines += [
            "    tile = tl.program_id(0)",
            f"    batch = {self.widened(f'(tile // {rows * columns})')}",
            f"    tile = tile % {rows * columns}",
            f"    first = tile // {group * columns} * {group}",
            f"    height = tl.minimum({rows} - first, {group})",
            f"    row = first + tile % {group * columns} % height",
            f"    column = tile % {group * columns} // height",
            f"    rows = {self.widened('(row * XBLOCK + tl.arange(0, XBLOCK))')}",
            f"    columns = {self.widened('(column * RBLOCK + tl.arange(0, RBLOCK))')}",
            "    x = rows[:, None]",
            "    r = columns[None, :]",
        ]
        self.masks: dict[str, str] = {}
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
        self.lines.append(f"        {steps} = {self.widened('(start + tl.arange(0, KBLOCK))')}")
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
        """A block of an operand; one of its axes is the depth, which `steps` names. Elements beyond it are zero."""
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
        at = Position(named_symbols(self.p.batch, *sizes), X | R, 2, r=names[1], x=names[0], masks=masks)
        self.extents = {"x": "XBLOCK", "r": "KBLOCK"} if steps[0] is None else {"x": "KBLOCK", "r": "RBLOCK"}
        return self.operand(at, operand, first, masks["r" if steps[0] is None else "x"] if masked else None)

    def _finish(self) -> None:
        p = self.p
        first = len(p.a.inputs) + len(p.b.inputs)
        self.extents = {"x": "XBLOCK", "r": "RBLOCK"}
        at = Position(named_symbols(p.batch, p.m, p.n), X | R, 1, r="r", x="x", masks=self.masks)
        value = self.value(at, counted(p.value, first, {}))
        self.store(at, Store(first + len(p.inputs), p.index, p.value), value)


def _operands(p: TiledProduct) -> tuple[tuple[Operand, int, int], ...]:
    return (p.a, p.m, p.k), (p.b, p.k, p.n)


def as_loops(p: TiledProduct) -> Kernel:
    """The product as loops: its meaning, for which no GPU code is generated."""
    sizes = {"batch": p.batch, "row": p.m, "column": p.n, "step": p.k}
    batch, row, column, step = (Sym(name, 0, max(size - 1, 0)) for name, size in sizes.items())
    firsts = 0, len(p.a.inputs), len(p.a.inputs) + len(p.b.inputs)
    a = counted(p.a.value, firsts[0], {BATCH: batch, ROW: row, COL: step})
    b = counted(p.b.value, firsts[1], {BATCH: batch, ROW: step, COL: column})
    element = {BATCH: batch, ROW: row, COL: column}
    f32 = torch.float32
    term = Value("mul", (Value("cast", (a,), f32), Value("cast", (b,), f32)), f32)
    buffers = (*p.a.inputs, *p.b.inputs, *p.inputs, Buffer("out", p.value.dtype, "out"))
    stored = Store(len(buffers) - 1, subs(p.index, element), counted(p.value, firsts[2], element))
    stages = (ReduceStage((Loop(step, p.k),), (Reduction(PRODUCT, "sum", term),)), MapStage((), (stored,)))
    return Kernel(p.name, buffers, (Loop(batch, p.batch), Loop(row, p.m), Loop(column, p.n)), stages)
