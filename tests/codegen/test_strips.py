"""Stages that run down rows of a matrix, lanes being columns: sums over leading dimensions and what goes with them."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.llvm import column_strips
from smelt.codegen.llvm.column_strips import GROUP_ROWS
from smelt.codegen.llvm.host_cpu import Host, host
from smelt.codegen.llvm.vectorization import choose
from smelt.loops.kernel_ir import Kernel, MapStage, ReduceStage, Reduction, Store, Value
from smelt.shapes.expr import Sym
from tests.harness.kernels import (
    REDUCE,
    TARGETS,
    buffers,
    doubled_and_summed,
    load,
    loop,
    op,
    reduction,
    result,
    run,
    softmax_columns,
)

f32, bf16 = torch.float32, torch.bfloat16


def in_strips(kernel: Kernel) -> bool:
    sym = choose(kernel, host().lanes(4)).outer
    return sym is not None and column_strips.applies(kernel, sym, host().lanes(4))


def batch_norm(rows: int, width: int) -> Kernel:
    """Statistics of each column, and the normalised matrix."""
    c, lc = loop("c", width)
    (i, li), (j, lj), (k, lk) = (loop(f"r{n}", rows) for n in range(3))

    def centred(row: Sym) -> Value:
        return load(0, row * width + c) - result("sum") * (1 / rows)

    scale = op("rsqrt", result("squares") * (1 / rows) + 1e-5) * load(1, c)
    stages = (
        ReduceStage((li,), (Reduction("sum", "sum", load(0, i * width + c)),)),
        ReduceStage((lj,), (Reduction("squares", "sum", centred(j) * centred(j)),)),
        MapStage((lk,), (Store(2, k * width + c, centred(k) * scale),)),
        MapStage((), (Store(3, c, result("sum") * (1 / rows)),)),
    )
    specs = ((f32, "in"), (f32, "in"), (f32, "out"), (f32, "out"))
    return Kernel("batch_norm", buffers(*specs), (lc,), stages)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", (17, 33, 64, 300, 5000))
def test_batch_norm(width: int, target: Host | None) -> None:
    for rows in (2, GROUP_ROWS, 37):
        kernel = batch_norm(rows, width)
        assert in_strips(kernel)
        x, w = torch.arange(rows * width).view(rows, width).sin() + 1, torch.randn(width)
        y, mean = torch.ones(rows * width + 40), torch.ones(width + 40)
        run(kernel, [x, w, y, mean], target=target)
        want = torch.nn.functional.batch_norm(x.double(), None, None, w.double(), training=True).float()
        torch.testing.assert_close(y[:-40].view(rows, width), want, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(mean[:-40], x.mean(0))
        assert y[-40:].eq(1).all() and mean[-40:].eq(1).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("over", ("rows", "columns"))
@pytest.mark.parametrize("shape", [(1, 1), (4, 16), (7, 50), (40, 131), (3, 900), (900, 20)])
def test_what_is_summed_is_stored_too(shape: tuple[int, int], over: str, target: Host | None) -> None:
    x, y = torch.randn(shape), torch.empty(shape)
    s = torch.empty(shape[1 if over == "rows" else 0])
    run(doubled_and_summed(*shape, over), [x, y, s], target=target)
    assert torch.equal(y, x * 2)
    torch.testing.assert_close(s, (x * 2).sum(0 if over == "rows" else 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int64, torch.uint8))
def test_reductions_down_wide_rows(kind: str, dtype: torch.dtype) -> None:
    x = (torch.randn(45, 200) * 3).to(dtype)
    if kind == "prod":
        x = x.sign()
    kernel = reduction(kind, 45, 200, dtype, "rows")
    assert in_strips(kernel)
    want = REDUCE[kind](x, 0)
    want = want.to(dtype) if kind in ("sum", "prod") else want
    y = torch.empty(want.shape, dtype=want.dtype)
    run(kernel, [x, y])
    torch.testing.assert_close(y, want)


def test_several_loops_around_the_rows() -> None:
    """x[a, r, s, c] summed over r and s, where rows are no multiple of each other's strides."""
    a, la = loop("a", 3)
    (r, lr), (s, ls), (c, lc) = loop("r", 5), loop("s", 11), loop("c", 70)
    x = torch.randn(3, 5, 12, 70)
    stages = (
        ReduceStage((lr, ls), (Reduction("t", "sum", load(0, ((a * 5 + r) * 12 + s) * 70 + c)),)),
        MapStage((), (Store(1, a * 70 + c, result("t")),)),
    )
    y = torch.empty(3, 70)
    run(Kernel("k", buffers((f32, "in"), (f32, "out")), (la, lc), stages), [x, y])
    torch.testing.assert_close(y, x[:, :, :11].sum((1, 2)), rtol=1e-5, atol=1e-5)


def test_what_rows_do_not_change_is_computed_once() -> None:
    """The square root of a column's factor stands in front of the loop over rows, for each loop over vectors."""
    (r, lr), (c, lc) = loop("r", 400), loop("c", 90)
    value = load(0, r * 90 + c) * op("sqrt", load(1, c))
    stages = (
        ReduceStage((lr,), (Reduction("s", "sum", value),)),
        MapStage((), (Store(2, c, result("s")),)),
    )
    kernel = Kernel("k", buffers((f32, "in"), (f32, "in"), (f32, "out")), (lc,), stages)
    assert len(column_strips._invariants(kernel, stages[0], c)) == 1
    x, w, y = torch.randn(400, 90), torch.rand(90), torch.empty(90)
    run(kernel, [x, w, y])
    torch.testing.assert_close(y, (x * w.sqrt()).sum(0), rtol=1e-5, atol=1e-5)


def test_long_sums_down_rows_are_as_accurate_as_eager() -> None:
    rows = GROUP_ROWS * 64 * 20 + 13
    x = torch.rand(rows, 20)
    y = torch.empty(20)
    run(reduction("sum", rows, 20, f32, "rows"), [x, y])
    exact = x.double().sum(0)
    error = (y.double() - exact).abs()
    assert (error <= torch.maximum((x.sum(0).double() - exact).abs(), exact * 2**-21)).all()


@pytest.mark.parametrize(
    "kernel", [batch_norm(33, 500), doubled_and_summed(20, 400, "rows"), softmax_columns(9, 600)]
)
def test_any_split_of_the_items_gives_the_same(kernel: Kernel) -> None:
    assert in_strips(kernel)
    ins = [torch.randn(40_000) for b in kernel.buffers if b.role == "in"]
    n_outs = len(kernel.buffers) - len(ins)
    whole = [torch.zeros(40_000) for _ in range(n_outs)]
    run(kernel, [*ins, *whole])
    for _ in range(3):
        split = [torch.zeros(40_000) for _ in range(n_outs)]
        run(kernel, [*ins, *split], pieces=torch.randint(0, 20, (5,)).tolist())
        assert all(map(torch.equal, whole, split))
