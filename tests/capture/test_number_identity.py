"""The identity of numbers that change from call to call: `is`, and what is stored or returned, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt

_NUMBERS: dict[str, Callable[[int], Any]] = {
    "numpy ints": np.int64,
    "numpy floats": np.float64,
    "floats": lambda i: i + 0.5,
    "large ints": lambda i: i + 1000,
    "ints, then numpy ints": lambda i: i if i < 3 else np.int64(i),
}


@pytest.mark.parametrize("make", _NUMBERS.values(), ids=_NUMBERS)
def test_arguments_are_told_apart_and_kept(make: Callable[[int], Any]) -> None:
    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        kept.append(a)
        return x * a, a is b, b is not a, {"b": b}

    kept: list[Any] = []
    compiled = smelt.compile(program, fullgraph=True)
    x = torch.ones(3)
    for i in range(1, 12):
        a = make(i)
        for b in (a, make(i)):
            y, same, different, held = compiled(x, a, b)
            assert torch.equal(y, x * a)
            assert (same, different) == (a is b, b is not a)
            assert held["b"] is b and kept[-1] is a


@pytest.mark.parametrize("make", _NUMBERS.values(), ids=_NUMBERS)
def test_a_sentinel(make: Callable[[int], Any]) -> None:
    default = make(7)

    def program(x: torch.Tensor, scale: Any) -> torch.Tensor:
        return x if scale is default else x * scale

    compiled = smelt.compile(program)
    x = torch.ones(3)
    for scale in (make(1), make(2), default, make(7), make(9), default):
        assert torch.equal(compiled(x, scale), program(x, scale))
        assert (compiled(x, scale) is x) == (scale is default)
