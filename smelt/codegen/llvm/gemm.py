"""Matrix products as machine code: C = epilogue(A @ B), blocked for the caches, on packed panels.

A product is cut like this (one work item is one *panel* of columns in one block of rows of one batch entry):

    for each block of K (`kc` deep)            packed block of A: L2
        pack the rows of A                     rows stay rows, cut into runs of one vector: a copy, no shuffling
        for each panel of `columns` columns    packed panel of B: L1/L2
            pack the panel                     [k][columns]; a transpose if B is given as W[N, K] (every nn.Linear)
            for each tile of `rows` rows       accumulators: registers
                micro-kernel
                after the last block of K: epilogue on the tile, still in L1

What always holds:

* Whatever does not depend on the epilogue is compiled once per process and used by every product
  (`gemm_library.py`). A product itself is a table of numbers (`_descriptor`), its epilogue, and a short entry point.
* Nothing is kept between calls: packed weights could go stale unseen.
* Rows are shared among tiles evenly, so that at most two tile heights occur in one product.
* A panel narrower than a full one is computed whole in a private strip and cut by the epilogue; no byte outside the
  operands is read or written.
* Sums run in the operands' dtype, in order of k inside a block of K, then block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from smelt.codegen.llvm import gemm_library as library
from smelt.codegen.llvm.builder import Module
from smelt.codegen.llvm.gemm_epilogue import NONE, Epilogue, write_epilogue
from smelt.codegen.llvm.gemm_library import Tile, tile_for
from smelt.codegen.llvm.module import Code, assemble
from smelt.codegen.llvm.target import host


@dataclass(frozen=True)
class Matrix:
    """How a (batch of a) matrix lies in memory: strides in elements; `outer`, `inner` are those of the batch."""

    row: int
    col: int
    outer: int = 0
    inner: int = 0

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.col, self.row, self.outer, self.inner)


@dataclass(frozen=True)
class Product:
    """C[o, i, m, n] = epilogue(sum over k of A[o, i, m, k] * B[o, i, k, n]) over o < batch[0], i < batch[1].

    The machine function's buffers are A, B, the epilogue's inputs, C. C must not overlap any other, and its columns
    are contiguous (c.col == 1). `name` is readable; the function's symbol.
    """

    name: str
    dtype: torch.dtype
    batch: tuple[int, int]
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    epilogue: Epilogue = NONE


@dataclass(frozen=True)
class CompiledProduct:
    """`void function(void** buffers, int64 begin, int64 end)` over [0, extent); see `codegen.plan.Launch`."""

    name: str
    address: int
    extent: int
    grain: int


@dataclass(frozen=True)
class _Cut:
    """How a product is cut into tiles, blocks and panels."""

    tiles: int
    rows: int  # of a low tile
    tall: int  # tiles of one row more, which come first
    block_tiles: int
    row_blocks: int
    kc: int
    k_blocks: int
    panels: int

    @property
    def heights(self) -> tuple[int, int]:
        """Rows of a tall and of a low tile, as far as they occur."""
        return self.rows + 1 if self.tall else self.rows, self.rows


def _cut(p: Product, tile: Tile) -> _Cut:
    tiles = ceil(p.m / tile.rows)
    row_blocks = ceil(tiles / tile.block_tiles)
    k_blocks = max(1, ceil(p.k / tile.kc))
    kc = ceil(ceil(p.k / k_blocks) / tile.lanes) * tile.lanes
    return _Cut(
        tiles=tiles,
        rows=p.m // tiles,
        tall=p.m % tiles,
        block_tiles=ceil(tiles / row_blocks),
        row_blocks=row_blocks,
        kc=kc,
        k_blocks=k_blocks,
        panels=ceil(p.n / tile.columns),
    )


GRAIN_FLOPS = 1 << 20  # about 10 us of one core; also bounds how often A is packed again


def extent(p: Product) -> int:
    """Work items: panels x blocks of rows x batch."""
    cut = _cut(p, tile_for(p.dtype))
    return p.batch[0] * p.batch[1] * cut.row_blocks * cut.panels


def compile_products(products: Sequence[Product]) -> tuple[list[CompiledProduct], Code]:
    """Machine code for products of non-empty results (names differ); the code lives as long as the second value."""
    module = Module(host())
    imports: dict[str, int] = {}
    text: list[str] = []
    for p in products:
        tile = tile_for(p.dtype)
        names, body = _write(module, p, tile)
        imports |= library.provide(tile, names)
        text.append(body)
    text += (f"declare void @{symbol}()" for symbol in imports)
    code = assemble(module.text(text), [p.name for p in products], host(), imports=imports)
    return [_compiled(p, code) for p in products], code


def _compiled(p: Product, code: Code) -> CompiledProduct:
    count = extent(p)
    flops = 2 * p.batch[0] * p.batch[1] * p.m * p.n * max(p.k, 1)
    return CompiledProduct(p.name, code.address(p.name), count, max(1, GRAIN_FLOPS * count // flops))


def _write(module: Module, p: Product, tile: Tile) -> tuple[list[str], str]:
    """The names of the library's functions that `p` calls, and the text of its entry point, descriptor and epilogue."""
    cut = _cut(p, tile)
    tall, low = cut.heights
    calls = dict(
        pack_a="pack_rows" if p.a.col == 1 or p.k == 1 else "pack_rows_any",
        pack_b=_panel_packer(p.b),
        micro_tall=f"micro{tall}",
        micro=f"micro{low}",
    )
    words = _descriptor(p, tile, cut) | {word: _address(tile.function(name)) for word, name in calls.items()}
    text = []
    for word, full in (("epilogue_full", True), ("epilogue_partial", False)):
        if (p.epilogue != NONE and p.n >= tile.columns) if full else p.n % tile.columns:
            text.append(write_epilogue(module, f"{p.name}.{word}", p, tile, full=full))
            words[word] = _address(f"{p.name}.{word}")
    table = ", ".join(f"i64 {words[name]}" for name in library.WORDS)
    text.append(
        f"@{p.name}.descriptor = internal constant [{len(library.WORDS)} x i64] [{table}]\n"
        f"define void @{p.name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{\n"
        f"  tail call void @{tile.function('driver')}(ptr %buffers, i64 %begin, i64 %end, ptr @{p.name}.descriptor)\n"
        "  ret void\n}\n"
    )
    return list(calls.values()), "".join(text)


