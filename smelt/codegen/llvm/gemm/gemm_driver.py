"""The driver of a product: packs and multiplies a thread's tiles and panels, parametrized by a descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from smelt.codegen.llvm.gemm.function_builder import FunctionText
from smelt.codegen.llvm.gemm.gemm_tiling import KC_BYTES, Tile

# The descriptor of a product: 64-bit words, by name. Strides in bytes. Tiles 0..tall-1 have `rows`+1 rows, the rest `rows`.
# Functions are addresses; `narrow` ones compute one vector of columns, for panels of at most one.
# `epilogue_full` is 0 if full panels, which the micro-kernel stores in C, need no epilogue.
WORDS = (
    "n", "k", "kc", "k_blocks", "panels", "row_blocks", "block_tiles", "tiles", "rows", "tall",
    "a_row", "a_k", "b_k", "b_n", "c_row",
    "inner_batch", "a_outer", "a_inner", "b_outer", "b_inner", "c_outer", "c_inner", "c_buffer",
    "direct_b", "pack_a", "pack_b", "micro_tall", "micro", "narrow_tall", "narrow",
    "epilogue_full", "epilogue_partial",
)  # fmt: skip
DRIVER_PARAMETERS = "ptr %buffers, i64 %begin, i64 %end, ptr %descriptor"
EPILOGUE_PARAMETERS = (
    "ptr %buffers, i64 %batch, i64 %row, i64 %rows, i64 %col, i64 %cols, ptr %source, i64 %step"
)


def driver(tile: Tile) -> str:
    """Compute work items [begin, end) of a product: as many panels of a block of rows at a time as are in the range."""
    t = FunctionText()
    panels, blocks = (_word(t, "%descriptor", w) for w in ("panels", "row_blocks"))
    scratch = _scratch(t, tile)
    t.do("br label %next")
    t.label("next")
    t.do("%item = phi i64 [%begin, %entry], [%item.next, %work]")
    t.do(f"br i1 {t.test('slt', '%item', '%end')}, label %work, label %end.all")
    t.label("work")
    first, rest = t.rem("%item", panels), t.div("%item", panels)
    count = t.least(t.sub(panels, first), t.sub("%end", "%item"))
    t.do(
        f"call void @{tile.function('block')}(ptr %buffers, ptr %descriptor, ptr {scratch}, i64 {t.div(rest, blocks)}, "
        f"i64 {t.rem(rest, blocks)}, i64 {first}, i64 {count})"
    )
    t.do(f"%item.next = add i64 %item, {count}")
    t.do("br label %next")
    t.label("end.all")
    return t.function(tile.function("driver"), DRIVER_PARAMETERS)


def _scratch(t: FunctionText, tile: Tile) -> str:
    """A thread's packed block of A, panel of B and strip of C, on its stack."""
    return t.let(f"alloca [{sum(_scratch_sizes(tile))} x i8], align 64")


def _scratch_sizes(tile: Tile) -> tuple[int, int, int]:
    rows = tile.rows * tile.block_tiles
    return rows * KC_BYTES, tile.kc * tile.row, rows * tile.row


def _word(t: FunctionText, descriptor: str, name: str) -> str:
    return t.load("i64", t.at(descriptor, 8 * WORDS.index(name)), 8)


BLOCK_PARAMETERS = "ptr %buffers, ptr %d, ptr %scratch, i64 %batch, i64 %block, i64 %panel, i64 %count"


def block(tile: Tile) -> str:
    """Compute panels [panel, panel + count) of one block of rows of one batch entry."""
    return _Block(tile).function()


