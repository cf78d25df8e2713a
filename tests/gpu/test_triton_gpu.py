"""Printed Triton kernels on a GPU, against eager on CUDA tensors. Run with `-s` to see bandwidths."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton's interpreter is on", allow_module_level=True)

from smelt.loops.kernel_ir import Kernel
from tests.harness.kernels import (
    bias_gelu,
    flat,
    kept,
    layer_norm,
    op,
    pad,
    reduction,
    scaled,
    scan,
    softmax,
    softmax_columns,
    transpose,
)
from tests.harness.triton_launcher import load_kernel

f32, bf16 = torch.float32, torch.bfloat16
gelu = torch.nn.functional.gelu


def run(kernel: Kernel, *tensors: torch.Tensor) -> None:
    load_kernel(kernel)(*tensors)


def rand(*shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


OPS = (
    "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "atanh", "erf", "erfc", "sigmoid", "floor", "ceil",
    "trunc", "round", "sign",
)  # fmt: skip


@pytest.mark.parametrize("dtype", (f32, bf16))
@pytest.mark.parametrize("name", OPS)
def test_unary(name: str, dtype: torch.dtype) -> None:
    x = rand(5000, dtype=dtype)
    y = torch.empty_like(x)
    run(flat(5000, [dtype], dtype, lambda v: op(name, v)), x, y)
    torch.testing.assert_close(
        y, getattr(torch, name)(x), equal_nan=True, rtol=2e-5 if dtype is f32 else 1.6e-2, atol=1e-5
    )


@pytest.mark.parametrize("name", ("pow", "atan2", "copysign", "remainder", "maximum", "div"))
def test_binary(name: str) -> None:
    a, b = rand(5000), rand(5000)
    y = torch.empty_like(a)
    run(flat(5000, [f32, f32], f32, lambda u, v: op(name, u, v)), a, b, y)
    torch.testing.assert_close(y, getattr(torch, name)(a, b), equal_nan=True, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (300, 33), (64, 128), (5, 20_000)])
def test_softmax(shape: tuple[int, int]) -> None:
    x, y = rand(*shape), torch.empty(shape, device="cuda")
    run(softmax(*shape), x, y)
    torch.testing.assert_close(y, x.softmax(1))
    run(softmax_columns(*shape), x, y)
    torch.testing.assert_close(y, x.softmax(0))


@pytest.mark.parametrize("dtype", (f32, bf16))
def test_layer_norm(dtype: torch.dtype) -> None:
    x, w, b = rand(100, 768, dtype=dtype), rand(768, dtype=dtype), rand(768, dtype=dtype)
    y = torch.empty_like(x)
    run(layer_norm(100, 768, dtype), x, w, b, y)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (768,), w, b))


REDUCE = dict(sum=torch.sum, max=torch.amax, min=torch.amin, argmax=torch.argmax, argmin=torch.argmin)


@pytest.mark.parametrize("over", ("columns", "rows"))
@pytest.mark.parametrize("kind", REDUCE)
def test_reductions(kind: str, over: str) -> None:
    x = rand(200, 12_000)
    x[5, 100] = float("nan")
    want = REDUCE[kind](x, dim=1 if over == "columns" else 0)
    y = torch.empty_like(want)
    run(reduction(kind, 200, 12_000, f32, over), x, y)
    torch.testing.assert_close(y, want, equal_nan=True, rtol=1e-4, atol=1e-3)


def test_scan_transpose_pad() -> None:
    x = rand(90, 300)
    y = torch.empty_like(x)
    run(scan("sum", 90, 300, "columns"), x, y)
    torch.testing.assert_close(y, x.cumsum(1), rtol=1e-4, atol=1e-4)
    y = torch.empty(300, 90, device="cuda")
    run(transpose(90, 300), x, y)
    assert torch.equal(y, x.t())
    y = torch.empty(94, 304, device="cuda")
    run(pad(90, 300, 2), x, y)
    assert torch.equal(y, torch.nn.functional.pad(x, [2] * 4))


def test_what_is_kept_and_what_is_passed_by_value() -> None:
    x = rand(64, 1000)
    y = torch.empty_like(x)
    run(kept(64, 1000), x, y)
    torch.testing.assert_close(y, x.softmax(1))
    for dtype in (torch.float64, f32, bf16, torch.int64, torch.bool):
        number, x, y = torch.tensor(1.5).to(dtype), rand(5000), torch.empty(5000, device="cuda")
        load_kernel(scaled(5000, dtype), frozenset((1,)))(x, number, y)
        assert torch.equal(y, x * number.float().item())


def _milliseconds(call: object) -> float:
    for _ in range(5):
        call()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(50):
        call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 50


def test_bandwidth() -> None:
    """Prints; asserts only the numbers' correctness."""
    rows, columns = 32_768, 4096
    x, b = rand(rows, columns), rand(columns)
    y = torch.empty_like(x)
    gigabytes = 2 * x.numel() * x.element_size() / 1e9
    for name, kernel, tensors, eager in (
        ("gelu(x + bias)", bias_gelu(rows, columns), (x, b, y), lambda: gelu(x + b)),
        ("softmax", softmax(rows, columns), (x, y), lambda: x.softmax(1)),
    ):
        launch = load_kernel(kernel)
        launch(*tensors)
        torch.testing.assert_close(y, eager(), rtol=1e-5, atol=1e-6)
        ours, theirs, copy = (
            gigabytes / _milliseconds(f) * 1e3 for f in (lambda: launch(*tensors), eager, lambda: y.copy_(x))
        )
        print(f"\n{name} {rows}x{columns}: smelt {ours:.0f} GB/s, eager {theirs:.0f}, copy {copy:.0f}")
