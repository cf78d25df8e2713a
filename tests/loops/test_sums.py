"""Rows and sums over them as one kernel: what is the same as two, and what is not."""

from dataclasses import replace

import pytest
import torch

from smelt.loops.kernel_ir import Kernel, MapStage, ReduceStage, Reduction, Store, Value
from smelt.loops.loop_values import compare, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.row_sums import fuse_siblings, row_stage, separate
from smelt.loops.verify_kernel import verify
from smelt.shapes.expr import Size
from tests.harness.kernel_interpreter import run
from tests.harness.kernels import buffers, const, load, loop, op, result

f32 = torch.float32
ROWS, COLUMNS = 10, 6
o0, lr = loop("o0", ROWS)
i0, lc = loop("i0", COLUMNS)
place = o0 * COLUMNS + i0


def scaled_rows() -> Kernel:
    """p1 = p0 / the largest of the row"""
    top = ReduceStage((lc,), (Reduction("r0", "max", load(0, place)),))
    divided = MapStage((lc,), (Store(1, place, op("div", load(0, place), result("r0"))),))
    return Kernel("rows", buffers((f32, "in"), (f32, "out")), (lr,), (top, divided))


def chunk_sums(
    chunks: int, rows: int, value: Value | None = None, to: Size | None = None, kind: str = "sum"
) -> Kernel:
    """p1[chunk] = the sum of p0's rows of that chunk; the last chunk is shorter"""
    c, loop_c = loop("o0", chunks)
    column, loop_column = loop("o1", COLUMNS)
    k, loop_k = loop("i0", rows)
    row = c * rows + k
    if value is None:
        inside = compare("lt", index_value(row), const(ROWS, torch.int64))
        value = where(inside, load(0, row * COLUMNS + column, mask=inside), const(0.0))
    store = Store(1, c * COLUMNS + column if to is None else to, result("r0"))
    stages = (ReduceStage((loop_k,), (Reduction("r0", kind, value),)), MapStage((), (store,)))  # type: ignore[arg-type]
    return Kernel("sums", buffers((f32, "in"), (f32, "out")), (loop_c, loop_column), stages)


@pytest.mark.parametrize("chunks, rows", [(5, 2), (2, 5), (4, 3), (3, 4), (10, 1)])
def test_rows_and_sums_of_what_they_read_or_store(chunks: int, rows: int) -> None:
    x = torch.randn(ROWS, COLUMNS)
    y = x / x.amax(1, keepdim=True)
    for places, of in (((0, 2), x), ((1, 2), y)):
        both = fuse_siblings(scaled_rows(), chunk_sums(chunks, rows), places)
        assert isinstance(both, Kernel), both
        verify(both)
        made, sums = torch.empty_like(x), torch.empty(chunks, COLUMNS)
        run(both, [x, made, sums])
        padded = torch.cat([of, torch.zeros(chunks * rows - ROWS, COLUMNS)])
        torch.testing.assert_close(made, y)
        torch.testing.assert_close(sums, padded.view(chunks, rows, COLUMNS).sum(1))


def test_a_row_adds_without_being_asked_whether_it_is_there() -> None:
    """The mask of the last chunk's end always holds for a row that is computed."""
    both = fuse_siblings(scaled_rows(), chunk_sums(4, 3), (0, 2))
    assert isinstance(both, Kernel)
    assert row_stage(both).reductions == (Reduction("s0", "sum", load(0, place)),)


def test_several_sums_of_the_same_chunks_are_together() -> None:
    both = fuse_siblings(scaled_rows(), chunk_sums(5, 2), (0, 2))
    assert isinstance(both, Kernel)
    three = fuse_siblings(both, chunk_sums(5, 2), (1, 3))
    assert isinstance(three, Kernel) and three.sums is not None
    verify(three)
    assert [r.name for r in row_stage(three).reductions] == ["s0", "s1"]
    x = torch.randn(ROWS, COLUMNS)
    made, first, second = torch.empty_like(x), torch.empty(5, COLUMNS), torch.empty(5, COLUMNS)
    run(three, [x, made, first, second])
    torch.testing.assert_close(first, x.view(5, 2, COLUMNS).sum(1))
    torch.testing.assert_close(second, made.view(5, 2, COLUMNS).sum(1))
    assert (
        fuse_siblings(both, chunk_sums(2, 5), (1, 3)) == "they are of other chunks than those that are there"
    )


