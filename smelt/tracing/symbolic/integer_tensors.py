"""Elements of small integer tensors that are computed from ints, such as `torch.div(n, 64, rounding_mode="floor")`.

The operators that produced such a tensor are repeated on the symbolic numbers that it was computed from. So a size
that is computed in a tensor is known before the graph runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from smelt._native import isinstance
from smelt.graph.ir import Node, TensorSpec
from smelt.ops.registry import row
from smelt.ops.symbolic_rules import SELECT
from smelt.tracing.record.number_inputs import NumberInputs

_MOST_STEPS = 32
_LEAST, _MOST = -(1 << 62), 1 << 62  # beyond these, tensors may wrap around


class Integers:
    """Evaluates integer tensors from the recorded nodes. `written`: nodes whose memory some operator wrote."""

    def __init__(self, numbers: NumberInputs, level: str, written: Iterable[Node]) -> None:
        self._written = set(written)
        self._inputs = {
            number.nodes[level]: number.symbol
            for number in numbers.by_expression.values()
            if level in number.nodes and not number.is_unbacked
        }
        self._steps = 0

    def element(self, value: Any, index: int) -> Any:
        """Element `index`, in row-major order, of the result of a node; an int is itself. None where it is unknown."""
        if type(value) is int:
            return value
        symbol = self._inputs.get(value) if isinstance(value, Node) else None
        if symbol is not None:
            return symbol.number() if type(symbol.value) is int else None
        self._steps += 1
        if not isinstance(value, Node) or value in self._written or self._steps > _MOST_STEPS:
            return None
        spec = value.spec
        if not isinstance(spec, TensorSpec) or spec.dtype is not torch.int64 or value.op != "call_function":
            return None
        return self._row_element(value, index) if spec.shape else self._computed(value)

    def _computed(self, node: Node) -> Any:
        target, args, known = node.target, node.args, row(node.target)
        if known.filled is not None:
            return self.element(known.filled(*args), 0)
        if known.elements == "same":
            return self.element(args[0], 0)
        if target is SELECT and len(args[0].spec.shape) == 1 and type(args[2]) is int and args[2] >= 0:
            return self.element(args[0], args[2])
        compute, divides = known.on_numbers, known.on_naturals
        if (compute is None and divides is None) or node.kwargs.get("alpha", 1) != 1 or len(args) != 2:
            return None
        if node.kwargs.get("rounding_mode", "floor") is None:
            return None
        a, b = (self.element(value, 0) for value in args)
        if a is None or b is None or (divides is not None and not (a >= 0 and b > 0)):
            return None
        result = (compute or divides)(a, b)  # type: ignore[misc]
        return result if _LEAST < result < _MOST else None

    def _row_element(self, node: Node, index: int) -> Any:
        """The element of a one-dimensional tensor."""
        if row(node.target).elements == "same" and len(node.args[0].spec.shape) == 1:
            return self.element(node.args[0], index)
        if node.target is not torch.ops.aten.stack.default or len(node.spec.shape) != 1:
            return None
        parts = node.args[0]
        return self.element(parts[index], 0) if index < len(parts) else None
