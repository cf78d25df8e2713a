"""Kernels that the program launches on the simulated GPU: interpreted ones run; of compiled ones all but the launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses
import triton.language as tl
from triton.runtime.jit import JITFunction

import smelt
from smelt import events
from smelt.capture.torch_calls import triton_kernels
from smelt.errors import Unsupported
from smelt.graph.user_kernel_calls import KernelLaunch
from smelt.report.inspect import entries, reasons
from tests.harness.user_kernels import PROGRAMS, by_a_function, make

pytestmark = pytest.mark.simulated_cuda


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_interpreted(program: Any) -> None:
    torch.manual_seed(0)
    given = [t.to("cuda") for t in make()]
    mine = [t.clone() for t in given]
    want = program(*given)
    compiled = smelt.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(*mine), want)
    torch.testing.assert_close(mine, given)


def test_gradients() -> None:
    found = []
    x, y = (t.to("cuda") for t in make())
    for fn in (by_a_function, smelt.compile(by_a_function, fullgraph=True)):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        fn(a, b).backward()
        found.append((a.grad, b.grad))
    torch.testing.assert_close(found[1], found[0])


def _add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


add = JITFunction(_add)
tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 64)], key=["n"])(add)
chosen = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add)


def on_a_tuple(x, y):
    out = torch.empty_like(x)
    add[(8,)](x, y, out, x.numel(), BLOCK=16)
    return out * 2


def on_a_function(x, y):
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, x.numel())
    return out * 2


def by_heuristics(x, y):
    out = torch.empty_like(x)
    chosen[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out * 2


def wrapped(x, y):
    out = torch.empty_like(x)
    torch.library.wrap_triton(tuned)[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, out, x.numel()
    )
    return out * 2


@pytest.mark.parametrize(
    "program", (on_a_tuple, on_a_function, by_heuristics, wrapped), ids=lambda p: p.__name__
)
def test_compiled(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is replaced by what the kernel computes. Nothing is copied, and no input is taken for written."""
    launched = []

    def launch(self: KernelLaunch, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        grid = self.grid({"BLOCK": 16}) if len(getattr(self.grid, "rows", ())) > 1 else self.grid
        launched.append(grid)
        out.copy_(x + y)

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(KernelLaunch, "__call__", launch)
    written: list[int] = []
    record = triton_kernels.record
    monkeypatch.setattr(triton_kernels, "record", lambda *a: (written.append(len(a[-1])), record(*a)))
    compiled = smelt.compile(program, fullgraph=True)
    x, y = (t.to("cuda").requires_grad_() for t in make())
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        result = compiled(x, y)
    torch.testing.assert_close(result, (x + y).detach() * 2)
    assert written == [1] * len(written)  # the frame may be captured several times
    assert not result.requires_grad and len(launched) == 1 and launched[0][0] in (1, 7, 8)
    [plan] = [e for e in seen if e.kind == "plan"]
    assert set(plan.data["externs"]) == {"aten.empty_like.default", "smelt.run_kernel.default"}
    assert len(entries(compiled)) == 1 and not reasons(compiled)


def test_a_tensor_on_the_cpu_breaks_the_graph() -> None:
    def program(x):
        add[(8,)](x, x, x, x.numel(), BLOCK=16)
        return x

    with pytest.raises(Unsupported, match="on a tensor on cpu"):
        smelt.compile(program, fullgraph=True)(torch.randn(100))
