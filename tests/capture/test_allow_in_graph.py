"""Functions marked with `torch.compiler.allow_in_graph`: captured if possible, else run on the fakes."""

from __future__ import annotations

import types
import uuid

import torch

import smelt
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import compare, observe

SIZES = types.MappingProxyType({"factor": 3})
SCALE = [2.0]


def opaque(x: torch.Tensor, by: float, others: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
    """Cannot be captured: it reads a proxy and calls os.urandom."""
    assert uuid.uuid4().int >= 0
    return x * by * SIZES["factor"] + sum(others)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE[0]


torch.compiler.allow_in_graph([opaque, plain])
X = torch.tensor([0.5, -1.0, 2.0])


def test_uncapturable_function_runs_on_fakes() -> None:
    def program(x: torch.Tensor, by: float) -> torch.Tensor:
        return opaque(x.sin(), by, (x, x + 1)).cos()

    compiled = smelt.compile(program, fullgraph=True)
    for by in (2.0, 2.0, 3.0, 4.0):
        for x in (X, X.clone().requires_grad_()):
            compare(observe(compiled, (x, by), 0), observe(program, (x, by), 0))
    assert not reasons(compiled)


def test_capturable_function_is_guarded() -> None:
    compiled = smelt.compile(lambda x: plain(x) + 1, fullgraph=True)
    for SCALE[0] in (2.0, 5.0, 2.0):
        assert torch.equal(compiled(X), plain(X) + 1)
    assert graph_count(compiled) == 2


def test_graph_breaks_without_mark_or_with_other_arguments() -> None:
    unmarked = types.FunctionType(opaque.__code__, opaque.__globals__, "unmarked", opaque.__defaults__)
    compiled = smelt.compile(lambda x: unmarked(x, 2.0))
    assert torch.equal(compiled(X), opaque(X, 2.0)) and reasons(compiled)
    compiled = smelt.compile(lambda x: opaque(x, 2.0, {0: x, 1: x}.values()))  # type: ignore[arg-type]
    assert torch.equal(compiled(X), opaque(X, 2.0, (X, X))) and reasons(compiled)


def test_error_of_marked_function_is_eagers() -> None:
    def program(x: torch.Tensor, by: float) -> torch.Tensor:
        try:
            return opaque(x, by, (x[:2],))
        except RuntimeError:
            return opaque(x, by)

    compiled = smelt.compile(program)
    for _ in range(3):
        compare(observe(compiled, (X, 2.0), 0), observe(program, (X, 2.0), 0))
