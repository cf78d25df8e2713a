"""Upper bounds (exclusive) of the indices that an operator returns, from the shape of its input."""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.graph.ir import Node, TensorSpec


def along(position: int) -> Callable[[Node], int]:
    """The size of the operator's dimension (its argument `position`, by default the last one)."""

    def bound(call: Node) -> int:
        shape = _input(call).shape
        dim = call.args[position] if len(call.args) > position else call.kwargs.get("dim", -1)
        if dim is None:
            return math.prod(shape)  # type: ignore[arg-type]
        return shape[dim] if shape else 1  # type: ignore[return-value]

    return bound


def of_last(rank: int) -> Callable[[Node], int]:
    """The number of elements in the last `rank` dimensions."""
    return lambda call: math.prod(_input(call).shape[-rank:])  # type: ignore[arg-type]


def of_all(call: Node) -> int:
    """The number of elements of the input: for indices into the flattened tensor."""
    return math.prod(_input(call).shape)  # type: ignore[arg-type]


def _input(call: Node) -> TensorSpec:
    return call.args[0].spec
