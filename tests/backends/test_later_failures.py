"""A part that is compiled after the first call (a backward, other sizes) and fails: it runs operator by operator, which is
said once, and results are eager's. Where the user allows no eager run, it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt import pipeline
from smelt.errors import BackendError
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import same


def fail(monkeypatch: pytest.MonkeyPatch, stage: str, working: int = 0) -> None:
    """From now on the stage fails, after it has worked so often."""
    whole: Callable[..., Any] = getattr(pipeline, stage)
    left = [working]

    def failing(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyError("no such thing")
        return whole(*args, **kwargs)

    monkeypatch.setattr(pipeline, stage, failing)


def trained(f: Callable[..., torch.Tensor], n: int) -> list[torch.Tensor]:
    torch.manual_seed(n)
    x = torch.randn(n, 4, requires_grad=True)
    result = f(x)
    result.sum().backward()
    assert x.grad is not None
    return [result, x.grad]


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.cos()).sum(0).exp()


def chosen(x: torch.Tensor) -> torch.Tensor:
    """Data decide how many rows there are."""
    return x[x[:, 0] > -1].sin() * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [program, chosen])
def test_a_backward(
    f: Callable[..., torch.Tensor],
    dynamic: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled = smelt.compile(f, dynamic=dynamic)
    torch.manual_seed(7)
    x = torch.randn(7, 4, requires_grad=True)
    result = compiled(x)
    fail(monkeypatch, "lower_graph")
    with caplog.at_level(logging.WARNING, "smelt"):
        result.sum().backward()
        again = trained(compiled, 7)
    same([result, x.grad], trained(f, 7))
    same(again, trained(f, 7))
    assert [r.kind.id for r in reasons(compiled)] == ["backend-failed"]
    [said] = [r.getMessage() for r in caplog.records]
    assert f"a part of {f.__qualname__} runs eagerly" in said and "KeyError: 'no such thing'" in said
    assert len(entries(compiled)) == 1


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", [program, chosen])
def test_other_sizes(f: Callable[..., torch.Tensor], grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(f, dynamic=True)
    with torch.set_grad_enabled(grad):
        compiled(torch.randn(7, 4, requires_grad=True))
        fail(monkeypatch, "instantiate")
        for n in (9, 9, 12, 7):
            x = torch.randn(n, 4, requires_grad=True)
            same(compiled(x), f(x))
    if grad:
        same(trained(compiled, 9), trained(f, 9))
    assert {r.kind.id for r in reasons(compiled)} == {"backend-failed"}
    assert len(entries(compiled)) == 1


def test_it_raises_where_nothing_may_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(program, dynamic=True, fullgraph=True)
    result = compiled(torch.ones(7, 4, requires_grad=True))
    fail(monkeypatch, "lower_graph")
    fail(monkeypatch, "instantiate")
    with pytest.raises(BackendError, match=r"a part of program could not be compiled: KeyError") as caught:
        result.sum().backward()
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(BackendError, match="a part of program"):
        compiled(torch.ones(9, 4, requires_grad=True))


def test_a_backward_that_outlives_its_function(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(7, 4, requires_grad=True)
    result = smelt.compile(lambda x: program(x))(x)
    fail(monkeypatch, "lower_graph")
    with caplog.at_level(logging.WARNING, "smelt"):
        result.sum().backward()
    assert "KeyError" in caplog.text
    same([result, x.grad], (lambda y: [program(y), torch.autograd.grad(program(y).sum(), y)[0]])(x))
