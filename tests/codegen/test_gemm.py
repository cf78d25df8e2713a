"""Generated matrix products against float64 references: every form, edge sizes, strides, batches, epilogues."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import random

import pytest
import torch

from smelt.codegen.call_selection.call_requests import Request
from smelt.codegen.call_selection.gemm_calls import MATRIX_CALLS, plan_product
from smelt.codegen.gemm_profitability import prefers_product
from smelt.codegen.llvm.gemm import compile_gemm as compiler
from smelt.codegen.llvm.gemm import gemm_library, gemm_tiling, symbolic_gemm
from smelt.codegen.llvm.gemm.compile_gemm import compile_products
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, NO_EPILOGUE, ROW, Epilogue, product_value
from smelt.codegen.llvm.gemm.symbolic_gemm import SizedProducts
from smelt.codegen.llvm.link import address_of
from smelt.config import DEFAULT
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Buffer, Value
from smelt.plan.machine_code import CompiledKernel
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Schedule
from smelt.targets import cpu

aten = torch.ops.aten
F32, F64 = torch.float32, torch.float64


def spec(t):
    return TensorSpec(tuple(t.shape), tuple(t.stride()), t.dtype, t.device, t.storage_offset())


def argument(x):
    return spec(x) if isinstance(x, torch.Tensor) else x


def plan(op, *args, out, epilogue=NO_EPILOGUE):
    return plan_product(op, [argument(a) for a in args], spec(out), "product", epilogue)


SIZED = SizedProducts()  # of all tests: most code that it is asked for was made for other sizes


def launch(request: Request, args, out, extra=(), pieces=1):
    """Runs the machine function over its extent, cut into `pieces` ranges. That of products of any sizes does the same."""
    (fixed,), (for_sizes,) = compile_products([request.product]), SIZED.compile([request.product])
    want = call(fixed, request, args, out, extra, pieces).clone()
    out.fill_(float("nan"))
    got = call(for_sizes, request, args, out, extra, pieces)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    return out


def call(compiled: CompiledKernel, request: Request, args, out, extra, pieces):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        address_of(compiled.function)
    )
    tensors = [*(args[i] for i in request.operands), *extra, out]
    slots = [*(t.data_ptr() for t in tensors), *compiled.sizes]
    buffers = (ctypes.c_void_p * len(slots))(*slots)
    cuts = [compiled.extent * i // pieces for i in range(pieces + 1)]
    for begin, end in itertools.pairwise(cuts):
        function(buffers, begin, end)
    return out


def run(op, *args, out=None, epilogue=NO_EPILOGUE, extra=(), pieces=1):
    """The generated product of `args`, into a NaN-filled result of eager's layout unless `out` is given."""
    if out is None:
        out = torch.full_like(op(*args), float("nan"))
    request = plan(op, *args, out=out, epilogue=epilogue)
    assert isinstance(request, Request), request
    return launch(request, args, out, extra, pieces)


def wide(x):
    return x.double() if isinstance(x, torch.Tensor) else x


def check(got, op, *args, then=lambda y: y):
    """At most a few times as far from the float64 result as eager is, and as rounding errors must be."""
    exact = then(op(*map(wide, args)))
    k = args[-1].shape[-2] if args[-1].dim() > 1 else args[0].shape[-1]
    eager = (then(op(*args)).double() - exact).abs().max() if exact.numel() else torch.tensor(0.0)
    scale = exact.abs().max() if exact.numel() else torch.tensor(1.0)
    bound = 4 * eager + (k + 8) ** 0.5 * torch.finfo(got.dtype).eps * scale
    error = (got.double() - exact).abs().max()
    assert error <= bound, f"error {error:.2e}, bound {bound:.2e}"


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
def test_every_form_at_random_sizes(form, dtype):
    rng = random.Random(form)
    for _ in range(12):
        m, n, k = (rng.randint(1, 70) for _ in range(3))
        a = torch.randn(m, k, dtype=dtype) if form[0] == "N" else torch.randn(k, m, dtype=dtype).t()
        b = torch.randn(k, n, dtype=dtype) if form[1] == "N" else torch.randn(n, k, dtype=dtype).t()
        check(run(aten.mm.default, a, b), aten.mm.default, a, b)