def test_apart_they_are_kernels_on_their_own_buffers() -> None:
    both = fuse_siblings(scaled_rows(), chunk_sums(4, 3), (1, 2))
    assert isinstance(both, Kernel)
    (rows, of_rows), (sums, of_sums) = separate(both)
    verify(rows)
    verify(sums)
    assert (of_rows, of_sums) == ((0, 1), (1, 2))
    assert [b.role for b in sums.buffers] == ["in", "out"]
    assert separate(rows) == ((rows, (0, 1)),)


def c_k_column() -> tuple[Size, Size, Size]:
    return loop("o0", 5)[0], loop("i0", 2)[0], loop("o1", COLUMNS)[0]


c, k, column = c_k_column()
OTHERS = {
    "chunks of 2 rows are not the rows": (chunk_sums(4, 2, value=load(0, (c * 2 + k) * 6 + column)), (0, 2)),
    "not of one row": (chunk_sums(5, 2, value=load(0, (c + k * 5) * 6 + column)), (0, 2)),
    "where the row does not store": (chunk_sums(5, 2, value=load(0, (c * 2 + k) * 6 + 5 - column)), (1, 2)),
    "which rows read or write": (chunk_sums(5, 2), (1, 0)),
    "a position is no sum": (chunk_sums(5, 2, kind="argmax"), (0, 2)),
}


@pytest.mark.parametrize("why", OTHERS)
def test_what_is_not_the_same(why: str) -> None:
    sums, places = OTHERS[why]
    assert why in str(fuse_siblings(scaled_rows(), sums, places))


def test_loops_of_one_name_are_not_one_loop() -> None:
    """Rows over two loops, of which the first has as many points as there are chunks: 2 of 3 rows each, the last of 1."""
    a, la = loop("o0", 2)
    b, lb = loop("o1", 2)
    row = Store(1, (a * 2 + b) * COLUMNS + i0, load(0, (a * 2 + b) * COLUMNS + i0))
    rows = Kernel("rows", buffers((f32, "in"), (f32, "out")), (la, lb), (MapStage((lc,), (row,)),))
    n, ln = loop("o0", 2)
    q, lq = loop("i0", 3)
    column, loop_column = loop("o1", COLUMNS)

    def sums(number: Size) -> Kernel:
        value = load(
            0, number * COLUMNS + column, mask=compare("lt", index_value(number), const(4, torch.int64))
        )
        stages = (ReduceStage((lq,), (Reduction("r0", "sum", value),)), MapStage((), (stored,)))
        return Kernel("sums", buffers((f32, "in"), (f32, "out")), (ln, loop_column), stages)

    stored = Store(1, n * COLUMNS + column, result("r0"))
    both = fuse_siblings(rows, sums(n * 3 + q), (0, 2))
    assert isinstance(both, Kernel)
    verify(both)
    x, made, found = torch.randn(4, COLUMNS), torch.empty(4, COLUMNS), torch.empty(2, COLUMNS)
    run(both, [x, made, found])
    torch.testing.assert_close(found, torch.stack([x[:3].sum(0), x[3]]))
    assert "not of one row" in str(fuse_siblings(rows, sums(n + q), (0, 2)))


def test_other_columns() -> None:
    shorter = replace(
        scaled_rows(), stages=(MapStage((loop("i0", 3)[1],), (Store(1, o0 * 3 + i0, load(0, place)),)),)
    )
    assert "have 6 columns" in str(fuse_siblings(shorter, chunk_sums(5, 2), (0, 2)))
