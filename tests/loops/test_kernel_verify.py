"""Each statement about kernels, broken in every way that the verifier knows of."""

import re
from dataclasses import replace

import pytest
import torch

from smelt.errors import VerificationError
from smelt.loops import kernel_ir
from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Lookup,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    ScanStage,
    Store,
    Sums,
    Value,
)
from smelt.loops.verify_kernel import STATEMENTS, verify
from smelt.shapes.expr import Sym, loop_sym
from tests.harness.scheduled import kernels, scheduled

f32, i64 = torch.float32, torch.int64
row, col = Sym("o0", 0, 3), Sym("i0", 0, 7)
ROWS, COLS = Loop(row, 4), Loop(col, 8)
place = row * 8 + col
N = Sym("n", 2)


def load(buffer, index=place, dtype=f32, mask=None):
    return Value("load", (buffer, index, mask), dtype)


def op(name, *args, dtype=f32):
    return Value(name, args, dtype)


def result(name, dtype=f32):
    return Value("result", (name,), dtype)


# p1[row, :] = exp(p0[row, :]) / sum(exp(p0[row, :])), with the exponentials in scratch p2
BUFFERS = (Buffer("x", f32, "in"), Buffer("y", f32, "out"), Buffer("e", f32, "local", 8))
SUM = ReduceStage(
    (COLS,), (Reduction("r0", "sum", op("exp", load(0))),), (Store(2, col, op("exp", load(0))),)
)
MAP = MapStage((COLS,), (Store(1, place, op("div", load(2, col), result("r0"))),))
GOOD = Kernel("softmax", BUFFERS, (ROWS,), (SUM, MAP))


def stage(number, **changes):
    stages = list(GOOD.stages)
    stages[number] = replace(stages[number], **changes)
    return replace(GOOD, stages=tuple(stages))


def stored(value, buffer=1, index=place):
    """The kernel whose second stage stores `value`, and the scratch's elements besides."""
    return stage(1, stores=(Store(1, place, load(2, col)), Store(buffer, index, value)))


def summed(rows=2, value=None, index=None, **changes):
    """The kernel with a sum over rows beside it, of chunks of two."""
    buffers = (*BUFFERS[:2], Buffer("s", f32, "out"))
    chunk, k = Sym("o0", 0, 1), Sym("i0", 0, rows - 1)
    column = Sym("o1", 0, 7)
    read = load(0, (chunk * 2 + k) * 8 + column) if value is None else value(chunk, k, column)
    stages = (
        ReduceStage((Loop(k, rows),), (Reduction("s0", "sum", read),)),
        MapStage((), (Store(2, chunk * 8 + column if index is None else index, result("s0")),)),
    )
    row_stages = (MapStage((COLS,), (Store(1, place, load(0)),)),)
    sums = Sums((Loop(chunk, 2), Loop(column, 8)), stages)
    return replace(Kernel("softmax", buffers, (ROWS,), row_stages, sums), **changes)


def further(lookup, value):
    """The kernel whose second stage stores `value` to its rows, further by what is looked up."""
    store = Store(1, row * 8, value, (Lookup(lookup, 1, 8),))
    buffers = tuple(replace(b, role="inout") if b.role == "out" else b for b in BUFFERS)
    return replace(stage(1, stores=(store,)), buffers=buffers)


def of_any(size, sym=None, sizes=(N,)):
    """p1[i] = p0[i] over a size that is no number."""
    sym = sym or loop_sym("o0", size)
    stages = (MapStage((), (Store(1, sym, load(0, sym)),)),)
    return Kernel("softmax", BUFFERS[:2], (Loop(sym, size),), stages, sizes=sizes)


def buffer(number, new):
    return replace(GOOD, buffers=tuple(new if i == number else b for i, b in enumerate(GOOD.buffers)))


