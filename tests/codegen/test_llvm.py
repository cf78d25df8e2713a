"""Machine code against eager: every operation and dtype, memory access patterns, reductions, multi-stage kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from smelt.codegen.llvm import compile_kernels, host_cpu
from smelt.codegen.llvm.host_cpu import LEVELS, Host, host
from smelt.codegen.llvm.link import address_of
from smelt.codegen.llvm.vectorization import choose, lane_stride
from smelt.config import Config
from smelt.errors import BackendError
from smelt.loops.kernel_ir import Buffer, Kernel, MapStage, ReduceStage, Reduction, Store, Value
from smelt.shapes.expr import Sym
from tests.harness.kernels import (
    REDUCE,
    TARGETS,
    bias_gelu,
    buffers,
    const,
    flat,
    layer_norm,
    load,
    loop,
    op,
    pad,
    reduction,
    result,
    rows_written,
    run,
    scan,
    softmax,
    softmax_columns,
    transpose,
)

f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
FLOATS = (f32, f64, f16, bf16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
inf, nan = math.inf, math.nan

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, inf, -inf, nan, 1e-30, -1e-30, 1e-42, 88.0, -88.0, 1e5,
           -1e5, 3e38, -3e38, 0.999, 1.001, 7.0, -7.0]  # fmt: skip


def sample(dtype: torch.dtype, n: int = 333) -> torch.Tensor:
    """Special values first, then random ones of several magnitudes."""
    if dtype is torch.bool:
        return torch.rand(n) > 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        edges = torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.min, info.max - 1], dtype=dtype)
        return torch.cat([edges, torch.randint(max(info.min, -100), 100, (n - len(edges),)).to(dtype)])
    special = torch.tensor(SPECIAL, dtype=f64)
    rest = (
        torch.randn(n - len(SPECIAL), dtype=f64)
        * torch.tensor([0.1, 1.0, 10.0, 60.0])[torch.arange(n - len(SPECIAL)) % 4]
    )
    return torch.cat([special, rest]).to(dtype)


def assert_ulps(
    got: torch.Tensor, want: torch.Tensor, ulps: float, inputs: tuple[torch.Tensor, ...] = ()
) -> None:
    """Equal, both NaN, or within `ulps` units in the last place of the wanted value's dtype."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if not got.dtype.is_floating_point:
        bad = got != want
    else:
        info = torch.finfo(got.dtype)
        scale = want.double().abs().nan_to_num(0, info.max, info.max).clamp(min=info.tiny)
        unit = torch.exp2(torch.floor(torch.log2(scale))) * info.eps
        close = (got.double() - want.double()).abs() <= ulps * unit
        bad = ~(close | (got == want) | (got.isnan() & want.isnan()))
    if bad.any():
        i = tuple(bad.nonzero()[0].tolist())
        values = [t[i].item() for t in inputs if t.shape == got.shape]
        raise AssertionError(
            f"{int(bad.sum())} differ; at {i}: got {got[i]}, want {want[i]}, inputs {values}"
        )


# ---- operations

EXACT_UNARY: dict[str, Callable] = dict(
    neg=torch.neg, abs=torch.abs, sqrt=torch.sqrt, reciprocal=torch.reciprocal, rsqrt=torch.rsqrt, floor=torch.floor,
    ceil=torch.ceil, trunc=torch.trunc, round=torch.round, sign=torch.sign, isnan=torch.isnan, isinf=torch.isinf,
    logical_not=torch.logical_not,
)  # fmt: skip
# Vector code in float32 and, all but erf, in float64: the name in NumPy.
ACCURATE = {name: name for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
                                    "cosh", "tanh", "erf", "sigmoid")}  # fmt: skip
