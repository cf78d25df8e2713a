"""Small loop kernels written by hand, shared by the tests of all code generators."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import pytest
import torch

from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.host_cpu import Host, host
from smelt.codegen.llvm.link import address_of
from smelt.codegen.llvm.object_files import assemble
from smelt.config import Config
from smelt.graph.ir import TensorSpec
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
    Value,
)
from smelt.loops.row_sums import fuse_siblings
from smelt.ops.philox_order import Draws, Step
from smelt.plan.machine_code import Function
from smelt.shapes.expr import Size, Sym
from tests.harness.hosts import NARROW, WIDE

CHECKED = Config(verify_stages=True)
f32 = torch.float32


# ---- building


def loop(name: str, size: int) -> tuple[Sym, Loop]:
    sym = Sym(name, 0, max(size - 1, 0))
    return sym, Loop(sym, size)


def load(buffer: int, index: Size, dtype: torch.dtype = f32, mask: Value | None = None) -> Value:
    return Value("load", (buffer, index, mask), dtype)


def const(number: float, dtype: torch.dtype = f32) -> Value:
    return Value("const", (number,), dtype)


def result(name: str, dtype: torch.dtype = f32) -> Value:
    return Value("result", (name,), dtype)


def op(name: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
    return Value(name, args, dtype or args[-1].dtype)


def buffers(*specs: tuple[torch.dtype, str]) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"{role}{i}", dtype, role) for i, (dtype, role) in enumerate(specs))


def flat(n: int, ins: Sequence[torch.dtype], out: torch.dtype, body: Callable[..., Value]) -> Kernel:
    """out[i] = body(in0[i], in1[i], ...)"""
    i, li = loop("i", n)
    value = body(*(load(k, i, dtype) for k, dtype in enumerate(ins)))
    specs = [(dtype, "in") for dtype in ins] + [(out, "out")]
    return Kernel("flat", buffers(*specs), (li,), (MapStage((), (Store(len(ins), i, value),)),))


def bias_gelu(rows: int, columns: int) -> Kernel:
    (r, lr), (c, lc) = loop("r", rows), loop("c", columns)
    x = load(0, r * columns + c) + load(1, c)
    y = x * 0.5 * (op("erf", x * math.sqrt(0.5)) + 1.0)
    stage = MapStage((), (Store(2, r * columns + c, y),))
    return Kernel("bias_gelu", buffers((f32, "in"), (f32, "in"), (f32, "out")), (lr, lc), (stage,))


def softmax(rows: int, columns: int) -> Kernel:
    r, lr = loop("r", rows)
    (a, la), (b, lb), (c, lc) = (loop(f"c{k}", columns) for k in range(3))
    shifted = [op("exp", load(0, r * columns + j) - result("top")) for j in (b, c)]
    stages = (
        ReduceStage((la,), (Reduction("top", "max", load(0, r * columns + a)),)),
        ReduceStage((lb,), (Reduction("total", "sum", shifted[0]),)),
        MapStage((lc,), (Store(1, r * columns + c, shifted[1] / result("total")),)),
    )
    return Kernel("softmax", buffers((f32, "in"), (f32, "out")), (lr,), stages)


def softmax_columns(rows: int, columns: int) -> Kernel:
    """Over the first dimension of a row-major matrix: lanes are columns."""
    c, lc = loop("c", columns)
    (i, li), (j, lj), (k, lk) = (loop(f"r{n}", rows) for n in range(3))
    shifted = [op("exp", load(0, r * columns + c) - result("top")) for r in (j, k)]
    stages = (
        ReduceStage((li,), (Reduction("top", "max", load(0, i * columns + c)),)),
        ReduceStage((lj,), (Reduction("total", "sum", shifted[0]),)),
        MapStage((lk,), (Store(1, k * columns + c, shifted[1] / result("total")),)),
    )
    return Kernel("softmax_columns", buffers((f32, "in"), (f32, "out")), (lc,), stages)


def layer_norm(rows: int, columns: int, dtype: torch.dtype = f32) -> Kernel:
    """Inputs, weights and output of `dtype`, arithmetic in float32."""
    r, lr = loop("r", rows)
    (a, la), (b, lb), (c, lc) = (loop(f"c{k}", columns) for k in range(3))

    def f(x: Value) -> Value:
        return x if dtype is f32 else op("cast", x, dtype=f32)

    x = [f(load(0, r * columns + j, dtype)) for j in (a, b, c)]
    mean, variance = result("sum") * (1 / columns), result("squares") * (1 / columns)
    centred = x[1] - mean
    y = (x[2] - mean) * op("rsqrt", variance + 1e-5) * f(load(1, c, dtype)) + f(load(2, c, dtype))
    stages = (
        ReduceStage((la,), (Reduction("sum", "sum", x[0]),)),
        ReduceStage((lb,), (Reduction("squares", "sum", centred * centred),)),
        MapStage((lc,), (Store(3, r * columns + c, y if dtype is f32 else op("cast", y, dtype=dtype)),)),
    )
    return Kernel("layer_norm", buffers(*[(dtype, "in")] * 3, (dtype, "out")), (lr,), stages)


def reduction(kind: str, rows: int, columns: int, dtype: torch.dtype, over: str = "columns") -> Kernel:
    """Of a row-major matrix, over its columns (contiguous), rows, or all of it."""
    (r, lr), (c, lc) = loop("r", rows), loop("c", columns)
    out = torch.int64 if kind.startswith("arg") else torch.bool if kind in ("any", "all") else dtype
    inner = {"columns": (lc,), "rows": (lr,), "all": (lr, lc)}[over]
    outer = tuple(l for l in (lr, lc) if l not in inner)
    stages = (
        ReduceStage(inner, (Reduction("x", kind, load(0, r * columns + c, dtype)),)),
        MapStage((), (Store(1, outer[0].sym if outer else 0, result("x", out)),)),
    )
    return Kernel(f"{kind}_{over}", buffers((dtype, "in"), (out, "out")), outer, stages)


def doubled_and_summed(rows: int, width: int, over: str) -> Kernel:
    """2x, and its sums over rows or columns, in one pass."""
    (r, lr), (c, lc) = loop("r", rows), loop("c", width)
    inner, outer = (lr, lc) if over == "rows" else (lc, lr)
    double = load(0, r * width + c) * 2.0
    stages = (
        ReduceStage((inner,), (Reduction("s", "sum", double),), (Store(1, r * width + c, double),)),
        MapStage((), (Store(2, outer.sym, result("s")),)),
    )
    return Kernel("doubled", buffers((f32, "in"), (f32, "out"), (f32, "out")), (outer,), stages)


def scaled_and_summed(rows: int, width: int, size: int, dtype: torch.dtype = f32) -> Kernel:
    """y = x * w / (the largest of x's row); beside it sums of x, of y and the largest of y, over chunks of `size` rows."""
    (r, lr), (i, li), column = loop("r", rows), loop("i", width), loop("column", width)
    x, top = load(0, r * width + i, dtype), result("top", dtype)
    scaled = op("div", op("mul", x, load(1, i, dtype)), top)
    stages = (
        ReduceStage((li,), (Reduction("top", "max", x),)),
        MapStage((li,), (Store(2, r * width + i, scaled),)),
    )
    kernel = Kernel("scaled", buffers((dtype, "in"), (dtype, "in"), (dtype, "out")), (lr,), stages)
    (c, lc), (k, lk) = loop("c", -(-rows // size)), loop("k", size)
    row, to = c * size + k, c * width + column[0]
    inside = Value("lt", (Value("index", (row,), torch.int64), const(rows, torch.int64)), torch.bool)
    for place, kind, neutral in ((0, "sum", 0.0), (2, "sum", 0.0), (2, "max", -math.inf)):
        read = load(0, row * width + column[0], dtype, inside)
        value = Value("where", (inside, read, const(neutral, dtype)), dtype)
        reduce = ReduceStage((lk,), (Reduction("s", kind, value),))  # type: ignore[arg-type]
        sums = Kernel(
            "sums",
            buffers((dtype, "in"), (dtype, "out")),
            (lc, column[1]),
            (reduce, MapStage((), (Store(1, to, result("s", dtype)),))),
        )
        both = fuse_siblings(kernel, sums, (place, len(kernel.buffers)))
        assert isinstance(both, Kernel), both
        kernel = both
    return kernel


def scan(kind: str, rows: int, columns: int, along: str) -> Kernel:
    (r, lr), (c, lc) = loop("r", rows), loop("c", columns)
    inner, outer = (lc, lr) if along == "columns" else (lr, lc)
    index = r * columns + c
    stage = ScanStage(inner, kind, Store(1, index, load(0, index)))
    return Kernel("scan", buffers((f32, "in"), (f32, "out")), (outer,), (stage,))


def transpose(rows: int, columns: int) -> Kernel:
    (c, lc), (r, lr) = loop("c", columns), loop("r", rows)
    stage = MapStage((), (Store(1, c * rows + r, load(0, r * columns + c)),))
    return Kernel("transpose", buffers((f32, "in"), (f32, "out")), (lc, lr), (stage,))


def rows_written(rows: int, columns: int, table: int, dtype: torch.dtype = f32) -> Kernel:
    """table[places[r]] = 2 * x[r], of rows of as many columns; places are int64."""
    (r, lr), (c, lc) = loop("r", rows), loop("c", columns)
    further = Lookup(load(1, r, torch.int64), columns, table)
    x = load(0, r * columns + c, dtype)
    stage = MapStage((), (Store(2, c, x + x, (further,)),))
    return Kernel("rows", buffers((dtype, "in"), (torch.int64, "in"), (dtype, "inout")), (lr, lc), (stage,))


def pad(rows: int, columns: int, border: int) -> Kernel:
    """Zeros around a matrix: loads under a mask."""
    height, width = rows + 2 * border, columns + 2 * border
    (r, lr), (c, lc) = loop("r", height), loop("c", width)
    inside = [
        op("ge", Value("index", (s,), torch.int64), const(border, torch.int64), dtype=torch.bool)
        for s in (r, c)
    ] + [
        op("lt", Value("index", (s,), torch.int64), const(border + n, torch.int64), dtype=torch.bool)
        for s, n in ((r, rows), (c, columns))
    ]
    mask = inside[0]
    for condition in inside[1:]:
        mask = op("logical_and", mask, condition)
    x = load(0, (r - border) * columns + (c - border), mask=mask)
    stage = MapStage((), (Store(1, r * width + c, x),))
    return Kernel("pad", buffers((f32, "in"), (f32, "out")), (lr, lc), (stage,))


def kept(rows: int, columns: int, shift: int = 0) -> Kernel:
    """A softmax that keeps the exponentials of a row; `shift` loads others than were stored."""
    r, lr = loop("r", rows)
    (a, la), (b, lb), (c, lc) = (loop(f"c{k}", columns) for k in range(3))
    place: Size = (c + shift) % columns if shift else c
    stages = (
        MapStage((la,), (Store(2, a, op("exp", load(0, r * columns + a))),)),
        ReduceStage((lb,), (Reduction("s", "sum", load(2, b)),)),
        MapStage((lc,), (Store(1, r * columns + c, load(2, place) / result("s")),)),
    )
    local = Buffer("kept", f32, "local", columns)
    return Kernel("kept", (*buffers((f32, "in"), (f32, "out")), local), (lr,), stages)


def dropped(rows: int, columns: int, dtype: torch.dtype = f32, sums: bool = False) -> Kernel:
    """A matrix times what is drawn for its elements as ATen's dropout of `dtype` does, of a generator given by two numbers;
    with `sums`, of each row in one pass beside their sums."""
    (r, lr), (c, lc) = loop("r", rows), loop("c", columns)
    spec = TensorSpec((rows, columns), (columns, 1), dtype, torch.device("cuda", 0))
    step = Step.of(Draws.near(spec, 2), load(0, 0, torch.int64), load(1, 0, torch.int64), (r, c))
    store = Store(3, r * columns + c, load(2, r * columns + c) * step.uniform())
    specs = buffers((torch.int64, "in"), (torch.int64, "in"), (f32, "in"), (f32, "out"))
    if not sums:
        return Kernel("dropped", specs, (lr, lc), (MapStage((), (store,)),))
    stages = (
        ReduceStage((lc,), (Reduction("s", "sum", store.value),), (store,)),
        MapStage((), (Store(4, r, result("s")),)),
    )
    return Kernel("dropped", (*specs, Buffer("out4", f32, "out")), (lr,), stages)


def scaled(n: int, dtype: torch.dtype = torch.float64) -> Kernel:
    """x times a number of its own."""
    i, li = loop("i", n)
    value = load(0, i) * op("cast", load(1, 0, dtype), dtype=f32)
    specs = buffers((f32, "in"), (dtype, "in"), (f32, "out"))
    return Kernel("scaled", specs, (li,), (MapStage((), (Store(2, i, value),)),))


# ---- expecting

REDUCE: dict[str, Callable] = dict(
    sum=lambda x, d: x.sum(d), prod=lambda x, d: x.prod(d), max=lambda x, d: x.amax(d), min=lambda x, d: x.amin(d),
    argmax=lambda x, d: x.argmax(d), argmin=lambda x, d: x.argmin(d), any=lambda x, d: x.bool().any(d),
    all=lambda x, d: x.bool().all(d),
)  # fmt: skip


# ---- written in LLVM IR, for plans

IR = """
declare i64 @syscall(i64, ...)

; buffers[1][i] = buffers[0][i] + 1
define void @increment(ptr %buffers, i64 %begin, i64 %end) nounwind {
  %in = load ptr, ptr %buffers
  %q = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %q
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %a = getelementptr float, ptr %in, i64 %i
  %v = load float, ptr %a
  %w = fadd float %v, 1.0
  %b = getelementptr float, ptr %out, i64 %i
  store float %w, ptr %b
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; buffers[1][i] = buffers[0][i % rows * columns + i / rows], the transpose of a matrix; rows are in slot 2, columns in slot 3
define void @transposed(ptr %buffers, i64 %begin, i64 %end) nounwind {
  %in = load ptr, ptr %buffers
  %q1 = getelementptr ptr, ptr %buffers, i64 1
  %q2 = getelementptr ptr, ptr %buffers, i64 2
  %q3 = getelementptr ptr, ptr %buffers, i64 3
  %out = load ptr, ptr %q1
  %rows = load i64, ptr %q2
  %columns = load i64, ptr %q3
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %r = urem i64 %i, %rows
  %c = udiv i64 %i, %rows
  %row = mul i64 %r, %columns
  %at = add i64 %row, %c
  %a = getelementptr float, ptr %in, i64 %at
  %v = load float, ptr %a
  %b = getelementptr float, ptr %out, i64 %i
  store float %v, ptr %b
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; buffers[0][i] = the thread's id (Linux)
define void @thread(ptr %buffers, i64 %begin, i64 %end) nounwind {
  %out = load ptr, ptr %buffers
  %id = call i64 (i64, ...) @syscall(i64 186)
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %b = getelementptr i64, ptr %out, i64 %i
  store i64 %id, ptr %b
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def hand_written() -> dict[str, Function]:
    """`increment`, `transposed` and `thread`."""
    library = assemble(IR, ("increment", "transposed", "thread"), host())
    return {name: Function(library, name) for name in library.exports}


# ---- running

TARGETS = [pytest.param(NARROW, id="256 bits"), pytest.param(WIDE, id="512 bits")]


def run(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    pieces: Sequence[int] | None = None,
    target: Host | None = None,
) -> None:
    """Runs the kernel's machine code in place on `tensors`; `pieces`: where to cut [0, extent)."""
    (compiled,) = compile_kernels([kernel], CHECKED, target)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        address_of(compiled.function)
    )
    pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    cuts = [0, *(p for p in sorted(pieces or ()) if 0 < p < compiled.extent), compiled.extent]
    for begin, end in zip(cuts, cuts[1:]):
        function(ctypes.addressof(pointers), begin, end)
