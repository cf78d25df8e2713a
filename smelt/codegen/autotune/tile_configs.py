"""Tiles to try for products and attention. The driver refuses those that exceed shared memory."""

from __future__ import annotations

from smelt.codegen.triton.attention_kernel import TiledAttention, power
from smelt.codegen.triton.block_gemm import Operand, Tile
from smelt.codegen.triton.gemm_kernel import TiledProduct, tiles_of

MOST = 10  # tiles that are tried for a product

# rows, columns, steps (of 16 bits), warps, stages; those that are mostly best first
TILES: tuple[tuple[int, int, int, int, int], ...] = (
    (128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (256, 128, 64, 8, 3), (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 256, 64, 4, 4), (128, 128, 32, 4, 4), (64, 64, 128, 4, 3),
    (128, 32, 64, 4, 4), (64, 32, 64, 4, 5), (32, 128, 64, 4, 5), (32, 64, 128, 4, 4), (16, 64, 128, 4, 4),
    (16, 128, 64, 4, 5), (16, 32, 256, 4, 3), (16, 32, 128, 4, 5), (16, 16, 256, 4, 4),
)  # fmt: skip


# queries, keys, warps, stages; those that are mostly best first
ATTENTION_TILES: tuple[tuple[int, int, int, int], ...] = (
    (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 128, 4, 2), (128, 32, 4, 3),
    (64, 32, 4, 3), (64, 64, 8, 2), (32, 64, 4, 3), (16, 128, 4, 3), (16, 64, 4, 3), (16, 32, 4, 2),
)  # fmt: skip


def tiles(p: TiledProduct, workers: int) -> list[Tile]:
    """Tiles that suit the product's sizes, for a GPU of `workers` multiprocessors."""
    width = max(map(_itemsize, (p.a, p.b))) // 2
    fitting = []
    for x, r, k, warps, stages in TILES:
        k = max(16, k // width)
        if x <= power(p.m) and r <= power(p.n) and k <= power(p.k):
            fitting.append(Tile(x, r, k, warps, stages))
    if not fitting:
        fitting.append(Tile(min(power(p.m), 64), min(power(p.n), 64), min(power(p.k), 32), 4, 3))
    return sorted(fitting, key=lambda t: _idle(p, t, workers))[:MOST]


def attention_tiles(a: TiledAttention, workers: int) -> list[Tile]:
    """Like `tiles`, for attention: few queries in a block if multiprocessors would otherwise be idle."""
    found = []
    for x, r, warps, stages in ATTENTION_TILES:
        programs = a.batch * -(-a.queries // x)
        useful = x >= 64 or x >= power(a.queries) or 2 * programs <= workers
        if useful and x <= power(a.queries) and r <= power(a.keys):
            found.append(Tile(x, r, power(a.head), warps, stages))
    if not found:
        found.append(Tile(min(power(a.queries), 64), min(power(a.keys), 32), power(a.head), 4, 2))
    return found[:MOST]


def _idle(p: TiledProduct, t: Tile, workers: int) -> int:
    """The number of multiprocessors without a tile, if that is more than half of them."""
    rows, columns = tiles_of(p, t)
    idle = workers - p.batch * rows * columns
    return idle if idle > workers // 2 else 0


def _itemsize(operand: Operand) -> int:
    """Bytes of an element in shared memory, where it has the dtype of its load."""
    return max([b.dtype.itemsize for b in operand.inputs] + [operand.value.dtype.itemsize])
