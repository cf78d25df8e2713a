"""Values that take fewer bytes in another dtype without loss, because of what they can be.

* A float tensor drawn by `bernoulli` holds zeros and ones: kept as bool.
* Indices into a dimension hold numbers below its size: kept in the smallest integer type for that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec

aten = torch.ops.aten

_INTEGERS = ((torch.uint8, 1 << 8), (torch.int16, 1 << 15), (torch.int32, 1 << 31))


def packed_dtype(node: Node) -> torch.dtype | None:
    """The dtype that holds all values the node can have in fewer bytes, or None."""
    spec = node.spec
    if node.target in _ZERO_OR_ONE:
        return torch.bool if spec.dtype.itemsize > 1 and not spec.dtype.is_complex else None
    if spec.dtype is not torch.int64:
        return None
    call = node.args[0] if node.target is operator.getitem else node
    bound = INDICES.get(call.target)
    if bound is None or (call is not node and node.args[1] != 1):
        return None
    return next((dtype for dtype, limit in _INTEGERS if bound(call) <= limit), None)


_ZERO_OR_ONE = frozenset({aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor})


def _along(position: int) -> Callable[[Node], int]:
    """The size of the dimension that the operator works along (its argument `position`, the last one if not given)."""

    def bound(call: Node) -> int:
        shape = _input(call).shape
        dim = call.args[position] if len(call.args) > position else call.kwargs.get("dim", -1)
        if dim is None:
            return math.prod(shape)  # type: ignore[arg-type]
        return shape[dim] if shape else 1  # type: ignore[return-value]

    return bound


def _of_last(rank: int) -> Callable[[Node], int]:
    """How many places the last `rank` dimensions have."""
    return lambda call: math.prod(_input(call).shape[-rank:])  # type: ignore[arg-type]


def _all(call: Node) -> int:
    return math.prod(_input(call).shape)  # type: ignore[arg-type]


def _input(call: Node) -> TensorSpec:
    return call.args[0].spec


# Operators that give indices (alone, or as their second result) -> a number that all of them are below.
INDICES: dict[Any, Callable[[Node], int]] = {
    aten.max_pool2d_with_indices.default: _of_last(2),
    aten.max_pool3d_with_indices.default: _of_last(3),
    aten.adaptive_max_pool2d.default: _of_last(2),
    aten.adaptive_max_pool3d.default: _of_last(3),
    aten.argmax.default: _all,
    aten.argmin.default: _all,
    aten.max.dim: _along(1),
    aten.min.dim: _along(1),
    aten.median.dim: _along(1),
    aten.mode.default: _along(1),
    aten.cummax.default: _along(1),
    aten.cummin.default: _along(1),
    aten.sort.default: _along(1),
    aten.topk.default: _along(2),
    aten.kthvalue.default: _along(2),
    aten.argsort.default: _along(1),
}