class _Block:
    """Writes `block`: for each block of K, pack its rows, then pack and multiply each panel, tile by tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, t = tile, FunctionText()
        self.t = t
        self.d = {name: _word(t, "%d", name) for name in WORDS}
        self.call = {
            name: t.let(f"inttoptr i64 {self.d[name]} to ptr") for name in WORDS[WORDS.index("pack_a") :]
        }
        a_size, b_size, _ = _scratch_sizes(tile)
        self.packed_a, self.packed_b = "%scratch", t.at("%scratch", a_size)
        self.strip = t.at("%scratch", a_size + b_size)
        self.a, self.b, self.c = self.base(0, "a"), self.base(1, "b"), self.base(self.d["c_buffer"], "c")
        self.first_tile = t.mul("%block", self.d["block_tiles"])
        self.last_tile = t.least(t.add(self.first_tile, self.d["block_tiles"]), self.d["tiles"])
        self.first_row = self.row_of(self.first_tile)

    def function(self) -> str:
        t, d = self.t, self.d
        with t.loop(0, d["k_blocks"]) as kb:
            k0 = t.mul(kb, d["kc"])
            depth = t.least(d["kc"], t.sub(d["k"], k0))
            accumulate, last = t.test("ne", kb, 0), t.test("eq", t.add(kb, 1), d["k_blocks"])
            self.pack_rows(k0, depth)
            with t.loop("%panel", t.add("%panel", "%count")) as panel:
                self.panel(panel, k0, depth, accumulate, last)
        return t.function(self.tile.function("block"), BLOCK_PARAMETERS, "noinline")

    def base(self, buffer: str | int, which: str) -> str:
        """The address of the batch entry's operand."""
        t, d = self.t, self.d
        pointer = t.load("ptr", t.at("%buffers", t.mul(buffer, 8)), 8)
        outer, inner = t.div("%batch", d["inner_batch"]), t.rem("%batch", d["inner_batch"])
        return t.at(pointer, t.mul(outer, d[f"{which}_outer"]), t.mul(inner, d[f"{which}_inner"]))

    def row_of(self, tile_index: str) -> str:
        """The first row of a tile: tall tiles come first."""
        t, d = self.t, self.d
        return t.add(t.mul(tile_index, d["rows"]), t.least(tile_index, d["tall"]))

    @contextmanager
    def tiles(self, depth: str) -> Iterator[_TileAt]:
        """A loop over the tiles of the block."""
        t, d, tile = self.t, self.d, self.tile
        run_bytes = t.mul(t.div(t.add(depth, tile.lanes - 1), tile.lanes), tile.line)
        with t.loop(self.first_tile, self.last_tile) as tile_index:
            tall, row = t.test("slt", tile_index, d["tall"]), self.row_of(tile_index)
            height = t.add(d["rows"], t.let(f"zext i1 {tall} to i64"))
            packed = t.at(self.packed_a, t.mul(t.sub(row, self.first_row), run_bytes))
            yield _TileAt(tile_index, tall, row, height, packed)

    def pack_rows(self, k0: str, depth: str) -> None:
        t, d = self.t, self.d
        with self.tiles(depth) as at:
            source = t.at(self.a, t.mul(at.row, d["a_row"]), t.mul(k0, d["a_k"]))
            t.do(
                f"call void {self.call['pack_a']}(ptr {source}, ptr {at.packed}, i64 {at.height}, i64 {depth}, "
                f"i64 {d['a_row']}, i64 {d['a_k']})"
            )

    def panel(self, panel: str, k0: str, depth: str, accumulate: str, last: str) -> None:
        """Emit one panel of one block of K. `last`: it is the last block, so that the epilogue runs."""
        t, d, tile = self.t, self.d, self.tile
        col = t.mul(panel, tile.columns)
        cols = t.least(tile.columns, t.sub(d["n"], col))
        partial = t.test("slt", cols, tile.columns)
        right, ldb = self.packed_panel(col, cols, partial, k0, depth)
        ldc = t.choose(partial, tile.row, d["c_row"])
        in_c = t.at(self.c, t.mul(self.first_row, d["c_row"]), t.mul(col, tile.size))
        target = t.choose(partial, self.strip, in_c, "ptr")
        epilogue = t.choose(partial, d["epilogue_partial"], d["epilogue_full"])
        finish = t.let(f"and i1 {last}, {t.test('ne', epilogue, 0)}")
        epilogue = t.let(f"inttoptr i64 {epilogue} to ptr")
        narrow = t.test("sle", cols, tile.lanes)
        tall_kernel = t.choose(narrow, self.call["narrow_tall"], self.call["micro_tall"], "ptr")
        low_kernel = t.choose(narrow, self.call["narrow"], self.call["micro"], "ptr")
        ahead = _next_panel(t, tile, d, self.b, k0, panel, last, t.sub(self.last_tile, self.first_tile))
        with self.tiles(depth) as at:
            out = t.at(target, t.mul(t.sub(at.row, self.first_row), ldc))
            fetch = t.at(ahead.start, t.mul(t.sub(at.tile_index, self.first_tile), ahead.tile))
            kernel = t.choose(at.tall, tall_kernel, low_kernel, "ptr")
            t.do(
                f"call void {kernel}(ptr {at.packed}, ptr {right}, ptr {out}, i64 {depth}, i64 {ldb}, i64 {ldc}, "
                f"i1 {accumulate}, ptr {fetch}, i64 {ahead.rows}, i64 {ahead.step}, i64 {ahead.run})"
            )
            with t.when(finish):
                t.do(
                    f"call void {epilogue}(ptr %buffers, i64 %batch, i64 {at.row}, i64 {at.height}, i64 {col}, "
                    f"i64 {cols}, ptr {out}, i64 {ldc})"
                )

    def packed_panel(self, col: str, cols: str, partial: str, k0: str, depth: str) -> tuple[str, str]:
        """The panel of B to multiply with, and its row stride: packed, or in the operand's memory."""
        t, d = self.t, self.d
        source = t.at(self.b, t.mul(col, d["b_n"]), t.mul(k0, d["b_k"]))
        direct = t.let(f"and i1 {t.test('ne', d['direct_b'], 0)}, {t.let(f'xor i1 {partial}, true')}")
        with t.when(t.let(f"xor i1 {direct}, true")):
            t.do(
                f"call void {self.call['pack_b']}(ptr {source}, ptr {self.packed_b}, i64 {cols}, i64 {depth}, "
                f"i64 {d['b_n']}, i64 {d['b_k']})"
            )
        return t.choose(direct, source, self.packed_b, "ptr"), t.choose(direct, d["b_k"], self.tile.row)


