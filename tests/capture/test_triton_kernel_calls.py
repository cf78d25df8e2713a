"""The user's Triton kernels are nodes of the graph. Triton's interpreter runs them on CPU tensors; on a GPU:
`tests/gpu/test_user_kernels.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "Triton compiles for the GPU here (tests/gpu); needs TRITON_INTERPRET=1", allow_module_level=True
    )

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import smelt
from smelt import events
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check
from tests.harness.user_kernels import (
    PROGRAMS,
    TRAINED,
    a_constant_is_written,
    a_view_is_taken_before,
    add,
    added,
    make,
    scale,
    subtract,
    tuned_scale,
)

BACKENDS = ("smelt", "aot_eager", "eager")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VERIFY_STAGES", "1")
    check(program, make, backend=backend)


# ---- numbers that change, and what is guarded


def scaled_by(x, factor, n):
    y = x + 1
    scale[(triton.cdiv(n, 32),)](y, n, factor, BLOCK=32)
    return y


def scaled_lazily(x, factor, n):
    y = x + 1
    scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n, factor, BLOCK=32)
    return y


def scaled_by_a_tuner(x, factor, n):
    y = x + 1
    tuned_scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n, factor)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", (scaled_by, scaled_lazily, scaled_by_a_tuner), ids=lambda p: p.__name__)
def test_symbolic_numbers(program: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(100)
    for factor, n in ((2.0, 100), (3.0, 100), (0.1, 60), (1.5, 1), (7.25, 33)):
        torch.testing.assert_close(compiled(x, factor, n), program(x, factor, n), rtol=0, atol=0)
    assert len(entries(compiled)) <= 3 and not reasons(compiled)


class Scaler(torch.nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        out = torch.empty_like(x)
        self.kernel[(4,)](x, x, out, x.numel(), BLOCK=32)
        self.calls += 1
        return out


def test_another_kernel_recompiles() -> None:
    module = Scaler(add)
    compiled = smelt.compile(module, fullgraph=True)
    x = torch.randn(100)
    torch.testing.assert_close(compiled(x), x + x)
    module.kernel = subtract
    torch.testing.assert_close(compiled(x), -x)
    assert module.calls == 4


def test_hooks_may_mutate_the_kernels_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = triton.runtime.interpreter.InterpretedFunction(add.fn)

    def program(x, y):
        z = x * 2
        out = torch.empty_like(x)
        kernel[(4,)](z, y, out, x.numel(), BLOCK=32)
        return z, out

    compiled = smelt.compile(program, fullgraph=True)
    x, y = make()
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), program(x, y))
        kernel.pre_run_hooks[:] = [lambda z, *rest, **options: z.add_(1)]
    torch.testing.assert_close(compiled(x, y), program(x, y))


# ---- gradients


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", TRAINED, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VERIFY_STAGES", "1")
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        x, y = make()
        found = []
        for fn in (program, compiled):
            a, b = (t.clone().requires_grad_() for t in (x, y))
            loss = fn(a, b)
            loss.backward()
            found.append((loss, a.grad, b.grad))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernel_writes_a_parameter(backend: str) -> None:
    """Autograd does not observe the writes of a kernel: it raises no error and counts no version."""

    def program(x, y):
        loss = (x * y).sum()
        scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
        return loss

    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    x, y = make()
    found = []
    for fn in (program, compiled, compiled):
        a, b = (t.clone().requires_grad_() for t in (x, y))
        fn(a, b).backward()
        found.append((a, a.grad, b.grad, torch.tensor(a._version)))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


# ---- copies


def externs(program: Callable[..., Any], *arguments: torch.Tensor) -> set[str]:
    """The calls of the plan other than in-place launches."""
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        smelt.compile(program, fullgraph=True)(*arguments)
    return {n for e in seen if e.kind == "plan" for n in e.data["externs"]} - {"smelt.run_kernel.default"}


COPIED = {
    a_view_is_taken_before,
    a_constant_is_written,
}  # what they look at must be as it was, or is used again


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_no_copies(program: Callable[..., Any]) -> None:
    called = externs(program, *make()) - {"aten.empty_like.default"}
    assert bool(called) == (program in COPIED), called


def test_input_is_copied_where_eager_fallback_may_run() -> None:
    """An index out of range raises after the kernel would have written the input; then the original function runs."""

    def program(x, y, index):
        scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
        return torch.index_select(y, 0, index)

    compiled = smelt.compile(program, fullgraph=True)
    x, y = make()
    compiled(x, y, torch.tensor([1, 2]))
    before = x.clone()
    with pytest.raises(IndexError):
        compiled(x, y, torch.tensor([1, 200]))
    torch.testing.assert_close(x, before * 3)


# ---- what breaks the graph


def made_inside(x, y):
    kernel = triton.jit(add.fn)
    out = torch.empty_like(x)
    kernel[(4,)](x, y, out, x.numel(), BLOCK=32)
    return out * 2


def on_a_grid_of_floats(x, y):
    out = torch.zeros_like(x)
    add[(x.numel() / 25,)](x, y, out, x.numel(), BLOCK=32)
    return out


@triton.jit
def double_blocks(source, target, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK
    target.store([i], source.load([i]) * 2)


def by_descriptors(x, y):
    out = torch.zeros_like(x)
    source, target = (TensorDescriptor.from_tensor(t, [20]) for t in (x, out))
    double_blocks[(5,)](source, target, BLOCK=20)
    return out + y


def in_a_transform(x, y):
    def inner(t):
        out = torch.empty_like(y)
        add[(4,)](y, y, out, y.numel(), BLOCK=32)
        return (t * out).sum()

    return torch.func.grad(inner)(x)


@pytest.mark.parametrize("program, reason", (
    (made_inside, "triton"), (on_a_grid_of_floats, "grid"), (in_a_transform, "transform"),
    (by_descriptors, "data_ptr"),
), ids=lambda p: getattr(p, "__name__", ""))  # fmt: skip
def test_breaks(program: Callable[..., Any], reason: str) -> None:
    compiled = check(program, make, captured=False)
    assert any(reason in r.detail.lower() for r in reasons(compiled)), reasons(compiled)


# ---- among other features


def kept_over_a_break(x, y):
    launch = add[(4,)]
    out = torch.empty_like(x)
    torch._dynamo.graph_break()
    launch(x, y, out, x.numel(), BLOCK=32)
    return out * 2


def before_a_break(x, y):
    scale[(4,)](x, x.numel(), 3.0, BLOCK=32)
    z = x + y
    torch._dynamo.graph_break()
    scale[(4,)](z, z.numel(), 3.0, BLOCK=32)
    return z, x


def on_nothing(x, y):
    z = x[:0].clone()
    add[(0,)](z, z, z, 0, BLOCK=32)
    return z, x * 2


def under_inference_mode(x, y):
    with torch.inference_mode():
        z = x + y
        scale[(4,)](z, z.numel(), 3.0, BLOCK=32)
        return z * 2


def returned_twice(x, y):
    z = x * 2
    scale[(4,)](z, z.numel(), 3.0, BLOCK=32)
    return z, z, z.view(10, 10), z[3:]


def a_list_of_tensors(x, y):
    for t in [x, y, x * 2]:
        scale[(4,)](t, t.numel(), 3.0, BLOCK=32)
    return t


@pytest.mark.parametrize("program", (
    kept_over_a_break, before_a_break, on_nothing, under_inference_mode, returned_twice, a_list_of_tensors,
), ids=lambda p: p.__name__)  # fmt: skip
def test_kernel_arguments(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VERIFY_STAGES", "1")
    check(program, make, captured=False)


def test_inputs_with_shared_memory() -> None:
    def program(x, y):
        scale[(2,)](x, x.numel(), 3.0, BLOCK=32)
        return x + y

    compiled = smelt.compile(program)
    for shared in (False, True, False):
        base, other = make()
        again = base.clone()
        want = program(base[:50], base[25:75] if shared else other[:50])
        got = compiled(again[:50], again[25:75] if shared else other[:50])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(again, base)


def test_within_a_checkpoint() -> None:
    def region(x, y):
        h = x.sin()
        out = torch.empty_like(x)
        add[(4,)](h.detach(), y.detach(), out, x.numel(), BLOCK=32)
        return h * out.exp()

    def program(x, y):
        return torch.utils.checkpoint.checkpoint(region, x, y, use_reentrant=False).sum()

    compiled = smelt.compile(program)
    x, y = make()
    found = []
    for fn in (program, compiled, compiled):
        a, b = x.clone().requires_grad_(), y.clone()
        fn(a, b).backward()
        found.append(a.grad)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_in_a_data_dependent_branch() -> None:
    def scaled(t):
        t = t * 2
        scale[(4,)](t, t.numel(), 3.0, BLOCK=32)
        return t

    def program(x, y):
        return torch.cond(x.sum() > 0, scaled, lambda t: t * 1, (y,))

    compiled = smelt.compile(program)
    x, y = make()
    for sign in (1, -1, 1):
        given = x.abs() * sign
        want = y * 6 if sign > 0 else y
        torch.testing.assert_close(compiled(given, y), want)


def test_second_derivatives_with_a_kernel() -> None:
    def program(x, y):
        return (added(x.detach(), y.detach()) * x.sin()).sum()

    def second(fn: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(fn(a, y), a, create_graph=True)
        (found,) = torch.autograd.grad(first.sum(), a)
        return found

    x, y = make()
    torch.testing.assert_close(second(smelt.compile(program), x, y), second(program, x, y))