@pytest.mark.parametrize(
    "m, n, k", [(400, 65, 20), (14, 32, 700), (29, 33, 257), (800, 40, 600), (1, 1, 1), (1, 97, 300)]
)
def test_several_blocks_of_rows_and_of_k(m, n, k):
    for b in (torch.randn(k, n), torch.randn(n, k).t()):
        a = torch.randn(m, k)
        check(run(aten.mm.default, a, b), aten.mm.default, a, b)


def test_strided_operands_and_results():
    """Leading dimensions larger than the rows, steps between elements, a result inside a larger tensor."""
    a, b = torch.randn(40, 90)[3:30, 5:55], torch.randn(70, 130)[10:60, ::2]
    whole = torch.full((40, 100), 7.0)
    out = whole[2:29, 1:66]
    check(run(aten.mm.default, a, b, out=out), aten.mm.default, a, b)
    whole[2:29, 1:66] = 7.0
    assert (whole == 7).all(), "wrote outside the result"


def test_column_major_result():
    a, b, bias = torch.randn(33, 20), torch.randn(20, 47), torch.randn(47)
    out = torch.empty(47, 33).t()
    check(run(aten.addmm.default, bias, a, b, out=out), aten.addmm.default, bias, a, b)


def test_broadcast_operand():
    a, b = torch.randn(30, 1).expand(30, 50), torch.randn(50, 40)
    check(run(aten.mm.default, a, b), aten.mm.default, a, b)


def test_batches():
    a, b = torch.randn(5, 19, 33), torch.randn(5, 33, 40)
    check(run(aten.bmm.default, a, b), aten.bmm.default, a, b)
    heads = torch.randn(2, 17, 3, 64).transpose(
        1, 2
    )  # [batch, head, token, channel], as attention views them
    check(run(aten.matmul.default, heads, heads.mT), aten.matmul.default, heads, heads.mT)
    shared = torch.randn(1, 3, 64, 20)
    check(run(aten.matmul.default, heads, shared), aten.matmul.default, heads, shared)
    expanded = torch.randn(33, 40).expand(5, 33, 40)
    check(run(aten.bmm.default, a, expanded), aten.bmm.default, a, expanded)


@pytest.mark.parametrize("shape", [(47,), (1, 47), (33, 47), (33, 1), (1,)])
def test_bias_of_any_shape_that_broadcasts(shape):
    bias, a, b = torch.randn(shape), torch.randn(33, 20), torch.randn(20, 47)
    check(run(aten.addmm.default, bias, a, b), aten.addmm.default, bias, a, b)


def test_linear_with_leading_dimensions():
    x, w, bias = torch.randn(3, 11, 50), torch.randn(70, 50), torch.randn(70)
    check(run(aten.linear.default, x, w, bias), aten.linear.default, x, w, bias)
    check(run(aten.linear.default, x, w), aten.linear.default, x, w)
    check(run(aten.matmul.default, x, w.t()), aten.matmul.default, x, w.t())


def test_batched_bias():
    a, b = torch.randn(3, 9, 10), torch.randn(3, 10, 35)
    for bias in (torch.randn(3, 9, 35), torch.randn(3, 1, 35), torch.randn(35)):
        check(run(aten.baddbmm.default, bias, a, b), aten.baddbmm.default, bias, a, b)


def convolution(x, w, bias, stride=1, out=None):
    """The convolution as a call on matrices (or why it is none), and its tensors by number of the buffer."""
    tensors = [x, w, *([] if bias is None else [bias]), out]
    buffers = [BufferSpec(i, spec(t), "temp") for i, t in enumerate(tensors)]
    schedule = Schedule(buffers, (), [], ())
    settings = ([stride, stride], [0, 0], [1, 1], False, [0, 0], 1)
    arguments = (BufRef(0), BufRef(1), None if bias is None else BufRef(2), *settings)
    item = ExternItem(aten.convolution.default, arguments, {}, (len(tensors) - 1,))
    return MATRIX_CALLS[item.op](schedule, item, arguments), tensors