ACCURATE |= {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
LIBRARY = ("erfc",)
BOOLEAN = (
    "isnan",
    "isinf",
    "logical_not",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
)


def unary(name: str, x: torch.Tensor, target: Host | None = None) -> torch.Tensor:
    out = torch.bool if name in BOOLEAN else x.dtype
    y = torch.empty(x.shape, dtype=out)
    run(flat(len(x), [x.dtype], out, lambda v: op(name, v, dtype=out)), [x, y], target=target)
    return y


def binary(name: str, a: torch.Tensor, b: torch.Tensor, target: Host | None = None) -> torch.Tensor:
    out = torch.bool if name in BOOLEAN else a.dtype
    y = torch.empty(a.shape, dtype=out)
    run(
        flat(len(a), [a.dtype, b.dtype], out, lambda u, v: op(name, u, v, dtype=out)),
        [a, b, y],
        target=target,
    )
    return y


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EXACT_UNARY)
def test_exact_unary_float(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    # ATen's vector library gets square roots wrong by a unit now and then, and rounds 1/sqrt(x) once or twice
    assert_ulps(unary(name, x), EXACT_UNARY[name](x), 1 if "sqrt" in name else 0, (x,))


def test_sqrt_is_correctly_rounded() -> None:
    x = sample(f32)
    assert_ulps(unary("sqrt", x), x.double().sqrt().float(), 0, (x,))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ACCURATE)
def test_polynomials_are_within_two_ulps(name: str, target: Host | None) -> None:
    bits = torch.randint(-(2**31), 2**31, (1 << 17,)).to(torch.int32).view(f32)
    x = torch.cat(
        [sample(f32), bits, torch.randn(1 << 15), torch.randn(1 << 15) * 30, torch.rand(1 << 15) + 0.5]
    )
    want = getattr(torch, name)(x.double())
    got = unary(name, x, target)
    rounded = want.float()
    edge = ~rounded.isfinite() | (rounded.abs() < 2**-126)
    assert_ulps(got[edge], rounded[edge], 1, (x[edge],))
    zero = rounded == 0
    assert torch.equal(got[zero].signbit(), rounded[zero].signbit())
    unit = torch.exp2(torch.floor(torch.log2(rounded.double().abs()))) * 2**-23
    error = ((got.double() - want).abs() / unit)[~edge]
    assert error.max() <= (2.7 if name == "tan" else 2.3), (error.max(), x[~edge][error.argmax()])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in ACCURATE if name not in ("erf", "sigmoid")])
def test_float64_is_within_two_ulps(name: str, target: Host | None) -> None:
    bits = torch.randint(-(2**63), 2**63 - 1, (1 << 15,)).view(f64)
    randn = torch.randn(1 << 14, dtype=f64)
    turns = torch.arange(-4000, 4000, dtype=f64) * (math.pi / 4)
    x = torch.cat(
        [sample(f64), bits, randn, randn * 30, randn * 1e6, torch.rand(1 << 14, dtype=f64) + 0.5, turns]
    )
    with np.errstate(all="ignore"):
        exact = x.numpy().astype(np.longdouble)
        want = getattr(np, ACCURATE[name])(exact)
    rounded = torch.from_numpy(want.astype(np.float64))
    got = unary(name, x, target)
    edge = ~rounded.isfinite() | (rounded.abs() < 2**-1022)
    assert_ulps(got[edge], rounded[edge], 1, (x[edge],))
    zero = rounded == 0
    assert torch.equal(got[zero].signbit(), rounded[zero].signbit())
    unit = (torch.exp2(torch.floor(torch.log2(rounded.abs()))) * 2**-52)[~edge].numpy()
    error = np.abs(got[~edge].numpy() - want[~edge.numpy()]) / unit
    assert error.max() <= 2.3, (error.max(), x[~edge][int(error.argmax())])


