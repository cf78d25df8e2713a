"""Attention that programs write out, beside eager and float64: operands, the comparison, and what became of the graphs. On
the simulated device the kernels are those of tests/simulated/attention.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from smelt import pipeline
from smelt.graph.verify_graph import verify
from smelt.rewrites.attention.attention_rewrite import fuse_attention
from smelt.rewrites.graph_rewriter import Rewritten
from smelt.targets import sdpa_backends as chosen
from tests.harness import simulated
from tests.simulated import cuda

ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
MARKS = [pytest.mark.simulated_cuda] if ELSEWHERE else []

f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
INF = float("inf")
B, H, L, S, D = 2, 3, 20, 40, 8
Program = Callable[..., Any]


class Seen:
    """What became of the graphs that were compiled."""

    def __init__(self) -> None:
        self.fused: list[Rewritten] = []

    @property
    def kernels(self) -> list[str]:
        """The kernels for attention in the graphs, forward and backward."""
        names = (str(n.target) for made in self.fused for n in made.graph)
        return [
            n.removeprefix("aten._scaled_dot_product_").removesuffix(".default")
            for n in names
            if "dot_product" in n
        ]

    @property
    def why_not(self) -> list[str]:
        """Why attention was left."""
        return [why for made in self.fused for _, why in made.refused]


@contextmanager
def watched() -> Iterator[Seen]:
    """Inside, the device has kernels for attention."""
    found = Seen()

    def fused(*args: Any) -> Rewritten:
        made = fuse_attention(*args)
        verify(made.graph, functional=True)
        found.fused.append(made)
        return made

    with pytest.MonkeyPatch.context() as patched, kernels(True):
        patched.setattr(pipeline, "fuse_attention", fused)
        patched.setattr(chosen, "FEW", 0)  # nothing is too small for a kernel
        yield found


@contextmanager
def kernels(there: bool) -> Iterator[None]:
    """Whether torch has kernels for attention inside."""
    if not ELSEWHERE:
        with sdpa_kernel(list(SDPBackend.__members__.values()) if there else SDPBackend.MATH):
            yield
    else:
        cuda.simulated().simulated_use_fused_attention(there)
        yield
        cuda.simulated().simulated_use_fused_attention(False)


def heads(n: int, dtype: torch.dtype = f32, d: int = D, seed: int = 0) -> Tensor:
    """[b, h, n, d], as a linear layer's result has them."""
    made = torch.randn(B, n, H, d, generator=torch.Generator().manual_seed(seed + n)).to(dtype)
    return made.cuda().transpose(1, 2)


def operands(dtype: torch.dtype = f32) -> list[Tensor]:
    return [heads(L, dtype, seed=1), heads(S, dtype, seed=2), heads(S, dtype, seed=3)]


def run(program: Program, given: list[Tensor], backward: bool = True) -> list[Tensor]:
    """The result, and the gradients of those that are floats. Values do not come from leaves, as in models."""
    leaves = [x.detach().clone().requires_grad_(backward and x.is_floating_point()) for x in given]
    out = program(*((x * 1).view_as(x) if x.is_floating_point() else x for x in leaves))
    if not backward:
        return [out]
    tangent = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    out.backward(tangent)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def check(
    program: Program, given: list[Tensor], backward: bool = True, compiled: Program | None = None
) -> None:
    """Compiled results are as near those in float64 as eager's, NaN where those are, and lie in the same way."""
    compiled = compiled or smelt.compile(program, fullgraph=True)
    found, eager = run(compiled, given, backward), run(program, given, backward)
    exact = run(program, [wide(x) for x in given], backward)
    assert len(found) == len(eager) == len(exact)
    for a, b, c in zip(found, eager, exact, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        lost = b.isnan()
        assert bool((a.isnan() == lost).all()), (
            f"{int(a.isnan().sum())} of {a.numel()} are NaN, {int(lost.sum())} in eager"
        )
        infinite = b.isinf()
        assert bool((a[infinite] == b[infinite]).all())
        a, b, c = (x.double().masked_fill(lost | infinite, 0.0) for x in (a, b, c))
        size = max(float(c.abs().max()), 1.0)  # some are sums of terms near 1 that cancel
        ulp = torch.finfo(found[0].dtype).eps
        ours, theirs = (float((x - c).abs().max()) / size for x in (a, b))
        assert ours <= 3 * theirs + 8 * ulp, f"{ours} from float64, eager {theirs}"