@dataclass(frozen=True)
class _TileAt:
    """The current tile of a loop: its index, whether it is tall, its first row, its height, its packed copy."""

    tile_index: str
    tall: str
    row: str
    height: str
    packed: str


@dataclass(frozen=True)
class _Ahead:
    """What the tiles of a panel prefetch: per run of a tile, `rows` rows, `step` apart; `run` and `tile` are the
    distances from run to run and from tile to tile."""

    start: str
    rows: str
    step: str
    run: str
    tile: str


def _next_panel(
    t: FunctionText, tile: Tile, d: dict[str, str], b: str, k0: str, panel: str, last: str, tiles: str
) -> _Ahead:
    """The panel after this one, distributed over `tiles` tiles; after the last panel of a block of K, the first of the
    next block. As W[N, K]: each tile fetches some columns (rows of W), each run one line of them. As B[K, N]: each run
    fetches some rows, a panel wide."""
    following = t.add(panel, 1)
    wraps = t.test("eq", following, t.add("%panel", "%count"))
    column = t.mul(t.choose(wraps, "%panel", following), tile.columns)
    k = t.choose(wraps, t.add(k0, d["kc"]), k0)
    by_rows = t.test("eq", d["b_n"], tile.size)
    step = t.choose(by_rows, d["b_k"], d["b_n"])
    share = t.div(t.add(t.choose(by_rows, tile.lanes, tile.columns), t.sub(tiles, 1)), tiles)
    distance = t.mul(share, step)
    run = t.choose(by_rows, distance, tile.line)
    runs = t.div(d["kc"], tile.lanes)
    over = t.let(f"and i1 {wraps}, {last}")
    return _Ahead(
        start=t.at(b, t.mul(column, d["b_n"]), t.mul(k, d["b_k"])),
        rows=t.choose(over, 0, share),
        step=step,
        run=run,
        tile=t.choose(by_rows, t.mul(distance, runs), distance),
    )
