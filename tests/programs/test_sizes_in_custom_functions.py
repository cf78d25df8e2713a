"""Custom autograd.Functions beside sizes that change: what they compute is traced with symbols, and they take sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe

SHAPES = ((5, 16), (3, 12), (7, 40), (4, 76), (9, 5))
BIAS = torch.randn(3, requires_grad=True)


class Gelu(torch.autograd.Function):
    """Keeps a size, and computes with sizes in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.length = x.shape[1]
        return x * 0.5 * (1 + torch.tanh(x)) / x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t)) / x.shape[0] + torch.zeros(ctx.length)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float, shape: Any = None) -> torch.Tensor:
        ctx.by = by
        return x * by if shape is None else (x * by).view(shape)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.by, None, None


class Drawn(torch.autograd.Function):
    """For which there is no joint graph: the graph calls the function itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[1], x.shape[0]).t() * x.shape[1]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.t().reshape(g.shape) * torch.rand(g.shape)


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] > 20 else x * 3 + BIAS.sum()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2 if g.shape[1] > 20 else g * 3


def of_several(x: torch.Tensor) -> Any:
    a = Gelu.apply(x.sin())
    return a, Gelu.apply(a * 2).sum(1)


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "sizes kept": (lambda x: Gelu.apply(x.sin()).sum(1), 1),
    "several": (of_several, 1),
    "a size given": (lambda x: Scaled.apply(x.sin(), x.shape[1] // 2), 1),
    "a shape given": (lambda x: Scaled.apply(x.sin(), 2.0, x.shape), 1),
    "sizes in a list": (lambda x: Scaled.apply(x.sin(), 2.0, [-1, x.shape[1]]), 1),
    "no joint graph": (lambda x: Drawn.apply(x.sin()), 1),
    "a branch": (lambda x: Branching.apply(x.sin()), 2),
    "a part": (lambda x: Gelu.apply(x[1:]) + x.shape[0], 1),
}


def run(f: Callable[..., Any], **options: Any) -> int:
    compiled = smelt.compile(f, fullgraph=True, **options)
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
        torch.manual_seed(1)
        got = torch.autograd.grad(total(compiled(x)), x)
        torch.manual_seed(1)
        # a sine of a large multiple of a sine amplifies the rounding of the latter
        torch.testing.assert_close(got, torch.autograd.grad(total(f(x)), x), rtol=1e-3, atol=1e-3)
    check_no_failure(compiled)
    return len(entries(compiled))


def total(found: Any) -> torch.Tensor:
    return sum(t.sin().sum() for t in (found if isinstance(found, tuple) else (found,)))  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ["smelt", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients(name: str, backend: str) -> None:
    f, expected = PROGRAMS[name]
    assert run(f, dynamic=True, backend=backend) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_by_default_one_more(name: str) -> None:
    f, expected = PROGRAMS[name]
    assert run(f) <= expected + 1


def test_derivatives_of_derivatives() -> None:
    f = PROGRAMS["sizes kept"][0]
    compiled = smelt.compile(f, dynamic=True)
    for shape in SHAPES[:3]:
        x = torch.randn(shape, requires_grad=True)
        twice = []
        for called in (compiled, f):
            (first,) = torch.autograd.grad(called(x).sin().sum(), x, create_graph=True)
            twice.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*twice, rtol=1e-4, atol=1e-4)


CHECKPOINTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sizes inside": lambda x: again(lambda y: (y.sin() * y.shape[1]).exp(), x * 0.01),
    "a size among its arguments": lambda x: again(lambda y, n: y.view(-1).sin() / n, x, x.shape[1]),
    "a size of its variables": lambda x: again(lambda y, n=x.shape[0]: y.t() * n, x),
    "a size among its results": lambda x: again(lambda y: (y.sin(), y.shape[0]), x)[0] * x.shape[1],
    "one inside of another": lambda x: again(lambda y: again(torch.sin, y) * y.shape[0], x),
    "random numbers": lambda x: again(lambda y: F.dropout(y.sin(), 0.5, True), x) + torch.rand_like(x),
    "lower precision": lambda x: again(lambda y: y.to(torch.bfloat16).sin().float() * y.shape[1], x),
    "written inside": lambda x: again(lambda y: y.mul(2).add_(y.shape[0]), x),
}  # fmt: skip


def again(f: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(f, *args, use_reentrant=False)


@pytest.mark.parametrize("dynamic", [None, True], ids=["seen to change", "from the start"])
@pytest.mark.parametrize("f", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_checkpoints(f: Callable[[torch.Tensor], torch.Tensor], dynamic: bool | None) -> None:
    assert run(f, dynamic=dynamic) == (1 if dynamic else 2)


def test_a_number_that_changes() -> None:
    def f(x: torch.Tensor, by: float) -> torch.Tensor:
        return Scaled.apply(x.sin(), by)  # type: ignore[no-any-return]

    compiled = smelt.compile(f, dynamic=True)
    for shape, by in zip(SHAPES, (2.0, 3.0, 4.0, 3.0, 2.0)):
        x = torch.randn(shape, requires_grad=True)
        compare(observe(compiled, (x, by), 0), observe(f, (x, by), 0))
    check_no_failure(compiled)


def test_sizes_that_data_decide_break_the_graph() -> None:
    f = lambda x: Gelu.apply(x[x[:, 0] > 0].sin())  # noqa: E731
    compiled = smelt.compile(f, dynamic=True)
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        compare(observe(compiled, (x,), 0), observe(f, (x,), 0))
    check_no_failure(compiled)
    assert reasons(compiled)
