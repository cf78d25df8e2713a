"""Writes of inference tensors and by them: eager's error where eager raises one, after the same writes, and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons


def _caught(v: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(RuntimeError):
        v.mul_(2)
    return v + n


def _created_inside(v: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        doubled = v * 2
    return doubled.detach().mul_(n)


# name -> a program of an inference tensor and a normal one, and whether eager raises
PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "in place": (lambda v, n: v.mul_(2), True),
    "a view": (lambda v, n: v[1:].mul_(2), True),
    "an item": (lambda v, n: v.__setitem__(0, 2.0), True),
    "a list": (lambda v, n: torch._foreach_add_([v], 1), True),
    "out": (lambda v, n: torch.neg(n, out=v), True),
    "caught": (_caught, False),
    "detached": (lambda v, n: v.detach().mul_(2), False),
    "data": (lambda v, n: v.data.mul_(2), False),
    "into a normal one": (lambda v, n: torch.neg(v, out=n), False),
    "detached inside": (_created_inside, False),
}


@pytest.mark.parametrize("backend", ["smelt", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write(name: str, backend: str) -> None:
    program, raises = PROGRAMS[name]

    def observed(fn: Callable[..., Any]) -> list[Any]:
        with torch.inference_mode():
            v = torch.ones(4)
        n = torch.full((4,), 3.0)
        try:
            result = fn(v, n)
        except RuntimeError as error:
            return [str(error), v.tolist(), n.tolist()]
        return [result if result is None else result.tolist(), v.tolist(), n.tolist()]

    compiled = smelt.compile(program, backend=backend)
    want = observed(program)
    assert raises == isinstance(want[0], str)
    for _ in range(2):
        assert observed(compiled) == want
    assert not {"internal-error", "backend-failed"} & {r.kind.id for r in reasons(compiled)}
