"""The shared part of generated matrix products: micro-kernels, packers and the driver, compiled once per process.

Everything here is parametrised at run time and written as LLVM IR text. `gemm.py` explains how a product is cut.
Strides and leading dimensions are in bytes throughout. Layouts:

* packed tile of A, height h: [ceil(k / lanes)][h][lanes]; the micro-kernel broadcasts single elements from it;
* packed panel of B: [k][NR].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
import torch

from smelt.codegen.llvm.module import Code, assemble
from smelt.codegen.llvm.target import host
from smelt.runtime.forks import LIBRARY, hold_at_fork

A_BYTES = (
    384 * 1024
)  # packed block of A: leaves most of an L2 of 1 MiB to B and C, and is most of 470 KiB of stack
KC_BYTES = 1024  # depth of a block of K, as bytes of one row


@dataclass(frozen=True)
class Tile:
    """The register block: `rows` x (`vectors` of `lanes` elements). rows * vectors + vectors + 1 registers are used."""

    dtype: torch.dtype
    lanes: int
    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def scalar(self) -> str:
        return {torch.float32: "float", torch.float64: "double"}[self.dtype]

    @property
    def size(self) -> int:
        return self.dtype.itemsize

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.scalar}>"

    @property
    def mask(self) -> str:
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
        """Deepest block of K."""
        return KC_BYTES // self.size

    @property
    def block_tiles(self) -> int:
        """Most tiles in a block of rows."""
        return max(1, A_BYTES // (self.rows * KC_BYTES))

    @property
    def suffix(self) -> str:
        return {torch.float32: "f32", torch.float64: "f64"}[self.dtype]

    def function(self, name: str) -> str:
        return f"smelt_gemm_{self.suffix}_{name}"


# CPU feature -> (bytes of a vector, rows, vectors): the largest block that fits in the registers
_BLOCKS = {"avx512f": (64, 14, 2), "fma": (32, 6, 2), "neon": (16, 8, 3), "": (16, 5, 2)}


@cache
def tile_for(dtype: torch.dtype) -> Tile:
    """The host's register block for float32 or float64."""
    features = llvm.get_host_cpu_features()
    width, rows, vectors = next(block for name, block in _BLOCKS.items() if not name or features.get(name))
    return Tile(dtype, width // dtype.itemsize, rows, vectors)


# ---- IR text ---------------------------------------------------------------------------------------------------


class Text:
    """The body of one function under construction. Values are names such as `%7`; blocks are opened by `label`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self.block = ""
        self.label("entry")

    def name(self, stem: str = "v") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def let(self, expression: str) -> str:
        value = f"%{self.name()}"
        self.lines.append(f"  {value} = {expression}")
        return value

    def do(self, statement: str) -> None:
        self.lines.append(f"  {statement}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    # integer and pointer arithmetic; operands are names or Python integers
    def add(self, a: str | int, b: str | int) -> str:
        return self.let(f"add i64 {a}, {b}")

    def sub(self, a: str | int, b: str | int) -> str:
        return self.let(f"sub i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str:
        return self.let(f"mul i64 {a}, {b}")

    def div(self, a: str | int, b: str | int) -> str:
        return self.let(f"udiv i64 {a}, {b}")

    def rem(self, a: str | int, b: str | int) -> str:
        return self.let(f"urem i64 {a}, {b}")

    def test(self, predicate: str, a: str | int, b: str | int) -> str:
        return self.let(f"icmp {predicate} i64 {a}, {b}")

    def choose(self, condition: str, a: str | int, b: str | int, type: str = "i64") -> str:
        return self.let(f"select i1 {condition}, {type} {a}, {type} {b}")

    def least(self, a: str | int, b: str | int) -> str:
        return self.choose(self.test("slt", a, b), a, b)

    def at(self, pointer: str, *offsets: str | int) -> str:
        """`pointer` moved by the sum of byte offsets."""
        for offset in offsets:
            pointer = self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        return pointer

    def load(self, type: str, pointer: str, align: int) -> str:
        return self.let(f"load {type}, ptr {pointer}, align {align}")

    def store(self, type: str, value: str, pointer: str, align: int) -> None:
        self.do(f"store {type} {value}, ptr {pointer}, align {align}")

    @contextmanager
    def loop(self, begin: str | int, end: str | int, step: str | int = 1) -> Iterator[str]:
        """`for i in range(begin, end, step)`; yields i. The body may open blocks of its own."""
        head, body, latch, done = (self.name(stem) for stem in ("head", "body", "latch", "done"))
        index, following, before = f"%{self.name('i')}", f"%{self.name('i')}", self.block
        self.do(f"br label %{head}")
        self.label(head)
        self.do(f"{index} = phi i64 [{begin}, %{before}], [{following}, %{latch}]")
        self.do(f"br i1 {self.test('slt', index, end)}, label %{body}, label %{done}")
        self.label(body)
        yield index
        self.do(f"br label %{latch}")
        self.label(latch)
        self.do(f"{following} = add i64 {index}, {step}")
        self.do(f"br label %{head}")
        self.label(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        then, done = self.name("then"), self.name("done")
        self.do(f"br i1 {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.do(f"br label %{done}")
        self.label(done)

    def function(self, name: str, parameters: str, attributes: str = "") -> str:
        return (
            f"define void @{name}({parameters}) nounwind {attributes} {{\n"
            + "\n".join(self.lines)
            + "\n  ret void\n}\n"
        )


def splat(t: Text, tile: Tile, scalar: str) -> str:
    one = t.let(f"insertelement {tile.vector} poison, {tile.scalar} {scalar}, i64 0")
    return t.let(
        f"shufflevector {tile.vector} {one}, {tile.vector} poison, <{tile.lanes} x i32> zeroinitializer"
    )


def first_lanes(t: Text, tile: Tile, count: str) -> str:
    """The mask of lanes below `count` (any i64; negative: none)."""
    one = t.let(f"insertelement <{tile.lanes} x i64> poison, i64 {count}, i64 0")
    zeros = f"<{tile.lanes} x i32> zeroinitializer"
    all_ = t.let(f"shufflevector <{tile.lanes} x i64> {one}, <{tile.lanes} x i64> poison, {zeros}")
    lanes = ", ".join(f"i64 {i}" for i in range(tile.lanes))
    return t.let(f"icmp slt <{tile.lanes} x i64> <{lanes}>, {all_}")


def masked_load(t: Text, tile: Tile, pointer: str, mask: str) -> str:
    return t.let(
        f"call {tile.vector} @llvm.masked.load.{_overload(tile)}.p0(ptr align {tile.size} {pointer}, {tile.mask} {mask}, "
        f"{tile.vector} zeroinitializer)"
    )


def prefetch(t: Text, pointer: str) -> None:
    """Into L2 and beyond: what is fetched is read once, some thousand cycles later. Never faults."""
    t.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def _overload(tile: Tile) -> str:
    return f"v{tile.lanes}f{tile.size * 8}"


def declarations(tile: Tile) -> str:
    v, name = tile.vector, _overload(tile)
    return (
        f"declare {v} @llvm.fmuladd.{name}({v}, {v}, {v})\n"
        f"declare {v} @llvm.masked.load.{name}.p0(ptr, {tile.mask}, {v})\n"
        f"declare void @llvm.masked.store.{name}.p0({v}, ptr, {tile.mask})\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
    )


# ---- micro-kernel ----------------------------------------------------------------------------------------------

MICRO_PARAMETERS = (
    "ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %k, i64 %ldb, i64 %ldc, i1 %accumulate, "
    "ptr %next, i64 %next_rows, i64 %next_step, i64 %next_run"
)


def micro(tile: Tile, rows: int, vectors: int) -> str:
    """c[rows][vectors] (+)= a @ b for one packed tile of A; `ldb` is the distance of rows of b (packed or not). In every
    run, `next_rows` rows of memory at `next`, `next_step` apart, are prefetched, and `next` moves by `next_run`."""
    t = Text()
    v, names = tile.vector, [(i, j) for i in range(rows) for j in range(vectors)]
    t.do("br label %outer")
    t.label("outer")  # one run of `lanes` elements of each row of A
    for stem, type, start in (
        ("left", "i64", "%k"),
        ("ao", "ptr", "%a"),
        ("bo", "ptr", "%b"),
        ("no", "ptr", "%next"),
    ):
        t.do(f"%{stem} = phi {type} [{start}, %entry], [%{stem}.next, %again]")
    for i, j in names:
        t.do(f"%o{i}_{j} = phi {v} [zeroinitializer, %entry], [%i{i}_{j}, %again]")
    run = t.least("%left", tile.lanes)
    t.do(f"br i1 {t.test('sgt', '%left', 0)}, label %inner, label %finish")
    t.label("inner")  # one k
    t.do("%kk = phi i64 [0, %outer], [%kk.next, %inner]")
    t.do("%bi = phi ptr [%bo, %outer], [%bi.next, %inner]")
    for i, j in names:
        t.do(f"%i{i}_{j}.in = phi {v} [%o{i}_{j}, %outer], [%i{i}_{j}, %inner]")
    bs = [t.load(v, t.at("%bi", j * tile.line), tile.size) for j in range(vectors)]
    element = t.let(f"getelementptr {tile.scalar}, ptr %ao, i64 %kk")
    for i in range(rows):
        a = splat(t, tile, t.load(tile.scalar, t.at(element, i * tile.line), tile.size))
        for j in range(vectors):
            t.do(
                f"%i{i}_{j} = call {v} @llvm.fmuladd.{_overload(tile)}({v} {a}, {v} {bs[j]}, {v} %i{i}_{j}.in)"
            )
    t.do("%kk.next = add i64 %kk, 1")
    t.do("%bi.next = getelementptr i8, ptr %bi, i64 %ldb")
    t.do(f"br i1 {t.test('slt', '%kk.next', run)}, label %inner, label %turn")
    t.label("turn")
    with t.loop(0, "%next_rows") as row:
        place = t.at("%no", t.mul(row, "%next_step"))
        for j in range(vectors):
            prefetch(t, t.at(place, j * tile.line))
    t.do("br label %again")
    t.label("again")
    t.do("%no.next = getelementptr i8, ptr %no, i64 %next_run")
    t.do(f"%left.next = sub i64 %left, {run}")
    t.do(f"%ao.next = getelementptr i8, ptr %ao, i64 {rows * tile.line}")
    t.do("%bo.next = getelementptr i8, ptr %bi, i64 %ldb")
    t.do("br label %outer")
    t.label("finish")
    t.do("br i1 %accumulate, label %more, label %fresh")
    for block in ("more", "fresh"):
        t.label(block)
        for i in range(rows):
            line = t.at("%c", t.mul("%ldc", i))
            for j in range(vectors):
                place, value = t.at(line, j * tile.line), f"%o{i}_{j}"
                if block == "more":
                    value = t.let(f"fadd {v} {value}, {t.load(v, place, tile.size)}")
                t.store(v, value, place, tile.size)
        t.do("br label %end")
    t.label("end")
    return t.function(tile.function(f"micro{rows}x{vectors}"), MICRO_PARAMETERS)


# ---- packing ---------------------------------------------------------------------------------------------------

PACK_PARAMETERS = "ptr noalias %from, ptr noalias %to, i64 %count, i64 %k, i64 %step, i64 %kstep"


def pack_rows(tile: Tile) -> str:
    """A tile of A whose k is contiguous: `count` rows at distance `step`, cut into runs. Lanes past k are zero."""
    t = Text()
    whole = t.mul(t.div("%k", tile.lanes), tile.lanes)
    block = t.mul("%count", tile.line)
    for full in (True, False):
        with t.loop(0 if full else whole, whole if full else "%k", tile.lanes) as k:
            source = t.at("%from", t.mul(k, tile.size))
            to = t.at("%to", t.mul(t.div(k, tile.lanes), block))
            mask = "" if full else first_lanes(t, tile, t.sub("%k", k))
            with t.loop(0, "%count") as i:
                place = t.at(source, t.mul(i, "%step"))
                value = t.load(tile.vector, place, tile.size) if full else masked_load(t, tile, place, mask)
                t.store(tile.vector, value, t.at(to, t.mul(i, tile.line)), tile.size)
    return t.function(tile.function("pack_rows"), PACK_PARAMETERS)


def pack_rows_any(tile: Tile) -> str:
    """The same for any strides, one element at a time."""
    t = Text()
    with t.loop(0, "%k") as k:
        source = t.at("%from", t.mul(k, "%kstep"))
        run, lane = t.div(k, tile.lanes), t.rem(k, tile.lanes)
        to = t.at("%to", t.mul(run, t.mul("%count", tile.line)), t.mul(lane, tile.size))
        with t.loop(0, "%count") as i:
            value = t.load(tile.scalar, t.at(source, t.mul(i, "%step")), tile.size)
            t.store(tile.scalar, value, t.at(to, t.mul(i, tile.line)), tile.size)
    return t.function(tile.function("pack_rows_any"), PACK_PARAMETERS)


def pack_rows_transposed(tile: Tile) -> str:
    """The same where the rows are contiguous in A's transpose: `count` columns of k lines at distance `kstep`, by blocks
    of lanes x lanes. The last block of a run spills its unused lines into the next run, which is written later (the
    scratch goes on behind the packed A); what is left of k is packed one by one."""
    t = Text()
    whole = t.mul(t.div("%k", tile.lanes), tile.lanes)
    block = t.mul("%count", tile.line)
    with t.loop(0, whole, tile.lanes) as k, t.loop(0, "%count", tile.lanes) as first:
        mask = first_lanes(t, tile, t.sub("%count", first))
        source = t.at("%from", t.mul(first, tile.size))
        lines = [
            masked_load(t, tile, t.at(source, t.mul(t.add(k, i), "%kstep")), mask) for i in range(tile.lanes)
        ]
        to = t.at("%to", t.mul(t.div(k, tile.lanes), block), t.mul(first, tile.line))
        for i, row in enumerate(transpose(t, tile, lines)):
            t.store(tile.vector, row, t.at(to, i * tile.line), tile.size)
    rest_from, rest_to = (
        t.at("%from", t.mul(whole, "%kstep")),
        t.at("%to", t.mul(t.div(whole, tile.lanes), block)),
    )
    rest = t.sub("%k", whole)
    t.do(
        f"call void @{tile.function('pack_rows_any')}(ptr {rest_from}, ptr {rest_to}, i64 %count, i64 {rest}, i64 %step, "
        "i64 %kstep)"
    )
    return t.function(tile.function("pack_rows_transposed"), PACK_PARAMETERS)


def pack_panel(tile: Tile) -> str:
    """A panel of B whose columns are contiguous: k rows of `count` elements at distance `kstep`."""
    t = Text()
    masks = [first_lanes(t, tile, t.sub("%count", j * tile.lanes)) for j in range(tile.vectors)]
    whole = t.test("eq", "%count", tile.columns)
    for full in (True, False):
        condition = whole if full else t.let(f"xor i1 {whole}, true")
        with t.when(condition), t.loop(0, "%k") as k:
            source, to = t.at("%from", t.mul(k, "%kstep")), t.at("%to", t.mul(k, tile.row))
            for j, mask in enumerate(masks):
                place = t.at(source, j * tile.line)
                value = t.load(tile.vector, place, tile.size) if full else masked_load(t, tile, place, mask)
                t.store(tile.vector, value, t.at(to, j * tile.line), tile.size)
    return t.function(tile.function("pack_panel"), PACK_PARAMETERS)


def pack_panel_any(tile: Tile) -> str:
    """A panel of B of any strides, one element at a time."""
    t = Text()
    with t.loop(0, "%k") as k:
        source, to = t.at("%from", t.mul(k, "%kstep")), t.at("%to", t.mul(k, tile.row))
        with t.loop(0, "%count") as i:
            value = t.load(tile.scalar, t.at(source, t.mul(i, "%step")), tile.size)
            t.store(tile.scalar, value, t.at(to, t.mul(i, tile.size)), tile.size)
    return t.function(tile.function("pack_panel_any"), PACK_PARAMETERS)


def pack_panel_transposed(tile: Tile) -> str:
    """A panel of B given as W[N, K] with k contiguous: `count` rows of W at distance `step`, transposed by blocks of
    lanes x lanes, what is left of k one by one. Columns past `count` repeat the last row of W: their products land
    outside C."""
    t = Text()
    whole = t.mul(t.div("%k", tile.lanes), tile.lanes)
    last = t.sub("%count", 1)
    with t.loop(0, tile.columns, tile.lanes) as j:
        rows = [t.at("%from", t.mul(t.least(t.add(j, i), last), "%step")) for i in range(tile.lanes)]
        column = t.at("%to", t.mul(j, tile.size))
        with t.loop(0, whole, tile.lanes) as k:
            offset = t.mul(k, tile.size)
            block = [t.load(tile.vector, t.at(row, offset), tile.size) for row in rows]
            to = t.at(column, t.mul(k, tile.row))
            for i, line in enumerate(transpose(t, tile, block)):
                t.store(tile.vector, line, t.at(to, i * tile.row), tile.size)
    tail_from, tail_to = t.at("%from", t.mul(whole, tile.size)), t.at("%to", t.mul(whole, tile.row))
    t.do(
        f"call void @{tile.function('pack_panel_any')}(ptr {tail_from}, ptr {tail_to}, i64 %count, "
        f"i64 {t.sub('%k', whole)}, i64 %step, i64 %kstep)"
    )
    return t.function(tile.function("pack_panel_transposed"), PACK_PARAMETERS)


def transpose(t: Text, tile: Tile, rows: list[str]) -> list[str]:
    """A square block in registers: first inside 128-bit groups by interleaving, then the groups themselves. These are
    the shuffles that x86 and Arm have as single instructions."""
    group = 16 // tile.size  # elements of 128 bits
    groups = tile.lanes // group
    parts = [_interleave(t, tile, rows[g * group : (g + 1) * group], group) for g in range(groups)]
    columns: list[str] = [""] * tile.lanes
    for c in range(group):
        for g, column in enumerate(_exchange(t, tile, [part[c] for part in parts], group)):
            columns[g * group + c] = column
    return columns


def _shuffle(t: Text, tile: Tile, a: str, b: str, pick: list[int]) -> str:
    lanes = ", ".join(f"i32 {p}" for p in pick)
    return t.let(f"shufflevector {tile.vector} {a}, {tile.vector} {b}, <{tile.lanes} x i32> <{lanes}>")


def _interleave(t: Text, tile: Tile, rows: list[str], group: int) -> list[str]:
    """Inside each 128-bit group: rows r of columns c become rows c of columns r."""

    def unpack(a: str, b: str, width: int, high: int) -> str:
        """Alternate pieces of `width` elements from one half of each group of a and b."""
        half = [
            g + high * group // 2 + p
            for g in range(0, tile.lanes, group)
            for p in range(0, group // 2, width)
        ]
        return _shuffle(
            t, tile, a, b, [s + e for p in half for s in (p, p + tile.lanes) for e in range(width)]
        )

    if group == 1:
        return rows
    if group == 2:
        return [unpack(rows[0], rows[1], 1, high) for high in (0, 1)]
    low, high = ([unpack(rows[i], rows[i + 1], 1, h) for i in (0, 2)] for h in (0, 1))
    return [unpack(pair[0], pair[1], 2, h) for pair in (low, high) for h in (0, 1)]


def _exchange(t: Text, tile: Tile, vectors: list[str], group: int) -> list[str]:
    """The transpose of a square of 128-bit groups (1, 2 or 4 of them), even and odd groups at a time."""

    def pick(a: str, b: str, odd: int) -> str:
        chosen = range(odd, tile.lanes // group, 2)
        return _shuffle(
            t, tile, a, b, [s + g * group + e for s in (0, tile.lanes) for g in chosen for e in range(group)]
        )

    if len(vectors) == 1:
        return vectors
    if len(vectors) == 2:
        return [pick(vectors[0], vectors[1], odd) for odd in (0, 1)]
    even, odd = ([pick(vectors[i], vectors[i + 1], o) for i in (0, 2)] for o in (0, 1))
    return [pick(pair[0], pair[1], o) for o in (0, 1) for pair in (even, odd)]


# ---- driver ----------------------------------------------------------------------------------------------------

# The descriptor of a product: 64-bit words, by name. Strides in bytes. Tiles 0..tall-1 have `rows`+1 rows, the rest `rows`.
# Functions are addresses; `narrow` ones compute one vector of columns, for panels that have no more.
# `epilogue_full` is 0 where a full panel, which the micro-kernel leaves in C, is finished.
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
    """Work items [begin, end) of a product: see `_Driver`."""
    t = Text()
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


def _scratch(t: Text, tile: Tile) -> str:
    """A thread's packed block of A, panel of B and strip of C, on its stack."""
    return t.let(f"alloca [{sum(_scratch_sizes(tile))} x i8], align 64")


def _scratch_sizes(tile: Tile) -> tuple[int, int, int]:
    rows = tile.rows * tile.block_tiles
    return rows * KC_BYTES, tile.kc * tile.row, rows * tile.row


def _word(t: Text, descriptor: str, name: str) -> str:
    return t.load("i64", t.at(descriptor, 8 * WORDS.index(name)), 8)


BLOCK_PARAMETERS = "ptr %buffers, ptr %d, ptr %scratch, i64 %batch, i64 %block, i64 %panel, i64 %count"


def block(tile: Tile) -> str:
    """Panels [panel, panel + count) of one block of rows of one batch entry."""
    t = Text()
    d = {name: _word(t, "%d", name) for name in WORDS}
    call = {name: t.let(f"inttoptr i64 {d[name]} to ptr") for name in WORDS[WORDS.index("pack_a") :]}
    a_size, b_size, _ = _scratch_sizes(tile)
    packed_a, packed_b, strip = "%scratch", t.at("%scratch", a_size), t.at("%scratch", a_size + b_size)

    def base(buffer: str | int, which: str) -> str:
        pointer = t.load("ptr", t.at("%buffers", t.mul(buffer, 8)), 8)
        outer, inner = t.div("%batch", d["inner_batch"]), t.rem("%batch", d["inner_batch"])
        return t.at(pointer, t.mul(outer, d[f"{which}_outer"]), t.mul(inner, d[f"{which}_inner"]))

    a, b, c = base(0, "a"), base(1, "b"), base(d["c_buffer"], "c")
    first_tile = t.mul("%block", d["block_tiles"])
    last_tile = t.least(t.add(first_tile, d["block_tiles"]), d["tiles"])

    def row_of(number: str) -> str:
        return t.add(t.mul(number, d["rows"]), t.least(number, d["tall"]))

    first_row = row_of(first_tile)

    @contextmanager
    def tiles(depth: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Yields (a tile's number, whether it is tall, its first row, its height, its packed copy)."""
        run_bytes = t.mul(t.div(t.add(depth, tile.lanes - 1), tile.lanes), tile.line)
        with t.loop(first_tile, last_tile) as number:
            tall, row = t.test("slt", number, d["tall"]), row_of(number)
            height = t.add(d["rows"], t.let(f"zext i1 {tall} to i64"))
            yield number, tall, row, height, t.at(packed_a, t.mul(t.sub(row, first_row), run_bytes))

    with t.loop(0, d["k_blocks"]) as kb:
        k0 = t.mul(kb, d["kc"])
        depth = t.least(d["kc"], t.sub(d["k"], k0))
        accumulate, last = t.test("ne", kb, 0), t.test("eq", t.add(kb, 1), d["k_blocks"])
        with tiles(depth) as (_, _, row, height, packed):
            source = t.at(a, t.mul(row, d["a_row"]), t.mul(k0, d["a_k"]))
            t.do(
                f"call void {call['pack_a']}(ptr {source}, ptr {packed}, i64 {height}, i64 {depth}, i64 {d['a_row']}, "
                f"i64 {d['a_k']})"
            )
        with t.loop("%panel", t.add("%panel", "%count")) as panel:
            col = t.mul(panel, tile.columns)
            cols = t.least(tile.columns, t.sub(d["n"], col))
            partial = t.test("slt", cols, tile.columns)
            source = t.at(b, t.mul(col, d["b_n"]), t.mul(k0, d["b_k"]))
            direct = t.let(f"and i1 {t.test('ne', d['direct_b'], 0)}, {t.let(f'xor i1 {partial}, true')}")
            with t.when(t.let(f"xor i1 {direct}, true")):
                t.do(
                    f"call void {call['pack_b']}(ptr {source}, ptr {packed_b}, i64 {cols}, i64 {depth}, i64 {d['b_n']}, "
                    f"i64 {d['b_k']})"
                )
            right = t.choose(direct, source, packed_b, "ptr")
            ldb = t.choose(direct, d["b_k"], tile.row)
            ldc = t.choose(partial, tile.row, d["c_row"])
            in_c = t.at(c, t.mul(first_row, d["c_row"]), t.mul(col, tile.size))
            target = t.choose(partial, strip, in_c, "ptr")
            epilogue = t.choose(partial, d["epilogue_partial"], d["epilogue_full"])
            finish = t.let(f"and i1 {last}, {t.test('ne', epilogue, 0)}")
            epilogue = t.let(f"inttoptr i64 {epilogue} to ptr")
            narrow = t.test("sle", cols, tile.lanes)
            tall_kernel = t.choose(narrow, call["narrow_tall"], call["micro_tall"], "ptr")
            low_kernel = t.choose(narrow, call["narrow"], call["micro"], "ptr")
            ahead = _next_panel(t, tile, d, b, k0, panel, last, t.sub(last_tile, first_tile))
            with tiles(depth) as (number, tall, row, height, packed):
                out = t.at(target, t.mul(t.sub(row, first_row), ldc))
                fetch = t.at(ahead.start, t.mul(t.sub(number, first_tile), ahead.tile))
                kernel = t.choose(tall, tall_kernel, low_kernel, "ptr")
                t.do(
                    f"call void {kernel}(ptr {packed}, ptr {right}, ptr {out}, i64 {depth}, i64 {ldb}, i64 {ldc}, "
                    f"i1 {accumulate}, ptr {fetch}, i64 {ahead.rows}, i64 {ahead.step}, i64 {ahead.run})"
                )
                with t.when(finish):
                    t.do(
                        f"call void {epilogue}(ptr %buffers, i64 %batch, i64 {row}, i64 {height}, i64 {col}, "
                        f"i64 {cols}, ptr {out}, i64 {ldc})"
                    )
    return t.function(tile.function("block"), BLOCK_PARAMETERS, "noinline")


@dataclass(frozen=True)
class _Ahead:
    """What the tiles of a panel prefetch: each run of a tile, `rows` rows, `step` apart; `run` and `tile` are the
    distances from run to run and from tile to tile."""

    start: str
    rows: str
    step: str
    run: str
    tile: str


def _next_panel(
    t: Text, tile: Tile, d: dict[str, str], b: str, k0: str, panel: str, last: str, tiles: str
) -> _Ahead:
    """The panel after this one, shared out among `tiles` tiles; after the last panel of a block of K, the first of the next
    block. As W[N, K]: each tile fetches some columns (rows of W), each run one line of them. As B[K, N]: each run
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


# ---- compiling -------------------------------------------------------------------------------------------------

_PIECES: dict[str, Callable[[Tile], str]] = {
    "pack_rows": pack_rows,
    "pack_rows_any": pack_rows_any,
    "pack_rows_transposed": pack_rows_transposed,
    "pack_panel": pack_panel,
    "pack_panel_any": pack_panel_any,
    "pack_panel_transposed": pack_panel_transposed,
    "block": block,
    "driver": driver,
}
_ALWAYS = ("block", "driver", "pack_panel_any", "pack_rows_any")  # called by others, or tiny
_codes: dict[str, Code] = {}  # symbol -> owner of its code; grows only, lives as long as the process
_lock = hold_at_fork(threading.RLock(), LIBRARY)


def provide(tile: Tile, names: Iterable[str]) -> dict[str, int]:
    """The addresses, by symbol (`tile.function(name)`), of library functions: names of `_PIECES`, or
    `micro<rows>x<vectors>`. Those that no product has asked for yet are compiled."""
    with _lock:
        wanted = sorted({*names, *_ALWAYS})
        missing = [n for n in wanted if tile.function(n) not in _codes]
        if missing:
            _compile(tile, missing)
        return {s: _codes[s].address(s) for s in map(tile.function, wanted)}


def _compile(tile: Tile, names: Sequence[str]) -> None:
    """No optimiser passes: the text is written as it should run, instruction selection does the rest."""
    symbols = [tile.function(n) for n in names]
    known = [s for s in map(tile.function, _ALWAYS) if s in _codes]
    text = [declarations(tile), *(f"declare void @{s}()\n" for s in known), *(_write(tile, n) for n in names)]
    code = assemble("".join(text), symbols, host(), imports={s: _codes[s].address(s) for s in known})
    _codes.update((s, code) for s in symbols)


def _write(tile: Tile, name: str) -> str:
    if name.startswith("micro"):
        rows, vectors = map(int, name.removeprefix("micro").split("x"))
        return micro(tile, rows, vectors)
    return _PIECES[name](tile)
