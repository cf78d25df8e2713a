"""Packers: copy blocks of A and B into the order in which the micro-kernel reads them.

Strides are in bytes throughout. Layouts:

* packed tile of A, height h: [ceil(k / lanes)][h][lanes]; the micro-kernel broadcasts single elements from it;
* packed panel of B: [k][NR].
"""

from __future__ import annotations

from smelt.codegen.llvm.gemm.function_builder import FunctionText, first_lanes, masked_load
from smelt.codegen.llvm.gemm.gemm_tiling import Tile

PACK_PARAMETERS = "ptr noalias %from, ptr noalias %to, i64 %count, i64 %k, i64 %step, i64 %kstep"


def pack_rows(tile: Tile) -> str:
    """Pack a tile of A with contiguous k: `count` rows at distance `step`, cut into runs. Lanes past k are zero."""
    t = FunctionText()
    whole = t.mul(t.div("%k", tile.lanes), tile.lanes)
    block = t.mul("%count", tile.line)
    for full in (True, False):
        with t.loop(0 if full else whole, whole if full else "%k", tile.lanes) as k:
            source = t.at("%from", t.mul(k, tile.size))
            to = t.at("%to", t.mul(t.div(k, tile.lanes), block))
            mask = "" if full else first_lanes(t, tile, t.sub("%k", k))
            with t.loop(0, "%count") as i:
                address = t.at(source, t.mul(i, "%step"))
                value = (
                    t.load(tile.vector, address, tile.size) if full else masked_load(t, tile, address, mask)
                )
                t.store(tile.vector, value, t.at(to, t.mul(i, tile.line)), tile.size)
    return t.function(tile.function("pack_rows"), PACK_PARAMETERS)


def pack_rows_any(tile: Tile) -> str:
    """Like `pack_rows`, for any strides, one element at a time."""
    t = FunctionText()
    with t.loop(0, "%k") as k:
        source = t.at("%from", t.mul(k, "%kstep"))
        run, lane = t.div(k, tile.lanes), t.rem(k, tile.lanes)
        to = t.at("%to", t.mul(run, t.mul("%count", tile.line)), t.mul(lane, tile.size))
        with t.loop(0, "%count") as i:
            value = t.load(tile.scalar, t.at(source, t.mul(i, "%step")), tile.size)
            t.store(tile.scalar, value, t.at(to, t.mul(i, tile.line)), tile.size)
    return t.function(tile.function("pack_rows_any"), PACK_PARAMETERS)


def pack_rows_transposed(tile: Tile) -> str:
    """Like `pack_rows`, for rows that are contiguous in A's transpose: `count` columns of k lines at distance `kstep`,
    in blocks of lanes x lanes. The last block of a run spills its unused lines into the next run, which is written
    later (the scratch extends past the packed A); the remainder of k is packed one by one."""
    t = FunctionText()
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
    left_from, left_to = (
        t.at("%from", t.mul(whole, "%kstep")),
        t.at("%to", t.mul(t.div(whole, tile.lanes), block)),
    )
    left = t.sub("%k", whole)
    t.do(
        f"call void @{tile.function('pack_rows_any')}(ptr {left_from}, ptr {left_to}, i64 %count, i64 {left}, i64 %step, "
        "i64 %kstep)"
    )
    return t.function(tile.function("pack_rows_transposed"), PACK_PARAMETERS)


def pack_panel(tile: Tile) -> str:
    """Pack a panel of B with contiguous columns: k rows of `count` elements at distance `kstep`."""
    t = FunctionText()
    masks = [first_lanes(t, tile, t.sub("%count", j * tile.lanes)) for j in range(tile.vectors)]
    whole = t.test("eq", "%count", tile.columns)
    for full in (True, False):
        condition = whole if full else t.let(f"xor i1 {whole}, true")
        with t.when(condition), t.loop(0, "%k") as k:
            source, to = t.at("%from", t.mul(k, "%kstep")), t.at("%to", t.mul(k, tile.row))
            for j, mask in enumerate(masks):
                address = t.at(source, j * tile.line)
                value = (
                    t.load(tile.vector, address, tile.size) if full else masked_load(t, tile, address, mask)
                )
                t.store(tile.vector, value, t.at(to, j * tile.line), tile.size)
    return t.function(tile.function("pack_panel"), PACK_PARAMETERS)


def pack_panel_any(tile: Tile) -> str:
    """Pack a panel of B of any strides, one element at a time."""
    t = FunctionText()
    with t.loop(0, "%k") as k:
        source, to = t.at("%from", t.mul(k, "%kstep")), t.at("%to", t.mul(k, tile.row))
        with t.loop(0, "%count") as i:
            value = t.load(tile.scalar, t.at(source, t.mul(i, "%step")), tile.size)
            t.store(tile.scalar, value, t.at(to, t.mul(i, tile.size)), tile.size)
    return t.function(tile.function("pack_panel_any"), PACK_PARAMETERS)


def pack_panel_transposed(tile: Tile) -> str:
    """Pack a panel of B that is W[N, K] with contiguous k: `count` rows of W at distance `step`, transposed in blocks
    of lanes x lanes, the remainder of k one by one. Columns past `count` repeat the last row of W: their products land
    outside C."""
    t = FunctionText()
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


def transpose(t: FunctionText, tile: Tile, rows: list[str]) -> list[str]:
    """Transpose a square block in registers: first inside 128-bit groups by interleaving, then the groups themselves.
    x86 and Arm have these shuffles as single instructions."""
    group = 16 // tile.size  # elements of 128 bits
    groups = tile.lanes // group
    squares = [_interleave(t, tile, rows[g * group : (g + 1) * group], group) for g in range(groups)]
    columns: list[str] = [""] * tile.lanes
    for c in range(group):
        for g, column in enumerate(_exchange(t, tile, [square[c] for square in squares], group)):
            columns[g * group + c] = column
    return columns


def _shuffle(t: FunctionText, tile: Tile, a: str, b: str, pick: list[int]) -> str:
    lanes = ", ".join(f"i32 {p}" for p in pick)
    return t.let(f"shufflevector {tile.vector} {a}, {tile.vector} {b}, <{tile.lanes} x i32> <{lanes}>")


def _interleave(t: FunctionText, tile: Tile, rows: list[str], group: int) -> list[str]:
    """Inside each 128-bit group: rows r of columns c become rows c of columns r."""

    def unpack(a: str, b: str, width: int, high: int) -> str:
        """Alternate runs of `width` elements from one half of each group of a and b."""
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


def _exchange(t: FunctionText, tile: Tile, vectors: list[str], group: int) -> list[str]:
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