@pytest.mark.parametrize("dtype", (f64, f16, bf16))
@pytest.mark.parametrize("name", (*ACCURATE, *LIBRARY))
def test_functions_of_other_floats(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    wide = x if dtype is f64 else x.float()
    assert_ulps(unary(name, x), getattr(torch, name)(wide).to(dtype), 4 if dtype is f64 else 1, (x,))


@pytest.mark.parametrize("name", LIBRARY)
def test_library_functions_float32(name: str) -> None:
    x = sample(f32)
    assert_ulps(unary(name, x), getattr(torch, name)(x.double()).float(), 4, (x,))


def test_sine_of_huge_arguments() -> None:
    x = torch.tensor([1e10, 1e13, 1e20, 3e38, -1e30, 12345678.0, 2.0**41, 1.0, inf, nan])
    assert_ulps(unary("sin", x), torch.sin(x.double()).float(), 2, (x,))
    assert_ulps(unary("cos", x), torch.cos(x.double()).float(), 2, (x,))


BINARY_FLOAT: dict[str, Callable] = dict(
    add=torch.add, sub=torch.sub, mul=torch.mul, div=torch.div, maximum=torch.maximum, minimum=torch.minimum,
    fmax=torch.fmax, fmin=torch.fmin, eq=torch.eq, ne=torch.ne, lt=torch.lt, le=torch.le, gt=torch.gt, ge=torch.ge,
    logical_and=torch.logical_and, logical_or=torch.logical_or, logical_xor=torch.logical_xor, copysign=torch.copysign,
    floordiv=torch.floor_divide, truncdiv=lambda a, b: torch.div(a, b, rounding_mode="trunc"),
)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY_FLOAT)
def test_binary_float(name: str, dtype: torch.dtype) -> None:
    a, b = sample(dtype, 26 * 26), sample(dtype, 26 * 26)
    a[:], b[:] = a[:26].repeat_interleave(26), b[:26].repeat(26)
    assert_ulps(binary(name, a, b), BINARY_FLOAT[name](a, b), 0, (a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_fmod_and_remainder_are_exact(dtype: torch.dtype) -> None:
    """The references are C's fmod: ATen's vector one gives NaN for very large quotients."""
    a = sample(dtype, 26)[:, None].expand(26, 26).reshape(-1).contiguous()
    b = sample(dtype, 26).repeat(26)
    want = torch.from_numpy(np.fmod(a.double().numpy(), b.double().numpy()))
    assert_ulps(binary("fmod", a, b), want.to(dtype), 0, (a, b))
    want = torch.where((want != 0) & ((want < 0) != (b < 0)), want.to(dtype) + b, want.to(dtype))
    assert_ulps(binary("remainder", a, b), want, 0, (a, b))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (f32, f64))
def test_fmod_of_any_bits(dtype: torch.dtype, target: Host | None) -> None:
    """Quotients of all sizes, multiples of the divisor and their neighbours; signs of zeros, too."""
    integers = (torch.int32, 31) if dtype is f32 else (torch.int64, 63)
    bits = torch.randint(-(2 ** integers[1]), 2 ** integers[1] - 1, (2, 1 << 14)).to(integers[0]).view(dtype)
    n, k = torch.randint(1, 1000, (2, 1 << 14)).to(dtype)
    nearly = torch.nextafter(n * k, torch.zeros((), dtype=dtype))
    for a, b in (
        (bits[0], bits[1]),
        (n * k, k),
        (nearly, k),
        (-nearly, k / 3),
        (torch.randn_like(n) * 1e6, n / 7),
    ):
        with np.errstate(invalid="ignore"):
            want = torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
        got = binary("fmod", a.contiguous(), b.contiguous(), target)
        assert_ulps(got, want, 0, (a, b))
        assert torch.equal(got.signbit() | got.isnan(), want.signbit() | want.isnan())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ("pow", "atan2"))
def test_pow_and_atan2(name: str, dtype: torch.dtype, target: Host | None) -> None:
    a, b = sample(dtype, 1200), sample(dtype, 1200).flip(0).contiguous()
    a[:676], b[:676] = a[:26].repeat_interleave(26), a[:26].repeat(26).clone()
    reference = getattr(torch, name)(a.double(), b.double()).to(dtype)
    assert_ulps(binary(name, a, b, target), reference, 2, (a, b))


BINARY_INT: dict[str, Callable] = dict(
    add=torch.add, sub=torch.sub, mul=torch.mul, maximum=torch.maximum, minimum=torch.minimum, eq=torch.eq,
    ne=torch.ne, lt=torch.lt, le=torch.le, gt=torch.gt, ge=torch.ge, logical_and=torch.logical_and,
    bitwise_and=torch.bitwise_and, bitwise_or=torch.bitwise_or, bitwise_xor=torch.bitwise_xor,
    floordiv=torch.floor_divide, truncdiv=lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    remainder=torch.remainder, fmod=torch.fmod, pow=torch.pow,
    shift_left=torch.bitwise_left_shift, shift_right=torch.bitwise_right_shift,
)  # fmt: skip


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", BINARY_INT)
def test_binary_int(name: str, dtype: torch.dtype) -> None:
    a, b = sample(dtype), sample(dtype).flip(0).contiguous()
    if "div" in name or name in ("remainder", "fmod"):
        b[b == 0] = 3
        a[a == torch.iinfo(dtype).min] = 5  # the minimum by -1 traps in eager
    if name == "pow":
        b = b.abs() % 9
    if "shift" in name:
        b = b.abs() % 12
    assert_ulps(binary(name, a, b), BINARY_INT[name](a, b), 0, (a, b))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ("neg", "abs", "sign", "bitwise_not", "logical_not"))
