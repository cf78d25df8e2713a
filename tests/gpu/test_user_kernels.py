"""Kernels of Triton that programs launch, on a GPU. Where there is none: tests/capture/test_triton_kernel_calls.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
    pytest.skip("needs a GPU, and kernels that are compiled", allow_module_level=True)

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import smelt
from smelt import events
from smelt.report.inspect import entries, reasons
from tests.harness.user_kernels import (
    PROGRAMS,
    TRAINED,
    a_constant_is_written,
    a_view_is_taken_before,
    add,
    make,
    scale,
    subtract,
)


def on_gpu() -> tuple[torch.Tensor, ...]:
    return tuple(t.cuda() for t in make())


def copies(seen: list[events.Event]) -> set[str]:
    called = {n for e in seen if e.kind == "plan" for n in e.data["externs"]}
    return called & {"aten.clone.default", "aten.copy_.default", "smelt.run_kernel_functional.default"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        for _ in range(3):
            given = on_gpu()
            mine = [t.clone() for t in given]
            want = program(*given)
            torch.testing.assert_close(compiled(*mine), want)
            torch.testing.assert_close(mine, list(given))
    assert len(entries(compiled)) == 1 and not reasons(compiled)
    assert bool(copies(seen)) == (program in (a_view_is_taken_before, a_constant_is_written))


@pytest.mark.parametrize("program", TRAINED, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        x, y = on_gpu()
        found = []
        for fn in (program, compiled):
            a, b = (t.clone().requires_grad_() for t in (x, y))
            fn(a, b).backward()
            found.append((a.grad, b.grad))
        torch.testing.assert_close(found[1], found[0])


@triton.jit
def softmax_rows(out, x, stride, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * stride + i, mask=i < columns, other=-float("inf"))
    row = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + tl.program_id(0) * stride + i, row / tl.sum(row, axis=0), mask=i < columns)


@triton.jit
def multiply(a, b, c, m, n, k, BLOCK: tl.constexpr, STEP: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s = tl.arange(0, STEP)
    p, q = a + i[:, None] * k + s[None, :], b + s[:, None] * n + j[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, STEP):
        left = tl.load(p, mask=(i[:, None] < m) & (s[None, :] < k - start), other=0.0)
        right = tl.load(q, mask=(s[:, None] < k - start) & (j[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        p += STEP
        q += STEP * n
    tl.store(c + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


tuned_multiply = triton.autotune(
    [
        triton.Config({"BLOCK": b, "STEP": s}, num_warps=w)
        for b, s, w in ((16, 16, 2), (32, 32, 4), (64, 32, 4))
    ],
    key=["m", "n", "k"],
)(multiply)


def test_softmax() -> None:
    def program(x):
        x = x * 2
        out = torch.empty_like(x)
        softmax_rows[(x.shape[0],)](out, x, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out + 1

    compiled = smelt.compile(program, fullgraph=True)
    for columns in (100, 1000, 100):
        x = torch.randn(64, columns, device="cuda")
        torch.testing.assert_close(compiled(x), program(x))
        torch.testing.assert_close(compiled(x), (x * 2).softmax(-1) + 1)


def test_a_tuned_product() -> None:
    """Tuned at the first run, on the plan's own tensors; inputs that require gradients are read, not written."""

    def program(a, b):
        m, k, n = *a.shape, b.shape[1]
        out = torch.empty(m, n, device=a.device)
        grid = lambda meta: (triton.cdiv(m, meta["BLOCK"]), triton.cdiv(n, meta["BLOCK"]))  # noqa: E731
        tuned_multiply[grid](a, b, out, m, n, k)
        return out.relu()

    a = torch.randn(100, 70, device="cuda", requires_grad=True)
    b = torch.randn(70, 130, device="cuda", requires_grad=True)
    compiled = smelt.compile(program, fullgraph=True)
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        result = compiled(a, b)
    torch.testing.assert_close(result, (a @ b).relu().detach(), rtol=1e-4, atol=1e-4)
    assert not result.requires_grad and not copies(seen) and not reasons(compiled)


def test_numbers_that_change() -> None:
    def program(x, factor, n):
        y = x + 1
        scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n, factor, BLOCK=32)
        return y

    compiled = smelt.compile(program, fullgraph=True)
    x = torch.randn(100, device="cuda")
    for factor, n in ((2.0, 100), (3.0, 100), (0.1, 60), (1.5, 1), (7.25, 33)):
        torch.testing.assert_close(compiled(x, factor, n), program(x, factor, n), rtol=0, atol=0)
    assert len(entries(compiled)) <= 3 and not reasons(compiled)


def test_a_side_stream() -> None:
    def program(x, y):
        out = torch.empty_like(x)
        add[(4,)](x * 2, y, out, x.numel(), BLOCK=32)
        return out.sin()

    compiled = smelt.compile(program, fullgraph=True)
    x, y = on_gpu()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = compiled(x, y)
    stream.synchronize()
    torch.testing.assert_close(got, program(x, y))


def test_hooks_of_launches_run() -> None:
    def program(x, y):
        out = torch.empty_like(x)
        subtract[(4,)](x, y, out, x.numel(), BLOCK=32)
        return out * 2

    launched = []
    compiled = smelt.compile(program, fullgraph=True)
    x, y = on_gpu()
    want = program(x, y)
    subtract.pre_run_hooks.append(lambda *args, **options: launched.append(options["BLOCK"]))
    try:
        torch.testing.assert_close(compiled(x, y), want)
    finally:
        subtract.pre_run_hooks.clear()
    assert launched == [32]
    torch.testing.assert_close(compiled(x, y), want)
    assert launched == [32]


def test_custom_operators_around_kernels() -> None:
    @torch.library.triton_op("smelt_tests::added", mutates_args={})
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        wrapped = torch.library.wrap_triton(add)
        wrapped[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=32)
        return out

    @torch.library.custom_op("smelt_tests::scaled_", mutates_args=("x",))
    def scaled_(x: torch.Tensor) -> None:
        scale[(4,)](x, x.numel(), 3.0, BLOCK=32)

    def program(x, y):
        out = torch.empty_like(x)
        torch.library.wrap_triton(add)[(4,)](x, y, out, x.numel(), BLOCK=32)
        z = added(x * 2, out) + 1
        scaled_(z)
        return z * y

    compiled = smelt.compile(program, fullgraph=True)
    x, y = on_gpu()
    torch.testing.assert_close(compiled(x, y), ((x * 2 + x + y) + 1) * 3 * y)


def test_reduce_overhead_runs_without_cuda_graphs() -> None:
    def program(x, y):
        out = torch.empty_like(x)
        add[(4,)](x * 2, y, out, x.numel(), BLOCK=32)
        return out.sin()

    compiled = smelt.compile(program, fullgraph=True, options={"cuda_graphs": True})
    for _ in range(5):
        x, y = on_gpu()
        torch.testing.assert_close(compiled(x, y), program(x, y))


@triton.jit
def double_blocks(source, target, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK
    target.store([i], source.load([i]) * 2)


def test_descriptors_break_the_graph() -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no descriptors of tensors before Hopper")

    def program(x):
        out = torch.zeros_like(x)
        source, target = (TensorDescriptor.from_tensor(t, [32]) for t in (x, out))
        double_blocks[(4,)](source, target, BLOCK=32)
        return out + 1

    compiled = smelt.compile(program)
    x = torch.randn(128, device="cuda")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert reasons(compiled)
