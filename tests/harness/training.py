"""Programs that train: the same lines run once with eager functions and once with compiled ones, and must see the same.

    @both()
    def test_gradient(compile):
        f = compile(lambda x: x.sin())
        x = leaf(3)
        f(x).sum().backward()
        return x.grad

The decorated program is a pytest test, once per backend. It gets `compile` (eager: the function itself) and whatever else it
is parametrized with; random numbers are the same in both runs, and what it returns is compared: values, dtypes, strides,
`requires_grad`, structure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons, records
from tests.harness.agreement import check_no_failure, same

BACKENDS = ("aot_eager", "smelt")


def both(*, whole: bool = True, ahead: bool = True) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a program a test.

    Args:
        whole: every compiled function is one graph, and nothing ran eagerly.
        ahead: every graph that needs gradients has its backward compiled.
    """

    def decorate(program: Callable[..., Any]) -> Callable[..., None]:
        def run(backend: str, **given: Any) -> None:
            compiled: list[Any] = []

            def compile(fn: Any) -> Any:
                compiled.append(smelt.compile(fn, backend=backend))
                return compiled[-1]

            want = _observed(program, lambda fn: fn, given)
            same(_observed(program, compile, given), want, "")
            for c in compiled:
                check_captured(c, whole, ahead)

        run.__name__ = program.__name__
        signature = inspect.signature(program)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                p.replace(name="backend") if name == "compile" else p
                for name, p in signature.parameters.items()
            ]
        )
        run.pytestmark = getattr(program, "pytestmark", [])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("backend", BACKENDS)(run)

    return decorate


def _observed(program: Callable[..., Any], compile: Callable[[Any], Any], given: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return program(compile, **given)


def check_captured(compiled: Any, whole: bool, ahead: bool) -> None:
    check_no_failure(compiled)
    found = reasons(compiled)
    assert not (whole and found), f"ran eagerly: {found[0]}"
    own = [
        str(r.no_joint_graph_reason.detail)
        for _, r in records(compiled)
        if r.no_joint_graph_reason is not None
    ]
    assert not (ahead and own), f"the backward is autograd's own: {own[0]}"


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def raised(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Type and beginning of the message of what `call()` raises; the end names nodes of autograd."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)[:60]
    return None


def gradients(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
    """Copies of their `.grad`."""
    return [None if t.grad is None else t.grad.clone() for t in tensors]
