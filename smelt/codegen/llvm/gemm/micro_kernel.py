"""The micro-kernel: one tile of C from a packed tile of A and a panel of B, in registers."""

from __future__ import annotations

from smelt.codegen.llvm.gemm.function_builder import FunctionText, overload, prefetch, splat
from smelt.codegen.llvm.gemm.gemm_tiling import Tile

MICRO_PARAMETERS = (
    "ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %k, i64 %ldb, i64 %ldc, i1 %accumulate, "
    "ptr %next, i64 %next_rows, i64 %next_step, i64 %next_run"
)


def micro(tile: Tile, rows: int, vectors: int) -> str:
    """c[rows][vectors] (+)= a @ b for one packed tile of A; `ldb` is the row stride of b (packed or not). Each run
    prefetches `next_rows` rows at `next`, `next_step` apart, and advances `next` by `next_run`."""
    t = FunctionText()
    t.do("br label %outer")
    run = _next_run(t, tile, rows, vectors)
    _one_k(t, tile, rows, vectors, run)
    t.label("turn")
    with t.loop(0, "%next_rows") as row:
        address = t.at("%no", t.mul(row, "%next_step"))
        for j in range(vectors):
            prefetch(t, t.at(address, j * tile.line))
    t.do("br label %again")
    t.label("again")
    t.do("%no.next = getelementptr i8, ptr %no, i64 %next_run")
    t.do(f"%left.next = sub i64 %left, {run}")
    t.do(f"%ao.next = getelementptr i8, ptr %ao, i64 {rows * tile.line}")
    t.do("%bo.next = getelementptr i8, ptr %bi, i64 %ldb")
    t.do("br label %outer")
    _store(t, tile, rows, vectors)
    return t.function(tile.function(f"micro{rows}x{vectors}"), MICRO_PARAMETERS)


def _accumulators(rows: int, vectors: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(rows) for j in range(vectors)]


def _next_run(t: FunctionText, tile: Tile, rows: int, vectors: int) -> str:
    """The head of the loop over runs of `lanes` elements of each row of A; the number of elements of this run."""
    t.label("outer")
    for stem, type, start in (
        ("left", "i64", "%k"),
        ("ao", "ptr", "%a"),
        ("bo", "ptr", "%b"),
        ("no", "ptr", "%next"),
    ):
        t.do(f"%{stem} = phi {type} [{start}, %entry], [%{stem}.next, %again]")
    for i, j in _accumulators(rows, vectors):
        t.do(f"%o{i}_{j} = phi {tile.vector} [zeroinitializer, %entry], [%i{i}_{j}, %again]")
    run = t.least("%left", tile.lanes)
    t.do(f"br i1 {t.test('sgt', '%left', 0)}, label %inner, label %finish")
    return run


def _one_k(t: FunctionText, tile: Tile, rows: int, vectors: int, run: str) -> None:
    """The loop over the k of a run: a vector of B for each column, an element of A for each row."""
    v = tile.vector
    t.label("inner")
    t.do("%kk = phi i64 [0, %outer], [%kk.next, %inner]")
    t.do("%bi = phi ptr [%bo, %outer], [%bi.next, %inner]")
    for i, j in _accumulators(rows, vectors):
        t.do(f"%i{i}_{j}.in = phi {v} [%o{i}_{j}, %outer], [%i{i}_{j}, %inner]")
    bs = [t.load(v, t.at("%bi", j * tile.line), tile.size) for j in range(vectors)]
    element = t.let(f"getelementptr {tile.scalar}, ptr %ao, i64 %kk")
    for i in range(rows):
        a = splat(t, tile, t.load(tile.scalar, t.at(element, i * tile.line), tile.size))
        for j in range(vectors):
            t.do(
                f"%i{i}_{j} = call {v} @llvm.fmuladd.{overload(tile)}({v} {a}, {v} {bs[j]}, {v} %i{i}_{j}.in)"
            )
    t.do("%kk.next = add i64 %kk, 1")
    t.do("%bi.next = getelementptr i8, ptr %bi, i64 %ldb")
    t.do(f"br i1 {t.test('slt', '%kk.next', run)}, label %inner, label %turn")


def _store(t: FunctionText, tile: Tile, rows: int, vectors: int) -> None:
    """Store the accumulators to C, or add them to it."""
    t.label("finish")
    t.do("br i1 %accumulate, label %more, label %fresh")
    for block in ("more", "fresh"):
        t.label(block)
        for i in range(rows):
            line = t.at("%c", t.mul("%ldc", i))
            for j in range(vectors):
                address, value = t.at(line, j * tile.line), f"%o{i}_{j}"
                if block == "more":
                    value = t.let(f"fadd {tile.vector} {value}, {t.load(tile.vector, address, tile.size)}")
                t.store(tile.vector, value, address, tile.size)
        t.do("br label %end")
    t.label("end")