def run_convolution(x, w, bias, out, residual=None):
    """Its generated product, with a residual and relu behind it if there is one."""
    call, tensors = convolution(x, w, bias, out=out)
    epilogue = NO_EPILOGUE
    if residual is not None:
        places = {2: (ROW, COL), 3: (BATCH, ROW, COL)}[len(call.result.shape)]
        index = sum(place * step for place, step in zip(places, call.result.stride))
        total = Value("add", (product_value(F32), Value("load", (0, index, None), F32)), F32)
        epilogue = Epilogue((Buffer("r", F32, "in"),), relu(total))
    request = call.plan(call.result, "convolution", epilogue)
    assert isinstance(request, Request), request
    operands = [None if i is None else tensors[i] for i in call.buffers]
    return launch(request, operands, out, () if residual is None else (residual,))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images, size", [(1, 9), (3, 7), (2, 1)])
def test_pointwise_convolution(layout, images, size):
    """With bias, residual and relu behind it; one product per image, or one in all when channels come last."""
    x = torch.randn(images, 20, size, size + 1).to(memory_format=layout)
    w, bias, residual = torch.randn(37, 20, 1, 1), torch.randn(37), torch.randn(images, 37, size, size + 1)
    residual = residual.to(memory_format=layout)
    out = torch.full_like(residual, float("nan"))
    got = run_convolution(x, w, bias, out, residual)
    torch.testing.assert_close(got, torch.relu(torch.conv2d(x, w, bias) + residual))
    torch.testing.assert_close(run_convolution(x, w, None, out.fill_(float("nan"))), torch.conv2d(x, w))


def test_other_convolutions_are_refused():
    x, w = torch.randn(1, 4, 8, 8), torch.randn(6, 4, 1, 1)
    refused, _ = convolution(x, w, None, stride=2, out=torch.empty(1, 6, 4, 4))
    assert refused == "not a 1x1 convolution"


def relu(v):
    return Value("maximum", (v, Value("const", (0.0,), F32)), F32)


def silu(v):
    return Value("mul", (v, Value("sigmoid", (v,), F32)), F32)


def gelu(v):
    const = lambda x: Value("const", (x,), F32)
    erf = Value("erf", (Value("mul", (v, const(0.5**0.5)), F32),), F32)
    half = Value("mul", (v, const(0.5)), F32)
    return Value("mul", (half, Value("add", (erf, const(1.0)), F32)), F32)


POINTWISE = [
    (relu, torch.relu),
    (silu, torch.nn.functional.silu),
    (gelu, torch.nn.functional.gelu),
]


@pytest.mark.parametrize("write, eager", POINTWISE)
@pytest.mark.parametrize("n", [32, 40, 75])
def test_activation_epilogues(write, eager, n):
    bias, a, b = torch.randn(n), torch.randn(29, 20), torch.randn(20, n)
    got = run(aten.addmm.default, bias, a, b, epilogue=Epilogue((), write(product_value(F32))))
    check(got, aten.addmm.default, bias, a, b, then=eager)


def test_residual_epilogue_in_both_layouts_of_the_result():
    a, b, bias, other = torch.randn(33, 20), torch.randn(20, 47), torch.randn(47), torch.randn(33, 47)
    for residual, out in (
        (other, torch.empty(33, 47)),
        (other.t().contiguous().t(), torch.empty(47, 33).t()),
    ):
        row, col = residual.stride()
        load = Value("load", (0, ROW * row + COL * col, None), F32)
        epilogue = Epilogue((Buffer("r", F32, "in"),), Value("add", (product_value(F32), load), F32))
        got = run(aten.addmm.default, bias, a, b, out=out, epilogue=epilogue, extra=(residual,))
        check(got, aten.addmm.default, bias, a, b, then=lambda y: y + other.to(y.dtype))


def test_epilogue_of_a_batch_with_a_mask():
    a, b, keep = torch.randn(4, 9, 20), torch.randn(4, 20, 37), torch.rand(4, 37) > 0.5
    load = Value("load", (0, BATCH * 37 + COL, None), torch.bool)
    value = Value("where", (load, product_value(F32), Value("const", (-1.0,), F32)), F32)
    got = run(
        aten.bmm.default, a, b, epilogue=Epilogue((Buffer("keep", torch.bool, "in"),), value), extra=(keep,)
    )
    check(got, aten.bmm.default, a, b, then=lambda y: torch.where(keep[:, None], y, -1.0))


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_any_split_of_the_extent_gives_the_same_bits(pieces):
    bias, a, b = torch.randn(200), torch.randn(300, 270), torch.randn(200, 270).t()
    whole = run(aten.addmm.default, bias, a, b)
    assert torch.equal(run(aten.addmm.default, bias, a, b, pieces=pieces), whole)


