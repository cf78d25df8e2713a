"""Layouts of results over sizes of short ranges, in some of which a dimension is 1: what is found is what torch says for all
others, which are those of calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Size, Sym, evaluate
from smelt.graph.specs import empty_like_spec, make_spec, with_sizes
from smelt.ops.symbolic_results import results

aten = torch.ops.aten
CPU = torch.device("cpu")
B, S, T = Sym("s0", 2), Sym("s1", 2, 224), Sym("s2", 2, 224)


def channels_last(batch: Size, channels: Size, height: Size, width: Size) -> TensorSpec:
    stride = (height * width * channels, 1, width * channels, channels)
    return make_spec((batch, channels, height, width), stride, torch.float32, CPU)


SQUARE = channels_last(B, 192, (S + 7) // 8, (S + 7) // 8)
MAP = channels_last(B, 192, (S + 31) // 32, (T + 31) // 32)
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.add.Tensor, (SQUARE, SQUARE)),
    (aten.relu.default, (MAP,)),
    (aten.constant_pad_nd.default, (SQUARE, [0, 1, 0, 1])),
]


def spec_of(value: Any) -> TensorSpec | None:
    return value if isinstance(value, TensorSpec) else None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_a_dimension_of_one_does_not_decide_a_layout(call: Any) -> None:
    func, args = call
    found = results(func, args, {}, CPU, spec_of)
    for s in (65, 100, 160, 224):
        numbers = {B: 3, S: s, T: 300 - s if s > 75 else 224}
        metas = [
            empty_like_spec(with_sizes(a, lambda n: evaluate(n, numbers)), torch.device("meta"))  # noqa: B023
            if isinstance(a, TensorSpec)
            else a
            for a in args
        ]
        out, made = func(*metas), with_sizes(found, lambda n: evaluate(n, numbers))  # noqa: B023
        assert (made.shape, made.stride) == (tuple(out.size()), out.stride())
