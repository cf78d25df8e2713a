"""Cross entropy on the simulated device: losses and gradients are eager's, and rows are gone through once each way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report import inspect

pytestmark = pytest.mark.simulated_cuda

SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": dict(reduction="sum"),
    "none": dict(reduction="none"),
    "smoothed": dict(label_smoothing=0.1),
    "a class ignored": dict(ignore_index=5),
    "no class ignored": dict(ignore_index=-1),
}


def targets(classes: int) -> torch.Tensor:
    t = torch.randint(6, classes, (32,), device="cuda")
    t[0], t[1], t[2] = 0, classes - 1, 5
    return t


def compare(fn: Any, x: torch.Tensor, *rest: torch.Tensor) -> Any:
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    compiled = smelt.compile(fn, fullgraph=True)
    got, want = compiled(mine, *rest), fn(theirs, *rest)
    torch.testing.assert_close(got, want)
    tangent = torch.randn_like(want)
    got.backward(tangent)
    want.backward(tangent)
    assert mine.grad is not None and theirs.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad)
    return compiled


@pytest.mark.parametrize(
    ("classes", "dtype", "weighted"),
    [(10, torch.bfloat16, False), (3000, torch.bfloat16, False), (3000, torch.float32, True)],
    ids=["few", "many", "many, weighted"],
)
@pytest.mark.parametrize("name", SETTINGS)
def test_as_eager(name: str, classes: int, dtype: torch.dtype, weighted: bool) -> None:
    weight = torch.rand(classes, device="cuda") if weighted else None
    t = targets(classes)
    if name in ("mean", "smoothed"):
        t[3] = -100

    def fn(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((x * 1.5).float(), t, weight=weight, **SETTINGS[name])

    compare(fn, (torch.randn(32, classes, device="cuda") * 3).to(dtype), t)


def test_in_half_precision_all_along() -> None:
    compare(
        lambda x, t: F.cross_entropy(x, t), torch.randn(32, 3000, device="cuda").bfloat16(), targets(3000)
    )


def test_masked_classes() -> None:
    x = torch.randn(32, 3000, device="cuda")
    x[:, 6:900] = -torch.inf
    t = targets(3000).clamp(min=1000)
    compare(lambda x, t: F.cross_entropy(x.bfloat16().float(), t), x, t)


def test_equal_reductions_are_one() -> None:
    """What the softmax has of its rows, and what another operator asks of them."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1), x.amax(-1, keepdim=True)

    x = torch.randn(64, 300, device="cuda")
    compiled = smelt.compile(fn, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), fn(x))
    assert inspect.kernels(compiled).count(" = max(") == 1


@pytest.mark.parametrize("target", (-1, 3000))
def test_a_target_that_is_no_class(target: int) -> None:
    t = targets(3000)
    t[7] = target
    x = torch.randn(32, 3000, device="cuda").bfloat16()
    with pytest.raises((IndexError, RuntimeError)):
        smelt.compile(lambda x, t: F.cross_entropy(x.float(), t), fullgraph=True)(x, t)