def _address(symbol: str) -> str:
    return f"ptrtoint (ptr @{symbol} to i64)"


def _panel_packer(b: Matrix) -> str:
    if b.col == 1:
        return "pack_panel"
    return "pack_panel_transposed" if b.row == 1 else "pack_panel_any"


def _descriptor(p: Product, tile: Tile, cut: _Cut) -> dict[str, int | str]:
    size = tile.size
    return dict(
        n=p.n, k=p.k, kc=cut.kc, k_blocks=cut.k_blocks,
        panels=cut.panels, row_blocks=cut.row_blocks, block_tiles=cut.block_tiles,
        tiles=cut.tiles, rows=cut.rows, tall=cut.tall,
        a_row=p.a.row * size, a_k=p.a.col * size, b_k=p.b.row * size, b_n=p.b.col * size, c_row=p.c.row * size,
        inner_batch=p.batch[1],
        a_outer=p.a.outer * size, a_inner=p.a.inner * size,
        b_outer=p.b.outer * size, b_inner=p.b.inner * size,
        c_outer=p.c.outer * size, c_inner=p.c.inner * size,
        c_buffer=2 + len(p.epilogue.inputs),
        direct_b=int(p.b.col == 1 and cut.tiles <= DIRECT_TILES),
        epilogue_full=0, epilogue_partial=0,
    )  # fmt: skip


DIRECT_TILES = 2  # up to so many tiles, contiguous rows of B are read where they are: packing would not pay