def test_unary_int(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    assert_ulps(unary(name, x), getattr(torch, name)(x), 0, (x,))


def test_integer_division_by_zero_does_not_trap() -> None:
    a = torch.tensor([1, -5, torch.iinfo(torch.int32).min] * 6, dtype=torch.int32)
    b = torch.tensor([0, 0, -1] * 6, dtype=torch.int32)
    for name in ("floordiv", "truncdiv", "remainder", "fmod"):
        binary(name, a, b)


@pytest.mark.parametrize(
    "name",
    ("add", "mul", "eq", "ne", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "lt", "ge"),
)
def test_bool(name: str) -> None:
    a, b = torch.rand(99) > 0.5, torch.rand(99) > 0.5
    assert_ulps(binary(name, a, b), getattr(torch, name)(a, b), 0)


CASTS = (*FLOATS, *INTS, torch.bool)


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: torch.dtype) -> None:
    x = sample(source)
    if source.is_floating_point:
        x = x[(x.abs() < 100) | ~x.isfinite()]
    for target in CASTS:
        values = x[x.isfinite()] if source.is_floating_point and target in INTS else x
        y = torch.empty(values.shape, dtype=target)
        run(flat(len(values), [source], target, lambda v, t=target: op("cast", v, dtype=t)), [values, y])
        expected = values.to(target)
        assert_ulps(y, expected, 0, (values,))


def test_bfloat16_rounds_every_float_as_eager() -> None:
    x = torch.randint(-(2**31), 2**31, (1 << 16,)).to(torch.int32).view(f32)
    for dtype in (bf16, f16):
        y = torch.empty(x.shape, dtype=dtype)
        run(flat(len(x), [f32], dtype, lambda v, t=dtype: op("cast", v, dtype=t)), [x, y])
        assert_ulps(y, x.to(dtype), 0, (x,))


def test_where_and_fma() -> None:
    c, a, b = torch.rand(70) > 0.5, torch.randn(70), torch.randn(70)
    y = torch.empty(70)
    run(flat(70, [torch.bool, f32, f32], f32, lambda c, a, b: op("where", c, a, b)), [c, a, b, y])
    assert_ulps(y, torch.where(c, a, b), 0)
    run(flat(70, [f32, f32], f32, lambda a, b: op("fma", a, b, a)), [a, b, y])
    assert_ulps(y, (a.double() * b.double() + a.double()).float(), 0)


def test_signed_zero_constants_are_kept_apart() -> None:
    x, y = torch.ones(4), torch.empty(4)
    run(flat(4, [f32], f32, lambda v: op("copysign", v, const(-0.0))), [x, y])
    assert y.tolist() == [-1.0] * 4
    run(flat(4, [f32], f32, lambda v: op("copysign", v, const(0.0))), [x, y])
    assert y.tolist() == [1.0] * 4


# ---- memory


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int8, f64, torch.bool))
def test_tails_write_nothing_beyond_the_end(dtype: torch.dtype, target: Host | None) -> None:
    for n in range(71):
        x = sample(dtype, 100)[:n].clone()
        room = torch.ones(n + 40, dtype=dtype)
        run(
            flat(n, [dtype], dtype, lambda v: op("where", op("ne", v, v, dtype=torch.bool), v, v)),
            [x, room],
            target=target,
        )
        assert_ulps(room[:n], x, 0)
        assert room[n:].eq(1).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(3, 5), (17, 33), (64, 64), (100, 7), (1, 9), (130, 200)])
def test_transpose(shape: tuple[int, int], target: Host | None) -> None:
    x = torch.randn(shape)
    y = torch.empty(shape[1], shape[0])
    run(transpose(*shape), [x, y], target=target)
    assert torch.equal(y, x.t())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (f32, bf16, torch.bool))
