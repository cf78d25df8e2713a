"""Kernels whose sizes are symbols: compiled once, they give what eager gives at many sizes, and write nothing else."""

import pytest
import torch

from smelt.codegen.llvm import compile_kernels
from smelt.errors import NeedsFixedSize
from smelt.loops.kernel_ir import Kernel, Loop, MapStage, ReduceStage, Reduction, ScanStage, Store
from smelt.loops.loop_values import cast, index
from smelt.loops.verify_kernel import verify
from smelt.shapes.expr import Size, loop_sym
from tests.harness.accuracy import no_worse
from tests.harness.hosts import of_bits
from tests.harness.kernel_interpreter import run
from tests.harness.kernels import CHECKED, buffers, flat, load, result
from tests.harness.sized_programs import BACKWARD, ELEMENTWISE, REDUCED, ROWS, SCANS, with_bias
from tests.harness.symbolic import S0, S1
from tests.harness.symbolic_kernels import NUMBERS, Once, call, check, same
from tests.harness.traced import flatten

f32, bf16, f64 = torch.float32, torch.bfloat16, torch.float64
LOOSE = {"rtol": 0.02, "atol": 0.02}  # bfloat16, which eager rounds at other places


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
    check(*REDUCED[name], target=of_bits(bits, masks), rtol=1e-5, atol=1e-4)


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


PARTS = {
    "sum": lambda x: x.sum(),
    "mean of squares": lambda x: (x * x).mean(),
    "largest, smallest": lambda x: (x.amax(), x.amin()),
    "any, all": lambda x: ((x > 9).any(), (x < 9).all()),
    "product": lambda x: (1 + x * 1e-4).prod(),
}


@pytest.mark.parametrize("shape", [(S0, S1), (S0 * S1,), (S0, 3, S1), (S0, S1, 3)], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_reductions_of_whole_tensors_are_cut_into_parts(name, shape):
    """For several threads. Of few elements, some parts are empty."""
    f = PARTS[name]
    once = Once(f, shape, threads=2)
    parts = [k for k in once.kernels if k.outer and k.outer[0].size == 8]
    assert parts and "where" in str(parts[0].stages)  # the last part may be shorter
    for s, t in [(2, 2), (2, 3), (3, 5), (17, 33), (101, 211), (640, 2)]:
        inputs = once.inputs({S0: s, S1: t})
        same(once({S0: s, S1: t}, inputs), flatten(f(*inputs)), {S0: s, S1: t}, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("f", [lambda x: x.t().sum(), lambda x: x[:, 1:].sum()])
def test_no_parts_across_memory(f):
    """The loops are no line in memory, which vectors need."""
    assert len(Once(f, (S0, S1), threads=2).kernels) == 1


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
