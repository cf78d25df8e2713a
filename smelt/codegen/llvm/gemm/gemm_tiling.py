"""The tiling of a matrix product: the host's register block, and the blocks of rows, columns and K around it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from smelt.codegen.llvm.host_cpu import host, processor
from smelt.shapes.expr import Size, ceil_div, static

# packed block of A: leaves most of an L2 of 1 MiB to B and C, and is most of 470 KiB of stack
A_BYTES = 384 * 1024
KC_BYTES = 1024  # depth of a block of K, as bytes of one row


@dataclass(frozen=True)
class Tile:
    """The register block: `rows` x (`vectors` of `lanes` elements). Uses rows * vectors + vectors + 1 registers."""

    dtype: torch.dtype
    lanes: int
    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        """The columns of C that one tile covers."""
        return self.lanes * self.vectors

    @property
    def scalar(self) -> str:
        """The LLVM type of an element."""
        return {torch.float32: "float", torch.float64: "double"}[self.dtype]

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def vector(self) -> str:
        """The LLVM type of a register."""
        return f"<{self.lanes} x {self.scalar}>"

    @property
    def mask(self) -> str:
        """The LLVM type of a register's mask."""
        return f"<{self.lanes} x i1>"

    @property
    def line(self) -> int:
        """Bytes of one vector."""
        return self.lanes * self.size

    @property
    def row(self) -> int:
        """Bytes of one row of a packed panel of B."""
        return self.columns * self.size

    @property
    def kc(self) -> int:
        """The maximum depth of a block of K."""
        return KC_BYTES // self.size

    @property
    def block_tiles(self) -> int:
        """The maximum number of tiles in a block of rows."""
        return max(1, A_BYTES // (self.rows * KC_BYTES))

    @property
    def suffix(self) -> str:
        """The dtype's suffix in function names."""
        return {torch.float32: "f32", torch.float64: "f64"}[self.dtype]

    def function(self, name: str) -> str:
        """The symbol of a library function."""
        return f"smelt_gemm_{self.suffix}_{name}"


# CPU feature -> (bytes of a vector, rows, vectors): the largest block that fits in the registers
_BLOCKS = {"avx512f": (64, 14, 2), "fma": (32, 6, 2), "neon": (16, 8, 3), "": (16, 5, 2)}


@cache
def tile_for(dtype: torch.dtype) -> Tile:
    """The host's register block for float32 or float64."""
    features = processor(host()).needs
    width, rows, vectors = next(block for name, block in _BLOCKS.items() if not name or name in features)
    return Tile(dtype, width // dtype.itemsize, rows, vectors)


@dataclass(frozen=True)
class Cut:
    """The tiles, blocks and panels of a product."""

    tiles: Size
    rows: Size  # of a low tile
    tall: Size  # tiles of one row more, which come first
    block_tiles: Size
    row_blocks: Size
    kc: Size
    k_blocks: Size
    panels: int

    @property
    def heights(self) -> tuple[Size, Size]:
        """Rows of a tall and of a low tile, if they occur."""
        return self.rows + 1 if self.tall else self.rows, self.rows


def cut(m: Size, n: int, k: Size, tile: Tile) -> Cut:
    """The tiling of a product. Rows are distributed evenly over tiles, so that at most two heights occur; so is K over
    its blocks, if it is a positive constant."""
    tiles = ceil_div(m, tile.rows)
    row_blocks = ceil_div(tiles, tile.block_tiles)
    k_blocks = 1 if k == 0 else ceil_div(k, tile.kc)
    kc = ceil_div(ceil_div(k, k_blocks), tile.lanes) * tile.lanes
    return Cut(
        tiles=tiles,
        rows=m // tiles,
        tall=m % tiles,
        block_tiles=ceil_div(tiles, row_blocks),
        row_blocks=row_blocks,
        kc=kc,
        k_blocks=k_blocks,
        panels=-(-n // tile.columns),
    )


GRAIN_FLOPS = 1 << 20  # about 10 us of one core; also bounds how often A is packed again


def extent(m: int, n: int, k: int, batch: int, dtype: torch.dtype) -> int:
    """The number of work items: panels x blocks of rows x batch."""
    tiling = cut(m, n, k, tile_for(dtype))
    return static(batch * tiling.row_blocks * tiling.panels)
