"""Facts about the values of a tensor's elements, derived from the operators that compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.rewrites.attention.element_maps import ElementMaps

aten = torch.ops.aten
INF = float("inf")
DOMINATES = -1e30  # dominates any score that it is added to, so that it is equivalent to a lower number
LARGE = 1e5  # in a sum with this, float32 has two decimal places
MOST = 8  # the maximum number of tracked values

_FILLED = (aten.full.default, aten.new_full.default, aten.full_like.default)
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_SAME = (aten._to_copy.default, aten.lift_fresh_copy.default, aten.clone.default, aten.expand.default)


def constant_value(value: Any, maps: ElementMaps) -> float | None:
    """The constant that a value is, or that all elements of a tensor equal; None if unknown."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, Node):
        return None
    if value.op == "get_attr":
        constant = maps.constants[value.target]
        is_scalar = constant.numel() == 1 and constant.device.type == "cpu" and not constant.is_complex()
        return float(constant) if is_scalar else None
    if value.target in _FILLED:
        return constant_value(value.args[2 if value.target is aten.new_full.default else 1], maps)
    if value.target is aten.scalar_tensor.default:
        return constant_value(value.args[0], maps)
    if value.target in _ZEROS:
        return 0.0
    return constant_value(value.args[0], maps) if value.target in _SAME else None


def exact_in(node: Node, dtype: torch.dtype, maps: ElementMaps) -> bool:
    """Whether a tensor added to float32 scores is known to be representable in `dtype`."""
    if node.spec.dtype is dtype:
        return True
    possible = possible_values(node, maps)
    return possible is not None and all(_is_representable(v, dtype) for v in possible)


def _is_representable(value: float, dtype: torch.dtype) -> bool:
    if dtype is torch.bfloat16 and -INF < value <= DOMINATES:
        return True
    return value == float(torch.tensor(value, dtype=dtype))


def possible_values(value: object, maps: ElementMaps) -> frozenset[float] | None:
    """The possible values of a tensor's elements, or of a number, if they are known and few; else None."""
    constant = constant_value(value, maps)
    possible = frozenset({constant}) if constant is not None else _computed(value, maps)
    if possible is None or len(possible) > MOST:
        return None
    dtype = value.spec.dtype if isinstance(value, Node) else torch.float64
    if not dtype.is_floating_point:
        return possible
    return frozenset(float(torch.tensor(v, dtype=torch.float64).to(dtype)) for v in possible)


def _computed(node: object, maps: ElementMaps) -> frozenset[float] | None:
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    if node.spec.dtype is torch.bool:
        return frozenset({0.0, 1.0})
    if node.target in _CHOOSES:
        chosen = [possible_values(node.args[i], maps) for i in _CHOOSES[node.target]]
        return None if None in chosen else frozenset().union(*(c for c in chosen if c is not None))
    if node.target in _CUTS:
        elements = possible_values(node.args[0], maps)
        return None if elements is None else elements | {0.0}
    if node.target in _COMPUTES and node.kwargs.get("alpha", 1) == 1 and len(node.args) == 2:
        a, b = (possible_values(x, maps) for x in node.args)
        both = None if a is None or b is None else [(x, y) for x in a for y in b]
        return None if both is None else frozenset(_COMPUTES[node.target](x, y) for x, y in both)
    return possible_values(node.args[0], maps) if node.target in _MOVES else None


_CHOOSES = {
    aten.where.self: (1, 2),
    aten.masked_fill.Scalar: (0, 2),
    aten.masked_fill.Tensor: (0, 2),
}
_CUTS = frozenset({aten.triu.default, aten.tril.default})
_COMPUTES: dict[Any, Callable[[float, float], float]] = {
    aten.mul.Tensor: lambda a, b: a * b,
    aten.add.Tensor: lambda a, b: a + b,
    aten.sub.Tensor: lambda a, b: a - b,
    aten.rsub.Scalar: lambda a, b: b - a,
}
# Operators whose results are elements of their first argument.
_MOVES = frozenset(
    {
        *(aten.index.Tensor, aten.index_select.default, aten.embedding.default, aten.gather.default),
        *(aten.expand.default, aten.slice.Tensor, aten.select.int, aten._to_copy.default, aten.clone.default),
        *(aten.permute.default, aten.transpose.int, aten.t.default, aten.view.default, aten.repeat.default),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
        *(aten._unsafe_view.default, aten.alias.default, aten.detach.default),
    }
)
_SMALL = frozenset({aten.sigmoid.default, aten.tanh.default})


def is_moderate(node: Node, maps: ElementMaps) -> bool:
    """Whether no element of a tensor is large, except for minus infinity: its few possible values show it, or it is
    computed from learned parameters, which hold no masks."""
    possible = possible_values(node, maps)
    if possible is not None:
        return all(abs(v) <= LARGE or v == -INF for v in possible)
    if node.op == "placeholder":
        return bool(node.spec.requires_grad)
    if node.target in _SMALL:
        return True
    if node.target in (*_MOVES, aten.neg.default):
        return is_moderate(node.args[0], maps)
    if node.target in _COMPUTES:
        numbers = [constant_value(a, maps) for a in node.args]
        sides = [a for a, v in zip(node.args, numbers) if v is None]
        small = all(v is None or abs(v) <= LARGE for v in numbers)
        return small and all(isinstance(a, Node) and is_moderate(a, maps) for a in sides)
    return False


def hides_rows(node: Node, maps: ElementMaps) -> bool:
    """Whether a tensor is moderate except for one huge negative number, which makes all scores of a row equal if it is
    added to all of them."""
    possible = possible_values(node, maps)
    if possible is not None:
        return len([v for v in possible if not abs(v) <= LARGE]) == 1 and -INF < min(possible) <= DOMINATES
    if node.op != "call_function":
        return False
    if node.target is aten.add.Tensor and all(isinstance(a, Node) for a in node.args):
        a, b = node.args
        return any(hides_rows(x, maps) and is_moderate(y, maps) for x, y in ((a, b), (b, a)))
    return node.target in _MOVES and hides_rows(node.args[0], maps)
