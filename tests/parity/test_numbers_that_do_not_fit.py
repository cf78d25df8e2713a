"""A number that does not fit the dtype it is converted to: eager raises, whether it is the same at each call or changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report.inspect import entries
from tests.harness.agreement import compare, observe

FLOATS = [1.0, 2.0, 1e308, 3.0, float("inf"), float("nan"), 70000.0]
INTS = [1, 2, 2**63, 3, -(2**63) - 1, 300, -1, 2**31]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]
PROGRAMS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "fill_": lambda t, n: t.fill_(n),
    "full": lambda t, n: torch.full((2,), n, dtype=t.dtype),
    "full_like": lambda t, n: torch.full_like(t, n),
    "new_full": lambda t, n: t.new_full((2,), n),
    "scalar_tensor": lambda t, n: torch.scalar_tensor(n, dtype=t.dtype),
    "masked_fill": lambda t, n: t.masked_fill(t > 0, n),
    "index_fill": lambda t, n: t.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda t, n: t.scatter(0, torch.tensor([0]), n),
    "where": lambda t, n: torch.where(t > 0, t, n),
    "clamp": lambda t, n: t.clamp(max=n),
    "clamp_nobody_reads": lambda t, n: (t.clamp(n), t)[1],
    "alpha": lambda t, n: torch.add(t, t, alpha=n),
    "addcmul": lambda t, n: torch.addcmul(t, t, t, value=n),
    "lerp": lambda t, n: torch.lerp(t, t + 1, n),
    "hardtanh": lambda t, n: F.hardtanh(t, -1, n),
    "threshold": lambda t, n: F.threshold(t, 0.5, n),
    "pad": lambda t, n: F.pad(t, (1, 1), value=n),
    "add": lambda t, n: t + n,
    "rsub": lambda t, n: n - t,
    "remainder": lambda t, n: t % n,
    "floor_divide": lambda t, n: t // n,
    "pow": lambda t, n: t**n,
    "xlogy": lambda t, n: torch.xlogy(t, n),
}


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "ints"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_changing(name: str, numbers: list[float]) -> None:
    program = PROGRAMS[name]
    for dtype in DTYPES:
        compiled = smelt.compile(program)
        for number in numbers:
            arguments = [(torch.tensor([1, 0, 1]).to(dtype), number) for _ in range(2)]
            with torch.no_grad():
                compare(observe(compiled, arguments[0], 0), observe(program, arguments[1], 0))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.float16], ids=str)
def test_of_a_tensor_without_dimensions(dtype: torch.dtype) -> None:
    def program(t: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        t.masked_fill(t > 1, n)
        return t.masked_fill(t > 0, n), t

    compiled = smelt.compile(program)
    for number in map(
        torch.tensor, (1.0, 2.5, -1.5, 1e30, 70000.0, float("inf"), -1, 300, 70000, 2**40, True)
    ):
        arguments = [(torch.tensor([1, 0, 1]).to(dtype), number) for _ in range(2)]
        with torch.no_grad():
            compare(observe(compiled, arguments[0], 0), observe(program, arguments[1], 0))


@pytest.mark.parametrize("number", [1e308, 2**63, 300, -1], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_constant(name: str, number: float) -> None:
    def program(t: torch.Tensor) -> Any:
        return PROGRAMS[name](t, number)

    for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8):
        compiled = smelt.compile(program)
        x = torch.tensor([1, 0, 1]).to(dtype)
        with torch.no_grad():
            compare(observe(compiled, (x.clone(),), 0), observe(program, (x.clone(),), 0))


def test_numbers_that_fit_share_an_entry() -> None:
    def program(t: torch.Tensor, n: float) -> torch.Tensor:
        return torch.where(t > 0, t, n).clamp(max=n).masked_fill(t == 1, n)

    compiled = smelt.compile(program)
    for n in (1.0, 2.0, 3.5, 1e300, 4.0):
        compare(observe(compiled, (torch.ones(2), n), 0), observe(program, (torch.ones(2), n), 0))
    assert len(entries(compiled)) == 2  # the first knows the number