def test_stores_where_tensors_say(dtype: torch.dtype, target: Host | None) -> None:
    for rows, columns in ((1, 1), (1, 40), (7, 1), (5, 3), (3, 64)):
        x, table = torch.randn(rows, columns).to(dtype), torch.randn(9, columns).to(dtype)
        places, want = torch.randperm(9)[:rows], table.clone()
        run(rows_written(rows, columns, 9, dtype), [x, places, table], target=target)
        want[places] = x + x
        assert torch.equal(table, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", (9, -1, 1 << 40))
def test_nothing_is_stored_outside(place: int, target: Host | None) -> None:
    for columns in (1, 40):
        table = torch.randn(11, columns)
        before = table.clone()
        places = torch.tensor([2, place, 3])
        run(rows_written(3, columns, 9), [torch.ones(3, columns), places, table[1:10]], target=target)
        before[[3, 4]] = 2.0
        assert torch.equal(table, before)


@pytest.mark.parametrize("target", TARGETS)
def test_pad_reads_nothing_outside(target: Host | None) -> None:
    for rows, columns, border in ((1, 1, 1), (3, 40, 2), (5, 16, 3)):
        x = torch.randn(rows, columns)
        y = torch.full((rows + 2 * border, columns + 2 * border), nan)
        run(pad(rows, columns, border), [x, y], target=target)
        assert torch.equal(y, torch.nn.functional.pad(x, [border] * 4))


@pytest.mark.parametrize("step", (-1, 2, 3, -5))
def test_strided_loads_and_stores(step: int) -> None:
    n = 83
    i, li = loop("i", n)
    base = 0 if step > 0 else (n - 1) * -step
    x, y = torch.randn(n * abs(step)), torch.zeros(n)
    run(
        Kernel(
            "k",
            buffers((f32, "in"), (f32, "out")),
            (li,),
            (MapStage((), (Store(1, i, load(0, i * step + base)),)),),
        ),
        [x, y],
    )
    assert torch.equal(y, x[torch.arange(n) * step + base])
    z = torch.zeros(n * abs(step))
    run(
        Kernel(
            "k",
            buffers((f32, "in"), (f32, "out")),
            (li,),
            (MapStage((), (Store(1, i * step + base, load(0, i)),)),),
        ),
        [y, z],
    )
    assert torch.equal(z[torch.arange(n) * step + base], y)
    assert z.count_nonzero() == n


@pytest.mark.parametrize("divisor", (3, 16, 48, 49, 64))
def test_quotient_indices(divisor: int) -> None:
    """y[i] = a[i // d] + b[i % d]: contiguous per vector where d is a multiple of the lanes, else gathered."""
    n = 500
    i, li = loop("i", n)
    a, b, y = torch.randn(n // divisor + 1), torch.randn(divisor), torch.empty(n)
    value = load(0, i // divisor) + load(1, i % divisor)
    run(
        Kernel(
            "k",
            buffers((f32, "in"), (f32, "in"), (f32, "out")),
            (li,),
            (MapStage((), (Store(2, i, value),)),),
        ),
        [a, b, y],
    )
    at = torch.arange(n)
    assert torch.equal(y, a[at // divisor] + b[at % divisor])


def test_lane_stride() -> None:
    i = Sym("i", 0, 1023)
    assert [lane_stride(e, i, 16) for e in (i * 3 + 1, i // 64, i % 64, i // 48 * 7 + i % 48)] == [3, 0, 1, 1]
    assert lane_stride(i // 3, i, 16) is None
    assert lane_stride(i % 50, i, 16) is None


def test_index_values() -> None:
    """arange over two dimensions, as integers and compared."""
    (r, lr), (c, lc) = loop("r", 5), loop("c", 37)
    y = torch.empty(5, 37, dtype=torch.int64)
    value = Value("index", (r * 100 + c // 3,), torch.int64)
    run(
        Kernel("k", buffers((torch.int64, "out")), (lr, lc), (MapStage((), (Store(0, r * 37 + c, value),)),)),
        [y],
    )
    assert torch.equal(y, torch.arange(5)[:, None] * 100 + torch.arange(37) // 3)


def test_in_place() -> None:
    n = 77
    i, li = loop("i", n)
    x = torch.randn(n)
    want = x * 2
    run(Kernel("k", buffers((f32, "inout")), (li,), (MapStage((), (Store(0, i, load(0, i) * 2.0),)),)), [x])
    assert torch.equal(x, want)


def test_all_loads_of_a_stage_come_before_its_stores() -> None:
    """Swapping two vectors in one stage."""
    i, li = loop("i", 50)
    x, y = torch.randn(50), torch.randn(50)
    a, b = y.clone(), x.clone()
    stage = MapStage((), (Store(0, i, load(1, i)), Store(1, i, load(0, i))))
    run(Kernel("k", buffers((f32, "inout"), (f32, "inout")), (li,), (stage,)), [x, y])
    assert torch.equal(x, a) and torch.equal(y, b)


def test_broadcast_of_one_element() -> None:
    i, li = loop("i", 50)
    x, y = torch.randn(1), torch.empty(50)
    run(
        Kernel("k", buffers((f32, "in"), (f32, "out")), (li,), (MapStage((), (Store(1, i, load(0, 0)),)),)),
        [x, y],
    )
    assert torch.equal(y, x.expand(50))


def test_zero_dimensional() -> None:
    x, y = torch.tensor(3.0), torch.tensor(0.0)
    run(
        Kernel(
            "k", buffers((f32, "in"), (f32, "out")), (), (MapStage((), (Store(1, 0, load(0, 0) * 2.0),)),)
        ),
        [x, y],
    )
    assert y.item() == 6.0


# ---- reductions

OVER = dict(columns=1, rows=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", REDUCE)
def test_reductions(kind: str, over: str, target: Host | None) -> None:
    for rows, columns in ((1, 1), (5, 3), (4, 16), (7, 49), (37, 130), (3, 700), (200, 5)):
        x = torch.randn(rows, columns)
        if kind in ("any", "all"):
            x = (torch.rand(rows, columns) > (0.95 if kind == "any" else 0.05)).float()
        want = REDUCE[kind](x, OVER[over])
        y = torch.empty(want.shape, dtype=want.dtype)
        run(reduction(kind, rows, columns, f32, over), [x, y], target=target)
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", (f64, torch.int64, torch.int32, torch.uint8))
@pytest.mark.parametrize("kind", ("sum", "max", "min", "argmax", "argmin"))
def test_reductions_of_other_dtypes(kind: str, dtype: torch.dtype) -> None:
    x = (torch.randn(9, 85) * 30).to(dtype)
    for over, dim in OVER.items():
        want = REDUCE[kind](x, dim)
        if kind == "sum":
            want = want.to(dtype)
        y = torch.empty(want.shape, dtype=want.dtype)
        run(reduction(kind, 9, 85, dtype, over), [x, y])
        torch.testing.assert_close(y, want)


@pytest.mark.parametrize("kind", ("max", "min", "argmax", "argmin"))
def test_nan_wins_and_ties_go_to_the_first(kind: str) -> None:
    x = torch.randint(0, 3, (40, 83)).float()
    x[3, 50], x[5, 2], x[5, 70], x[7] = nan, nan, nan, -inf
    x[8], x[9, 82] = inf, nan
    for over, dim in OVER.items():
        want = REDUCE[kind](x, dim)
        y = torch.empty(want.shape, dtype=want.dtype)
        run(reduction(kind, 40, 83, f32, over), [x, y])
        assert torch.equal(y.nan_to_num(9e9), want.nan_to_num(9e9)), over


def test_argmax_over_two_loops_is_row_major() -> None:
    x = torch.randint(0, 50, (13, 37)).float()
    y = torch.empty((), dtype=torch.int64)
    run(reduction("argmax", 13, 37, f32, "all"), [x, y])
    assert y.item() == x.argmax().item()


def test_long_sums_are_as_accurate_as_eager() -> None:
    x = torch.rand(1, 3_000_001)
    y = torch.empty(1)
    run(reduction("sum", 1, x.numel(), f32), [x, y])
    exact = x.double().sum()
    assert abs(y.double() - exact) <= max(abs(x.sum().double() - exact), exact * 2**-22)


def test_empty_reduction_gives_the_identity() -> None:
    y = torch.full((3,), 5.0)
    run(reduction("sum", 3, 0, f32), [torch.empty(3, 0), y])
    assert y.tolist() == [0, 0, 0]


@pytest.mark.parametrize("along", ("columns", "rows"))
def test_scans(along: str) -> None:
    x = torch.randn(19, 45).double()
    dim = {"columns": 1, "rows": 0}[along]
    for kind, reference in (("sum", x.cumsum(dim)), ("prod", x.cumprod(dim)), ("max", x.cummax(dim).values)):
        y = torch.empty(19, 45)
        run(scan(kind, 19, 45, along), [x.float(), y])
        torch.testing.assert_close(y, reference.float(), rtol=1e-4, atol=1e-5)


def test_masked_reduction() -> None:
    """The mean of what a condition selects, with a load that must not happen elsewhere."""
    (r, lr), (c, lc) = loop("r", 6), loop("c", 53)
    wanted = op(
        "lt", Value("index", (c,), torch.int64), Value("index", (r * 9,), torch.int64), dtype=torch.bool
    )
    stages = (
        ReduceStage((lc,), (Reduction("s", "sum", load(0, r * 53 + c, mask=wanted)),)),
        MapStage((), (Store(1, r, result("s")),)),
    )
    x, y = torch.randn(6, 53), torch.empty(6)
    run(Kernel("k", buffers((f32, "in"), (f32, "out")), (lr,), stages), [x, y])
    want = (x * (torch.arange(53) < torch.arange(6)[:, None] * 9)).sum(1)
    torch.testing.assert_close(y, want)


# ---- several stages


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 49), (17, 128), (5, 1000)])
def test_softmax(shape: tuple[int, int], target: Host | None) -> None:
    x = torch.randn(shape) * 5
    y = torch.empty(shape)
    run(softmax(*shape), [x, y], target=target)
    torch.testing.assert_close(y, x.softmax(1), rtol=1e-6, atol=1e-7)
    run(softmax_columns(*shape), [x, y], target=target)
    torch.testing.assert_close(y, x.softmax(0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", (f32, bf16, f16))
@pytest.mark.parametrize("columns", (1, 30, 96, 768, 1001))
def test_layer_norm(columns: int, dtype: torch.dtype) -> None:
    x, w, b = (
        torch.randn(13, columns).to(dtype),
        torch.randn(columns).to(dtype),
        torch.randn(columns).to(dtype),
    )
    y = torch.empty_like(x)
    run(layer_norm(13, columns, dtype), [x, w, b, y])
    want = torch.nn.functional.layer_norm(x.float(), (columns,), w.float(), b.float())
    torch.testing.assert_close(y, want.to(dtype))


@pytest.mark.parametrize("strided", (False, True))
def test_local_scratch(strided: bool) -> None:
    """exp(x) is kept in a local buffer between stages, in either mode of vectorisation."""
    rows, columns = 70, 90
    r, lr = loop("r", rows)
    (a, la), (c, lc) = loop("a", columns), loop("c", columns)

    def at(j: Sym) -> object:
        return j * rows + r if strided else r * columns + j

    stages = (
        MapStage((la,), (Store(2, a, op("exp", load(0, at(a)))),)),
        ReduceStage((lc,), (Reduction("s", "sum", load(2, c)),)),
        MapStage((la,), (Store(1, at(a), load(2, a) / result("s")),)),
    )
    kernel = Kernel(
        "k", (*buffers((f32, "in"), (f32, "out")), Buffer("t", f32, "local", columns)), (lr,), stages
    )
    assert (choose(kernel, 16).outer is r) == strided
    shape = (columns, rows) if strided else (rows, columns)
    x, y = torch.randn(shape), torch.empty(shape)
    run(kernel, [x, y])
    torch.testing.assert_close(y, x.softmax(0 if strided else 1))


def test_large_scratch_is_not_on_the_stack() -> None:
    n = 300_000
    (a, la), (c, lc) = loop("a", n), loop("c", n)
    stages = (
        MapStage((la,), (Store(2, a, load(0, a) + 1.0),)),
        MapStage((lc,), (Store(1, c, load(2, n - 1 - c)),)),
    )
    kernel = Kernel("k", (*buffers((f32, "in"), (f32, "out")), Buffer("t", f32, "local", n)), (), stages)
    x, y = torch.randn(n), torch.empty(n)
    run(kernel, [x, y])
    assert torch.equal(y, x.flip(0) + 1)


@pytest.mark.parametrize(
    "kernel", [bias_gelu(37, 300), softmax(50, 33), softmax_columns(20, 500), transpose(100, 130)]
)
def test_any_split_of_the_items_gives_the_same(kernel: Kernel) -> None:
    sizes = [4 * 200_000] * len(kernel.buffers)
    ins = [torch.randn(n) for n in sizes[:-1]]
    whole, split = torch.zeros(sizes[-1]), torch.zeros(sizes[-1])
    run(kernel, [*ins, whole])
    for _ in range(3):
        split.zero_()
        run(kernel, [*ins, split], pieces=torch.randint(0, 200, (9,)).tolist())
        assert torch.equal(whole, split)


def test_a_large_elementwise_kernel_has_many_items() -> None:
    (compiled,) = compile_kernels([flat(1 << 20, [f32], f32, lambda v: op("exp", v))], Config())
    assert compiled.extent >= 16 and compiled.extent // compiled.grain >= 4


# ---- compilation


def test_equal_kernels_share_code() -> None:
    first, second, other = softmax(12, 34), softmax(12, 34), softmax(12, 35)
    compiled = compile_kernels([first, second, other], Config())
    assert compiled[0].function is compiled[1].function is not compiled[2].function
    again = compile_kernels([softmax(12, 34)], Config())
    assert again[0].function is compiled[0].function


def test_elementwise_kernels_of_all_sizes_share_code() -> None:
    def doubled(n: int, dtype: torch.dtype = f32) -> Kernel:
        return flat(n, [dtype], dtype, lambda v: v + v)

    (a, b, c, d, e) = compile_kernels(
        [doubled(n) for n in (64, 1 << 20, 63, 1)] + [doubled(64, f64)], Config()
    )
    assert a.function is b.function and c.function is d.function
    assert len({address_of(x.function) for x in (a, c, e)}) == 3
    assert b.extent == a.extent << 14 and a.grain == b.grain


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", (1, 15, 16, 100, 1024, 1025))
def test_flat_kernels_with_strides_and_numbers(n: int, target: Host | None) -> None:
    """y[3i + 1] = x[n - 1 - i] * number, in any split."""
    i, li = loop("i", n)
    store = Store(2, 3 * i + 1, load(0, n - 1 - i) * load(1, 0))
    kernel = Kernel("k", buffers((f32, "in"), (f32, "in"), (f32, "out")), (li,), (MapStage((), (store,)),))
    x, number = torch.randn(n), torch.tensor([2.5])
    for pieces in ((), (1, 2, 17, 40, 500)):
        y = torch.zeros(3 * n + 1)
        run(kernel, [x, number, y], pieces=pieces, target=target)
        assert torch.equal(y[1::3], x.flip(0) * 2.5)
        assert y.count_nonzero() == x.count_nonzero()


def test_host_target() -> None:
    target = host()
    assert target.bits in (128, 256, 512) and target.cpu


def test_a_forced_level(monkeypatch: pytest.MonkeyPatch) -> None:
    detect = host_cpu._host.__wrapped__
    monkeypatch.setenv("SMELT_CPU", "x86-64-v2")
    assert detect() is LEVELS["x86-64-v2"]
    monkeypatch.setenv("SMELT_CPU", "haswell")
    with pytest.raises(BackendError, match="SMELT_CPU: unknown level 'haswell'; known: x86-64-v2, "):
        detect()
    narrow = replace(host(), cpu="narrow", features="+sse2")
    monkeypatch.setattr("smelt.codegen.llvm.host_cpu._own", lambda: narrow)
    monkeypatch.setenv("SMELT_CPU", "x86-64-v4")
    with pytest.raises(BackendError, match="SMELT_CPU=x86-64-v4: narrow lacks avx, avx2, avx512bw, "):
        detect()
    monkeypatch.setenv("SMELT_CPU", "")
    assert detect() is narrow


@pytest.mark.parametrize("level", LEVELS)
def test_code_for_each_level_is_made_on_any_machine(level: str) -> None:
    """It is linked only where the machine has the level."""
    (made,) = compile_kernels([softmax(12, 34)], Config(), LEVELS[level])
    assert made.function.library.processor.name == level