FAULTS = [
    ("loops", "two loops are called i0", stage(1, loops=(COLS, COLS))),
    ("loops", "i0 is an outer loop already", replace(GOOD, outer=(ROWS, COLS))),
    ("loops", r"runs over \[0, 3\], not over 5", replace(GOOD, outer=(Loop(row, 5),))),
    ("work", "does nothing", stage(1, stores=())),
    ("work", "has no reductions", stage(0, reductions=())),
    ("buffers", "a load of buffer 3, which does not exist", stored(load(3))),
    ("buffers", "a store of buffer 5, which does not exist", stored(load(0), 5)),
    ("buffers", "a store to the `in` buffer 0", stored(load(0), 0)),
    ("buffers", "buffer 3 is neither", replace(GOOD, buffers=(*BUFFERS, Buffer("z", f32, "in")))),
    ("buffers", "role local and 0 elements", buffer(2, Buffer("e", f32, "local"))),
    ("buffers", "role in and 32 elements", buffer(0, Buffer("x", f32, "in", 32))),
    ("indices", "over n, which is no loop here", stored(load(0, Sym("n", 0, 3)))),
    ("indices", "over n, which is no loop here", stored(op("cast", Value("index", (Sym("n", 0, 3),), i64)))),
    ("indices", "which may be -1", stored(load(0, place - 1))),
    ("indices", "beyond its 8 elements", stored(load(2, col + 1))),
    ("loops", "runs to below None, not over 2\\*n elements", of_any(2 * N, Sym("o0", 0, 2 * N.hi - 1))),
    ("sizes", "n is neither a loop nor a size", of_any(2 * N, sizes=())),
    ("sizes", "m may be 0, which is no size", of_any(Sym("m"), sizes=(Sym("m"),))),
    ("order", "which is stored to where lookups say", further(Value("const", (0,), i64), load(1))),
    ("dtypes", "further by something that is no int64", further(Value("const", (0.0,), f32), result("r0"))),
    ("points", "all points of i0 store", further(Value("const", (0,), i64), result("r0"))),
    ("results", "r1 is no reduction of an earlier stage", stored(result("r1"))),
    ("results", "r0 is no reduction of an earlier stage", stage(0, stores=(Store(2, col, result("r0")),))),
    ("results", "two reductions are called r0", stage(0, reductions=(*SUM.reductions, *SUM.reductions))),
    ("dtypes", "load of torch.int64, where torch.float32 is due", stored(load(0, dtype=i64))),
    ("dtypes", "load of torch.float32, where no dtype", stored(load(0, mask=load(0)))),
    ("dtypes", "const of torch.int64, where no dtype", stored(op("cast", Value("const", (1.0,), i64)))),
    ("dtypes", "index of torch.float32, where torch.int64", stored(Value("index", (col,), f32))),
    ("dtypes", "result of torch.int64, where torch.float32", stored(op("cast", result("r0", i64)))),
    ("dtypes", "cast of torch.float32, where no dtype", stored(op("cast", load(0), load(0)))),
    ("dtypes", "add of torch.float32, where no dtype", stored(op("add", load(0)))),
    ("dtypes", "nonsense of torch.float32, where no dtype", stored(op("nonsense", load(0)))),
    ("dtypes", "add of torch.float32, where no dtype", stored(op("add", load(0), Value("index", (col,), i64)))),
    ("dtypes", "lt of torch.float32, where torch.bool", stored(op("lt", load(0), load(0)))),
    ("dtypes", "where of torch.float32, where no dtype", stored(op("where", load(0), load(0), load(0)))),
    ("dtypes", "is stored to buffer 1 of other elements", stored(Value("index", (col,), i64))),
    ("order", "loaded before an earlier stage has stored", replace(GOOD, stages=(MAP, SUM))),
    ("order", "which another point of the stage stores", stored(load(2, 7 - col), 2, col)),
    ("points", "all points of i0 store to buffer 1", stored(load(0), index=row)),
    ("points", "all points of o0 store to buffer 1", stored(load(0), index=col)),
    ("points", "all points of o0 store to buffer 2", summed(index=Sym("o1", 0, 7))),
    ("sums", "2 chunks of 1 rows are not the rows", summed(1)),
    ("sums", "which is not of one row", summed(value=lambda c, k, o: load(0, (c * 2 + (1 - k)) * 8 + o))),
    ("sums", "buffer 1 at .*, where the row does not store", summed(value=lambda c, k, o: load(1, 7 - o))),
    ("sums", "have 8 columns, which", summed(stages=(MapStage((Loop(Sym("i0", 0, 3), 4),), MAP.stores),))),
]  # fmt: skip


@pytest.mark.parametrize("statement, message, kernel", FAULTS)
def test_a_planted_fault_is_found(statement, message, kernel):
    """Also where a broken kernel breaks other statements: each finds it alone."""
    found = [problem for _, problem in STATEMENTS[statement](kernel)]
    assert any(re.search(message, problem) for problem in found), found
    with pytest.raises(VerificationError, match="kernel softmax"):
        verify(kernel)


def test_the_error_names_the_kernel_the_stage_and_the_statement():
    with pytest.raises(VerificationError, match=r"^kernel softmax, stage 1: all points .* \(points\)$"):
        verify(stored(load(0), index=row))


def test_every_statement_of_the_docstring_is_checked_and_broken():
    written = re.findall(r"^\* \*(\w+)\*:", kernel_ir.__doc__, re.M)
    assert sorted(written) == sorted(STATEMENTS) == sorted({statement for statement, *_ in FAULTS})


def test_sizes_that_are_no_numbers():
    verify(of_any(2 * N))
    verify(of_any(N - 1))


def test_sums_beside_rows():
    verify(summed())
    verify(summed(value=lambda c, k, o: load(1, (c * 2 + k) * 8 + o)))  # of what the row has stored


def test_scratch_is_private_and_may_have_equal_indices_at_all_outer_points():
    verify(GOOD)


def test_scans_and_results_of_positions():
    scan = ScanStage(COLS, "sum", Store(1, place, load(0)))
    verify(Kernel("cumsum", BUFFERS[:2], (ROWS,), (scan,)))
    best = ReduceStage((COLS,), (Reduction("r0", "argmax", load(0)),))
    buffers = (BUFFERS[0], Buffer("y", i64, "out"))
    verify(Kernel("argmax", buffers, (ROWS,), (best, MapStage((), (Store(1, row, result("r0", i64)),)))))


def test_what_fusion_builds_holds():
    def f(x, w):
        y = torch.softmax(x, -1) * w
        x.add_(1)
        return y.argmax(-1), y.sum(0), torch.cumsum(y, 1)

    for kernel in kernels(scheduled(f, torch.randn(16, 300), torch.randn(300))[0]):
        verify(kernel)