def test_nan_and_infinity_stay_where_they_belong():
    a, b = torch.randn(20, 33), torch.randn(33, 45)
    a[3, 5], a[7, 1], b[2, 44] = float("nan"), float("inf"), float("-inf")
    for right in (b, b.t().contiguous().t()):
        got, want = run(aten.mm.default, a, right), a @ b
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
        finite = want.isfinite()
        torch.testing.assert_close(got[finite], want[finite])


def test_an_empty_sum_is_the_bias():
    bias, a, b = torch.randn(40), torch.empty(7, 0), torch.empty(0, 40)
    assert torch.equal(run(aten.addmm.default, bias, a, b), bias.expand(7, 40))
    assert torch.equal(run(aten.mm.default, a, b), torch.zeros(7, 40))


def test_several_products_in_one_module():
    a, b = torch.randn(9, 20), torch.randn(20, 37)
    out = torch.empty(9, 37)
    requests = [plan_product(aten.mm.default, [spec(a), spec(b)], spec(out), name) for name in ("one", "two")]
    compiled = compile_products([r.product for r in requests])
    assert [c.name for c in compiled] == ["one", "two"] and len(
        {address_of(c.function) for c in compiled}
    ) == 2


def test_refusals_say_why():
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    out = torch.empty(3, 5)
    assert "not a matrix product" in plan(aten.add.Tensor, a, a, out=a)
    assert "beta or alpha" in plan(aten.addmm.default, bias, a, b, 2.0, out=out)
    assert "dtypes" in plan(aten.mm.default, a.half(), b.half(), out=out.half())
    assert "empty" in plan(aten.mm.default, a[:0], b, out=out[:0])
    assert "contiguous" in plan(aten.mm.default, a, b, out=torch.empty(3, 10)[:, ::2])
    x, w = torch.randn(3, 11, 50).transpose(0, 1)[:, :, :], torch.randn(70, 50)
    assert "join" in plan(aten.linear.default, x, w, out=torch.empty(11, 3, 70))
    assert isinstance(plan(aten.matmul.default, a, b[:, 0], out=torch.empty(3)), str)


def test_the_cost_rule_on_a_measured_and_on_an_unknown_host():
    zen4 = cpu.target(DEFAULT, "znver4").costs.products
    assert prefers_product(zen4, 128, 768, 768, 1, F32, threads=2)
    assert not prefers_product(zen4, 1, 768, 768, 1, F32, threads=2)
    assert not prefers_product(zen4, 128, 2, 768, 1, F32, threads=2)
    assert not prefers_product(zen4, 128, 768, 768, 1, torch.bfloat16, threads=2)
    assert cpu.target(DEFAULT, "mystery").costs.products is None


@pytest.mark.parametrize("width, rows, vectors", [(64, 14, 2), (32, 6, 2), (16, 5, 2), (16, 8, 3)])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_register_blocks_of_other_hosts(width, rows, vectors, dtype, monkeypatch):
    """The blocks of AVX-512, AVX2, SSE and NEON hosts, as this host runs them."""
    narrow = dataclasses.replace(
        gemm_tiling.tile_for(dtype), lanes=width // dtype.itemsize, rows=rows, vectors=vectors
    )
    for module in (gemm_tiling, compiler, symbolic_gemm):
        monkeypatch.setattr(module, "tile_for", lambda dtype: narrow)
    monkeypatch.setattr(gemm_library, "_LIBRARIES", {})
    monkeypatch.setitem(globals(), "SIZED", SizedProducts())
    rng = random.Random(width * rows)
    for transposed in (False, True) * 3:
        m, n, k = (rng.randint(1, 70) for _ in range(3))
        a, bias = torch.randn(m, k, dtype=dtype), torch.randn(n, dtype=dtype)
        b = torch.randn(n, k, dtype=dtype).t() if transposed else torch.randn(k, n, dtype=dtype)
        check(run(aten.addmm.default, bias, a, b), aten.addmm.default, bias, a, b)
