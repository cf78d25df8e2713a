"""Printed Triton kernels, run by Triton's interpreter on CPU tensors."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "Triton compiles for the GPU here (tests/gpu); needs TRITON_INTERPRET=1", allow_module_level=True
    )

from smelt.codegen.triton import triton_source
from smelt.codegen.triton.block_sizes import choose
from smelt.codegen.triton.triton_import import function_of
from smelt.loops.kernel_ir import Kernel, MapStage, ReduceStage, Reduction, Store
from smelt.loops.philox import philox
from tests.harness import interpreted, kernel_interpreter
from tests.harness.kernels import (
    REDUCE,
    bias_gelu,
    buffers,
    const,
    doubled_and_summed,
    dropped,
    flat,
    kept,
    layer_norm,
    load,
    loop,
    op,
    pad,
    reduction,
    result,
    rows_written,
    scaled,
    scaled_and_summed,
    scan,
    softmax,
    softmax_columns,
    transpose,
)
from tests.harness.triton_launcher import launch_batched, load_kernel

interpreted.by_halves()
f32, bf16 = torch.float32, torch.bfloat16


def run(kernel: Kernel, *tensors: torch.Tensor) -> None:
    load_kernel(kernel)(*tensors)


UNARY = dict(
    neg=torch.neg, abs=torch.abs, sqrt=torch.sqrt, rsqrt=torch.rsqrt, reciprocal=torch.reciprocal, exp=torch.exp,
    exp2=torch.exp2, expm1=torch.expm1, log=torch.log, log2=torch.log2, log1p=torch.log1p, sin=torch.sin,
    cos=torch.cos, tanh=torch.tanh, erf=torch.erf, tan=torch.tan, log10=torch.log10, erfc=torch.erfc,
    sinh=torch.sinh, sigmoid=torch.sigmoid, floor=torch.floor, ceil=torch.ceil, trunc=torch.trunc,
    round=torch.round, sign=torch.sign,
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x = torch.cat(
        [torch.randn(200) * 3, torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 1e-6, 0.0, 1.0, 30.0, -30.0])]
    )
    if name in ("sqrt", "rsqrt", "log", "log2", "log10"):
        x = x.abs() + 1e-3
    y = torch.empty_like(x)
    run(flat(len(x), [f32], f32, lambda v: op(name, v)), x, y)
    torch.testing.assert_close(y, UNARY[name](x), rtol=1e-5, atol=1e-6, equal_nan=True)


BINARY = dict(
    add=torch.add, sub=torch.sub, mul=torch.mul, div=torch.div, maximum=torch.maximum, minimum=torch.minimum,
    fmax=torch.fmax, fmin=torch.fmin, lt=torch.lt, ge=torch.ge, eq=torch.eq, ne=torch.ne,
)  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    a, b = torch.randn(130), torch.randn(130)
    a[3], b[5], a[9] = float("nan"), float("nan"), b[9]
    want = BINARY[name](a, b)
    y = torch.empty_like(want)
    run(flat(130, [f32, f32], want.dtype, lambda u, v: op(name, u, v, dtype=want.dtype)), a, b, y)
    torch.testing.assert_close(y, want, equal_nan=True)


@pytest.mark.parametrize("name", ("floordiv", "remainder", "truncdiv", "fmod"))
def test_integer_division(name: str) -> None:
    a, b = torch.randint(-50, 50, (200,)), torch.randint(1, 9, (200,)) * (torch.randint(0, 2, (200,)) * 2 - 1)
    want = dict(
        floordiv=torch.floor_divide(a, b), remainder=torch.remainder(a, b), fmod=torch.fmod(a, b),
        truncdiv=torch.div(a, b, rounding_mode="trunc"),
    )[name]  # fmt: skip
    y = torch.empty_like(a)
    run(flat(200, [torch.int64] * 2, torch.int64, lambda u, v: op(name, u, v)), a, b, y)
    assert torch.equal(y, want)


@pytest.mark.parametrize("source", (f32, bf16, torch.float16, torch.int64, torch.int32, torch.bool))
@pytest.mark.parametrize("target", (f32, bf16, torch.float16, torch.int64, torch.int32, torch.bool))
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    x = (torch.randn(70) * 20).to(source)
    y = torch.empty(70, dtype=target)
    run(flat(70, [source], target, lambda v: v if source is target else op("cast", v, dtype=target)), x, y)
    # the interpreter truncates where hardware rounds to bfloat16
    torch.testing.assert_close(y, x.to(target), rtol=2**-7 if target is bf16 else 0, atol=0)


def test_gelu_of_rows_with_a_bias() -> None:
    x, b, y = torch.randn(20, 33), torch.randn(33), torch.empty(20, 33)
    run(bias_gelu(20, 33), x, b, y)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x + b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (20, 33), (3, 9000)])
def test_softmax(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.empty(shape)
    run(softmax(*shape), x, y)
    torch.testing.assert_close(y, x.softmax(1))


def test_softmax_over_columns() -> None:
    x, y = torch.randn(70, 90), torch.empty(70, 90)
    run(softmax_columns(70, 90), x, y)
    torch.testing.assert_close(y, x.softmax(0))


@pytest.mark.parametrize("dtype", (f32, bf16))
def test_layer_norm(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(10, 300).to(dtype), torch.randn(300).to(dtype), torch.randn(300).to(dtype)
    y = torch.empty_like(x)
    run(layer_norm(10, 300, dtype), x, w, b, y)
    want = torch.nn.functional.layer_norm(x.float(), (300,), w.float(), b.float()).to(dtype)
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("ahead", (True, False))
@pytest.mark.parametrize("at_once", (1, 4))
@pytest.mark.parametrize("rows, width, size", [(12, 64, 4), (13, 50, 6)])
@pytest.mark.parametrize("dtype", (f32, torch.float64, bf16))
def test_sums_beside_rows(
    dtype: torch.dtype, rows: int, width: int, size: int, at_once: int, ahead: bool
) -> None:
    """Of what is read and of what is stored, by programs that go over one or several rows at a time."""
    kernel = scaled_and_summed(rows, width, size, dtype)
    x, w = torch.rand(rows, width).to(dtype) + 1, torch.rand(width).to(dtype) + 1
    chunks = -(-rows // size)

    def made() -> list[torch.Tensor]:
        return [
            x,
            w,
            torch.full_like(x, -1),
            *(torch.full((chunks, width), -1.0, dtype=dtype) for _ in range(3)),
        ]

    wanted, found = made(), made()
    kernel_interpreter.run(kernel, wanted)
    source = triton_source(kernel, dialect="torch", blocks=replace(choose(kernel), x=at_once, ahead=ahead))
    assert source.points == chunks and source.block == 1
    function_of(source)[(chunks,)](*found, source.points, **source.constants)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=2**-5 if dtype is bf16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("over", ("columns", "rows"))
@pytest.mark.parametrize("kind", REDUCE)
def test_reductions(kind: str, over: str) -> None:
    x = torch.randint(0, 4, (37, 50)).float()
    if kind in ("max", "min", "argmax", "argmin"):
        x[3, 7] = float("nan")
    want = REDUCE[kind](x, 1 if over == "columns" else 0)
    y = torch.empty(want.shape, dtype=want.dtype)
    run(reduction(kind, 37, 50, f32, over), x, y)
    torch.testing.assert_close(y, want, equal_nan=True)


def summed_parts(parts: int, rows: int, columns: int) -> Kernel:
    """Sums of columns of a row-major matrix, of so many parts of so many rows."""
    (p, lp), (r, lr), (c, lc) = loop("p", parts), loop("r", rows), loop("c", columns)
    stages = (
        ReduceStage((lr,), (Reduction("x", "sum", load(0, (p * rows + r) * columns + c)),)),
        MapStage((), (Store(1, p * columns + c, result("x")),)),
    )
    return Kernel("parts", buffers((f32, "in"), (f32, "out")), (lp, lc), stages)


@pytest.mark.parametrize("parts, rows, columns", ((3, 1361, 3), (7, 130, 3), (2, 300, 40), (1, 2000, 1)))
def test_sums_of_few_columns(parts: int, rows: int, columns: int) -> None:
    """A program has the sums that are neighbours, not those of many parts, where rows are many."""
    kernel, x = summed_parts(parts, rows, columns), torch.randn(parts * rows, columns)
    y = torch.empty(parts * columns)
    run(kernel, x, y)
    torch.testing.assert_close(y, x.view(parts, rows, columns).sum(1).flatten(), rtol=1e-4, atol=1e-4)
    assert (choose(summed_parts(147, rows, columns)).x <= 4) == (rows > 1000)


@pytest.mark.parametrize("over", ("columns", "rows", "all"))
@pytest.mark.parametrize("shape", ((37, 0), (0, 37), (0, 0)), ids=str)
def test_reductions_of_nothing(shape: tuple[int, int], over: str) -> None:
    """Nothing is read: what lies there is no contribution."""
    for kind, neutral in (("sum", 0.0), ("prod", 1.0), ("max", float("-inf"))):
        kernel = reduction(kind, *shape, f32, over)
        size = {"columns": shape[0], "rows": shape[1], "all": 1}[over]
        y = torch.full((size,), 5.0)
        triton_source(kernel)
        if size:
            run(kernel, torch.full((64,), 7.0), y)
        assert y.eq(neutral).all()


def test_what_has_no_points_is_printed() -> None:
    for rows, columns in ((0, 3), (3, 0), (0, 0)):
        for kernel in (
            *(transpose(rows, columns), bias_gelu(rows, columns), softmax(rows, columns)),
            *(layer_norm(rows, max(columns, 1)), scan("sum", rows, columns, "columns")),
        ):
            assert "def kernel(" in triton_source(kernel).text


def test_a_sum_of_numbers() -> None:
    """No tensor is read: the gradient of what is constant, summed to a shape."""
    (_, lr), (c, lc) = loop("r", 5), loop("c", 6)
    stages = (
        ReduceStage((lr,), (Reduction("x", "sum", const(2.0)),)),
        MapStage((), (Store(0, c, result("x")),)),
    )
    y = torch.empty(6)
    run(Kernel("numbers", buffers((f32, "out")), (lc,), stages), y)
    assert y.eq(10).all()


def test_long_rows_are_reduced_in_blocks() -> None:
    for kind in ("sum", "max", "argmax"):
        x = torch.randn(2, 10_000)
        want = REDUCE[kind](x, 1)
        y = torch.empty(want.shape, dtype=want.dtype)
        run(reduction(kind, 2, 10_000, f32), x, y)
        torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("over", ("columns", "rows"))
@pytest.mark.parametrize("shape", [(20, 33), (3, 9000), (9000, 3)])
def test_what_is_summed_is_stored_too(shape: tuple[int, int], over: str) -> None:
    x, y = torch.randn(shape), torch.empty(shape)
    s = torch.empty(shape[1 if over == "rows" else 0])
    run(doubled_and_summed(*shape, over), x, y, s)
    assert torch.equal(y, x * 2)
    torch.testing.assert_close(s, (x * 2).sum(0 if over == "rows" else 1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("along", ("columns", "rows"))
def test_scan(along: str) -> None:
    x, y = torch.randn(9, 40), torch.empty(9, 40)
    run(scan("sum", 9, 40, along), x, y)
    torch.testing.assert_close(y, x.cumsum(1 if along == "columns" else 0))


def test_transpose_and_pad() -> None:
    x, y = torch.randn(17, 33), torch.empty(33, 17)
    run(transpose(17, 33), x, y)
    assert torch.equal(y, x.t())
    y = torch.full((21, 37), 5.0)
    run(pad(17, 33, 2), x, y)
    assert torch.equal(y, torch.nn.functional.pad(x, [2] * 4))


@pytest.mark.parametrize("shape", ((1, 1), (1, 40), (7, 1), (5, 3), (3, 64), (2, 512), (300, 9)))
def test_stores_where_tensors_say(shape: tuple[int, int]) -> None:
    x, table = torch.randn(shape), torch.randn(301, shape[1])
    places, want = torch.randperm(301)[: shape[0]], table.clone()
    run(rows_written(*shape, 301), x, places, table)
    want[places] = x + x
    assert torch.equal(table, want)


def test_nothing_is_stored_outside() -> None:
    for columns in (1, 40):
        table = torch.randn(11, columns)
        before = table.clone()
        run(rows_written(3, columns, 9), torch.ones(3, columns), torch.tensor([2, 9, -1]), table[1:10])
        before[3] = 2.0
        assert torch.equal(table, before)


def test_what_is_kept_for_later_stages() -> None:
    x, y = torch.randn(6, 40), torch.empty(6, 40)
    run(kept(6, 40), x, y)
    torch.testing.assert_close(y, x.softmax(1))


@pytest.mark.parametrize("dtype", (torch.float64, f32, torch.int64))
def test_numbers_passed_by_value(dtype: torch.dtype) -> None:
    number, x, y = torch.tensor(1.5).to(dtype), torch.randn(70), torch.empty(70)
    load_kernel(scaled(70, dtype), frozenset((1,)))(x, number, y)
    assert torch.equal(y, x * number.float().item())


SIZES = (5, 1024, 3, 2500, 1, 1023, 4096, 513)


def test_several_launches_by_one() -> None:
    kernel = flat(5, [f32, f32], f32, lambda a, b: op("add", a, op("exp", b)))
    parts = [(torch.randn(n), torch.randn(n), torch.empty(n)) for n in SIZES]
    launch_batched(kernel, parts)
    for a, b, y in parts:
        torch.testing.assert_close(y, a + b.exp())


@pytest.mark.parametrize("n", (2, 32, 124))
def test_as_many_as_the_table_holds(n: int) -> None:
    parts = [(torch.randn(1 + k % 3 * 600), torch.zeros(1 + k % 3 * 600)) for k in range(n)]
    launch_batched(flat(1, [f32], f32, lambda a: a * 2.0), parts)
    assert all(torch.equal(y, x * 2) for x, y in parts)


@pytest.mark.parametrize("dtype", (torch.float64, f32, bf16, torch.int64, torch.int32, torch.bool))
def test_numbers_passed_by_value_to_several(dtype: torch.dtype) -> None:
    parts = [(torch.randn(n), torch.tensor(-n % 4 - 1.5).to(dtype), torch.empty(n)) for n in SIZES]
    launch_batched(scaled(5, dtype), parts, frozenset((1,)))
    assert all(torch.equal(y, x * number.float().item()) for x, number, y in parts)


def test_what_was_stored_is_loaded_from_registers() -> None:
    r, lr = loop("r", 6)
    (a, la), (b, lb) = loop("a", 40), loop("b", 40)
    stages = (
        MapStage((la,), (Store(1, r * 40 + a, load(0, r * 40 + a) * 2.0),)),
        MapStage((lb,), (Store(2, r * 40 + b, load(1, r * 40 + b) + 1.0),)),
    )
    kernel = Kernel("k", buffers((f32, "in"), (f32, "out"), (f32, "out")), (lr,), stages)
    x, y, z = torch.randn(6, 40), torch.empty(6, 40), torch.empty(6, 40)
    run(kernel, x, y, z)
    assert torch.equal(y, x * 2) and torch.equal(z, x * 2 + 1)
    assert triton_source(kernel).text.count("tl.load") == 1


def test_infinite_constants() -> None:
    x, y = torch.randn(40), torch.empty(40)
    run(flat(40, [f32], f32, lambda v: op("minimum", v, const(float("inf")))), x, y)
    assert torch.equal(x, y)


def test_what_a_persistent_row_loaded_is_loaded_once() -> None:
    source = triton_source(softmax(8, 64)).text.split("def kernel")[1]
    assert source.count("tl.load") == 1 and source.count("exp_fp32") == 1


def test_random_bits() -> None:
    i64 = torch.int64
    given = [torch.full((40,), -7046029254386353131), torch.randint(0, 1 << 40, (40,))]
    given += [torch.arange(40) * 2**27, torch.arange(40) % 4]
    out = torch.empty(40, dtype=i64)
    run(flat(40, [i64] * 4, i64, lambda *v: op("philox", *v)), *given, out)
    assert torch.equal(out, philox(*given))


@pytest.mark.parametrize("dtype", (f32, bf16))
@pytest.mark.parametrize(
    "rows, columns", ((1, 4096), (1, 3), (1, 6), (3, 1001), (5, 64), (33, 12), (2, 8200))
)
@pytest.mark.parametrize("sums", (False, True))
def test_neighbours_that_draw_from_one_step(rows: int, columns: int, dtype: torch.dtype, sums: bool) -> None:
    kernel = dropped(rows, columns, dtype, sums)
    place, x = (torch.tensor([1 << 40 | 7]), torch.tensor([1 << 36 | 28])), torch.randn(rows, columns)
    want, got = ([torch.zeros(rows, columns), torch.zeros(rows)][: 1 + sums] for _ in range(2))
    kernel_interpreter.run(kernel, [*place, x, *want])
    load_kernel(kernel, frozenset((0, 1)))(*(n[0] for n in place), x, *got)
    assert torch.equal(got[0], want[0])
    if sums:
        torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)
