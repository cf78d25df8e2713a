"""Kernels whose sizes are symbols: compiled once, they give what eager gives at many sizes, and write nothing else."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.host import host
from smelt.errors import NeedsFixedSize
from smelt.graph.sizes import Size, loop_sym
from smelt.loops.interpret import run
from smelt.loops.ir import Kernel, Loop, MapStage, ReduceStage, Reduction, ScanStage, Store
from smelt.loops.values import cast, index
from smelt.loops.verify import verify
from tests.harness.accuracy import no_worse
from tests.harness.kernels import CHECKED, buffers, flat, load, result
from tests.harness.symbolic import S0, S1
from tests.harness.symbolic_kernels import NUMBERS, Once, call, check, same
from tests.harness.traced import flatten

f32, bf16, f64 = torch.float32, torch.bfloat16, torch.float64
LOOSE = {"rtol": 0.02, "atol": 0.02}  # bfloat16, which eager rounds at other places


def with_bias(x, bias):
    return F.gelu(x + bias)


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 64 + 1e-6) * w


def layer_norm_backward(g, x, w, b):
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [64], w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, [64], mean, rstd, w, b, [True] * 3)


def softmax_backward(g, y):
    return torch.ops.aten._softmax_backward_data(g, y, -1, g.dtype)


def bias_backward(g, x):
    return g.relu(), g.relu().sum((0, 1)), (g * x).sum((0, 1))


def by_heads(x):
    return x.view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2).contiguous() + 1


def of_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 64) + 1


def over_all_rows(x):
    b, t, c = x.shape
    return x.sigmoid().view(b * t, c).softmax(-1).view(b, t, c) * 2


def over_all_columns(x):
    b, t, c = x.shape
    return x.sigmoid().view(b, t * c).softmax(-1).view(b, t, c) * 2


ELEMENTWISE = {
    "fixed columns": (lambda x: x.exp(), (S0, 64)),
    "no fixed size": (lambda x: torch.where(x > 0, x, x * 0.1).sigmoid(), (S0, S1)),
    "a row for all": (with_bias, (S0, S1), (S1,)),
    "a number for each row": (lambda x, y: x * y, (S0, S1), (S0, 1)),
    "a fixed row for all": (lambda x, y: x + y, (S0, 50), (50,)),
    "fixed rows": (lambda x, y: x + y, (40, S0), (40, 1)),
    "outer": (lambda x, y: x[:, None] + y[None, :], (S0,), (S1,)),
    "transposed": (lambda x: x.t().contiguous() * 2, (S0, S1)),
    "transposed to rows": (lambda x: x.t().contiguous() * 2, (S0, 40)),
    "transposed to columns": (lambda x: x.t().contiguous() * 2, (40, S0)),
    "backwards": (lambda x: x.flip(0, 1) + 1, (S0, S1)),
    "rolled": (lambda x: x.roll(1, 1) + 1, (S0, S1)),
    "last": (lambda x: x[:, -1] * 2, (S0, S1)),
    "lower triangle": (lambda x: x.tril(), (S0, S0)),
    "parts": (lambda x: x.chunk(3, -1)[1] * 2, (S0, S1, 48)),
    "repeated": (lambda x: x.repeat(1, 2) + 1, (S0, S1)),
    "by heads": (by_heads, (S0, S1, 64)),
    "of heads": (of_heads, (S0, 4, S1, 16)),
    "flattened transposed": (lambda x: x.transpose(0, 1).reshape(-1) * 2, (S0, S1)),
    "flattened": (lambda x: x.sigmoid().reshape(-1, 8) + 1, (S0, S1, 8)),
}  # fmt: skip
ROWS = {
    "softmax": (lambda x: x.softmax(-1), (S0, 64)),
    "softmax, masked tail": (lambda x: x.softmax(-1), (S0, 50)),
    "softmax of long rows": (lambda x: x.softmax(-1), (3, S0, 700)),
    "softmax, scaled": (lambda x, m: (x * 0.125 + m).softmax(-1), (S0, 4, S1, 16), (S0, 1, 1, 16)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), (S0, S1, 64), (64,), (64,)),
    "layer norm of long rows": (lambda x, w, b: F.layer_norm(x, (768,), w, b), (S0, 768), (768,), (768,)),
    "views": (over_all_rows, (S0, S1, 64)),
    "RMS norm": (rms_norm, (S0, S1, 64), (64,)),
    "stored and summed": (lambda x: (x.relu(), x.relu().sum(-1)), (S0, 100)),
}  # fmt: skip
REDUCED = {
    "softmax": (lambda x: x.softmax(-1), (S0, S1)),
    "softmax, scaled": (lambda x, m: (x * 0.125 + m).softmax(-1), (S0, 2, S1, S1), (S0, 1, 1, S1)),
    "softmax of merged columns": (over_all_columns, (S0, S1, 8)),
    "softmax down columns": (lambda x: x.softmax(0), (S0, S1)),
    "all": (lambda x: x.sum(), (S0, S1)),
    "all with fixed columns": (lambda x: x.sum(), (S0, S1, 77)),
    "columns": (lambda x: x.sum(1), (S0, S1)),
    "rows": (lambda x: x.sum(0), (S0, S1)),
    "rows of fixed columns": (lambda x: x.sum(0), (S0, 64)),
    "fixed rows": (lambda x: x.sum(0), (64, S0)),
    "first and last": (lambda x: x.double().sum((0, 2)), (S0, 3, S1)),
    "between": (lambda x: x.sum(1), (2, S0, 300)),
    "stored and summed": (lambda x: (x.relu(), x.relu().sum(-1)), (S0, S1)),
    "norm": (lambda x: (x * x).sum(-1).sqrt(), (S0, S1)),
    "largest": (lambda x: x.amax(-1), (S0, S1)),
    "least of columns": (lambda x: x.amin(0), (S0, S1)),
    "any": (lambda x: (x > 7).any(-1), (S0, S1)),
    "product": (lambda x: (x * 0.3).prod(-1), (S0, S1)),
}  # fmt: skip
SCANS = {
    "columns": (lambda x: x.cumsum(-1), (S0, S1)),
    "rows": (lambda x: x.cumsum(0), (S0, S1)),
    "of fixed columns": (lambda x: x.cumsum(0), (S0, 20)),
    "products": (lambda x: (x * 0.3).cumprod(-1), (3, S0)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    check(*ELEMENTWISE[name])


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_fixed_size(name, dtype):
    check(*ROWS[name], dtype=dtype, **({"rtol": 1e-5, "atol": 1e-5} if dtype is f32 else {}))


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name, dtype):
    check(*REDUCED[name], dtype=dtype, **({"rtol": 1e-5, "atol": 1e-4} if dtype is f32 else {}))


BACKWARD = {
    "layer norm": (3, layer_norm_backward, (S0, S1, 64), (S0, S1, 64), (64,), (64,)),
    "softmax": (1, softmax_backward, (S0, S1), (S0, S1)),
    "bias": (1, bias_backward, (S0, S1, 64), (S0, S1, 64)),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    count, f, *shapes = BACKWARD[name]
    check(f, *shapes, n_kernels=count, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", SCANS)
def test_scans(name):
    check(*SCANS[name], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "case", [ELEMENTWISE["a row for all"], ROWS["softmax"], REDUCED["softmax"], REDUCED["rows"]]
)
def test_half_precision(case):
    check(*case, dtype=bf16, **LOOSE)


@pytest.mark.parametrize("bits, masks", [(128, False), (512, True)])
@pytest.mark.parametrize("name", REDUCED)
def test_vectors_of_other_hosts(name, bits, masks):
    check(*REDUCED[name], target=replace(host(), bits=bits, masks=masks), rtol=1e-5, atol=1e-4)


LONG = {f"elementwise, {name}": case for name, case in ELEMENTWISE.items() if case[1] != (S0, S0)}
LONG |= {f"reduced, {name}": case for name, case in REDUCED.items() if (S0, S1) in case}


@pytest.mark.parametrize("name", LONG)
def test_many_items(name):
    """Sizes of which items are parts, cut anywhere."""
    f, *shapes = LONG[name]
    once = Once(f, *shapes)
    for sizes in ({S0: 3, S1: 9001}, {S0: 9001, S1: 3}, {S0: 130, S1: 257}):
        inputs = once.inputs(sizes)
        for pieces in (1, 13):
            same(once(sizes, inputs, pieces), flatten(f(*inputs)), sizes, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("f", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("dim", [-1, 0, None])
def test_positions(f, dim):
    check(lambda x: f(x.round(), dim), (S0, S1))


@pytest.mark.parametrize("dim", [(0, 1), 0, 1])
@pytest.mark.parametrize("shape", [(S0, S1), (S0, S1, 3)])
def test_long_sums_are_as_exact_as_eager(shape, dim):
    once = Once(lambda x: x.sum(dim), shape)
    for sizes in ({S0: 1001, S1: 1013}, {S0: 3, S1: 200_003}):
        # Of numbers that cancel, the last rounding is most of eager's error, and chance decides how large that is.
        x = once.inputs(sizes)[0].abs()
        no_worse(once(sizes, [x]), x.sum(dim), x.double().sum(dim))


# ---- by hand: sizes that no trace has yet


def over(size: Size, stage) -> Kernel:
    """One row of `size` elements, in a stage that `stage(loop)` makes."""
    sym = loop_sym("i0", size)
    first, *later = stage(Loop(sym, size))
    kernel = Kernel("row", buffers((f32, "in"), (f32, "out")), (), (first, *later), sizes=(S0,))
    verify(kernel)
    return kernel


def mapped(loop):
    return (MapStage((loop,), (Store(1, loop.sym, load(0, loop.sym + 1) * 2.0),)),)


def summed(loop):
    return (
        ReduceStage((loop,), (Reduction("s", "sum", load(0, loop.sym)),)),
        MapStage((), (Store(1, 0, result("s")),)),
    )


def scanned(loop):
    return (ScanStage(loop, "sum", Store(1, loop.sym, load(0, loop.sym))),)


EXPRESSIONS = [S0 - 1, 3 * S0 + 2, (S0 + 1) // 2, 16 * S0, 64 * S0 - 16]


@pytest.mark.parametrize("stage", [mapped, summed, scanned])
@pytest.mark.parametrize("size", EXPRESSIONS, ids=str)
def test_expressions_as_sizes(size, stage):
    kernel = over(size, stage)
    (code,) = compile_kernels([kernel], CHECKED)
    for n in NUMBERS:
        x = torch.randn(64 * n + 80)
        got, want = torch.zeros(64 * n + 80), torch.zeros(64 * n + 80)
        call(code, [x, got], {S0: n})
        run(kernel, [x, want], {S0: n})
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", [mapped, summed, scanned])
def test_a_loop_that_may_have_no_points_needs_a_number(stage):
    with pytest.raises(NeedsFixedSize) as raised:
        compile_kernels([over(S0 - 2, stage)], CHECKED)
    assert raised.value.symbols == {S0}


def test_outer_loops_may_have_no_points():
    """Rows [2:] of a matrix, at a place that is told by a size; and a size as a number."""
    rows, columns = S0 - 2, S1
    r, c = loop_sym("o0", rows), loop_sym("o1", columns)
    value = load(0, (r + 2) * S1 + c) / cast(index(S1), f32)
    stage = MapStage((), (Store(1, r * S1 + c, value),))
    loops = (Loop(r, rows), Loop(c, columns))
    kernel = Kernel("rest", buffers((f32, "in"), (f32, "out")), loops, (stage,), sizes=(S0, S1))
    verify(kernel)
    (code,) = compile_kernels([kernel], CHECKED)
    for a in NUMBERS:
        for b in NUMBERS:
            x, got = torch.randn(a, b), torch.zeros(a, b)
            call(code, [x, got], {S0: a, S1: b})
            torch.testing.assert_close(got[: a - 2], x[2:] / b)


# ---- code


def test_names_of_symbols_do_not_matter():
    """Kernels that differ in nothing else share code, and say what they take."""
    (kernel,) = Once(with_bias, (S0, S1), (S1,)).kernels
    (other,) = Once(with_bias, (S1, S0), (S0,)).kernels
    codes = compile_kernels([kernel, other], CHECKED)
    assert codes[0].function is codes[1].function
    assert (codes[0].sizes, codes[1].sizes) == ((S0, S1), (S1, S0))


def test_flat_kernels_take_no_sizes():
    """They are the ones of fixed sizes."""
    once = Once(lambda x: x * 2 + 1, (S0, 64))
    (code,) = once.code.values()
    assert code.sizes == ()
    fixed = flat(640, [f32], f32, lambda x: x * 2.0 + 1.0)
    (same,) = compile_kernels([fixed], CHECKED)
    assert same.function is code.function
