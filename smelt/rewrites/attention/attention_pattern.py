"""The forward of attention in an aten graph: from the product of queries and keys to the product with the values."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.rewrites.attention.element_maps import ElementMaps
from smelt.rewrites.attention.value_facts import constant_value

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# A filled-in number up to this one means "masked". It is replaced by minus infinity, which is the same unless all
# visible scores are as low.
MASKED = -5e4


class Refused(Exception):
    """The reason why attention is not fused."""


@dataclass(frozen=True)
class Step:
    """An operation on all scores: `same` (another shape or dtype), `scaled` (by a number), `added` (`number`, 1 or -1,
    times a tensor), `filled` (with a number, where a mask is `where`)."""

    kind: Literal["same", "scaled", "added", "filled"]
    node: Node
    number: float = 0.0
    tensor: Node | None = None
    where: bool = True
    source: Node | None = None  # of `same`


@dataclass(frozen=True)
class Attention:
    """`result` [n, l, d] is softmax(steps(q @ k)) @ v for q [n, l, e], k [n, e, s] and v [n, s, d]. `inside`: the
    nodes from the first product to `probabilities` [n, l, s], in reverse order."""

    result: Node
    q: Node
    k: Node
    v: Node
    steps: tuple[Step, ...]
    softmax: Node
    inside: tuple[Node, ...]

    @property
    def probabilities(self) -> Node:
        """The first operand of the product with the values."""
        return self.inside[0]

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return math.prod(s.number for s in self.steps if s.kind == "scaled")

    def weight(self, step: Step) -> float:
        """The factor by which later steps multiply a step's tensor or number."""
        later = self.steps[self.steps.index(step) + 1 :]
        return math.prod(s.number for s in later if s.kind == "scaled")

    @property
    def added(self) -> tuple[Step, ...]:
        """The steps that add a tensor to the scores."""
        return tuple(s for s in self.steps if s.kind == "added")

    @property
    def filled(self) -> Step | None:
        """The step that fills in a number where a mask hides scores."""
        return next((s for s in self.steps if s.kind == "filled"), None)


def match_attention(result: Node, maps: ElementMaps) -> Attention | None:
    """The attention whose second product is `result`; None if it is another operation. Raises Refused."""
    if result.target is not aten.bmm.default:
        return None
    probabilities, v = result.args
    if not all(type(n) is int for x in (result, probabilities) for n in x.spec.shape):
        raise Refused("sizes are symbolic")
    inside = [probabilities]
    while inside[-1].target is not aten._softmax.default:
        source = same_elements(inside[-1], maps)
        if source is None:
            return None
        inside += views_between(inside[-1], source, maps)
        inside.append(source)
    softmax = inside[-1]
    steps = _steps(softmax.args[0], maps)
    if steps is None:
        return None
    for step in reversed(steps):
        inside += [
            step.node,
            *(views_between(step.node, step.source, maps) if step.source is not None else ()),
        ]
    product = steps[0].node
    q, k = product.args[-2:]
    attention = Attention(result, q, k, v, tuple(steps[1:]), softmax, tuple(inside))
    _check(attention)
    return attention


def same_elements(node: Node, maps: ElementMaps) -> Node | None:
    """The node whose elements `node` has, in order, perhaps in another floating dtype; None if there is none."""
    if node.op != "call_function":
        return None
    if node.target is aten.copy.default:
        source = node.args[1]
        return source if source.spec.shape == node.spec.shape and _is_float(source) else None
    if node.target is aten._to_copy.default:
        source = node.args[0]
        return source if _is_float(source) and source.spec.device == node.spec.device else None
    return maps.reshaped(node)


def views_between(node: Node, source: Node, maps: ElementMaps) -> list[Node]:
    """The views and copies by which `node` has the elements of `source`."""
    if maps.of(node).root is node:
        return []
    return [n for n in itertools.takewhile(lambda n: n is not source, maps.chain(node)) if n is not node]


def factor_of(node: Node, maps: ElementMaps) -> tuple[Node, float] | None:
    """(x, c) for a node that is `x * c` or `x / c`, elementwise."""
    if node.target in (aten.mul.Tensor, aten.mul.Scalar):
        for x, c in (node.args, node.args[::-1]):
            value = constant_value(c, maps)
            if value is not None and isinstance(x, Node) and x.spec.shape == node.spec.shape:
                return x, value
    if node.target in (aten.div.Tensor, aten.div.Scalar):
        value = constant_value(node.args[1], maps)
        if value and isinstance(node.args[0], Node) and node.args[0].spec.shape == node.spec.shape:
            return node.args[0], 1.0 / value
    return None


def filled_with(node: Node, maps: ElementMaps) -> tuple[Node, Node, float, bool] | None:
    """(x, mask, c, where): the node is x with the number c where `mask` is `where`."""
    if node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        x, mask, filler = node.args
        value = constant_value(filler, maps)
        if value is not None and x.spec.shape == node.spec.shape:
            return x, mask, value, True
    if node.target is aten.where.self:
        mask, *sides = node.args
        for where in (False, True):
            x, filler = sides if not where else sides[::-1]
            value = constant_value(filler, maps)
            if value is not None and x.spec.shape == node.spec.shape:
                return x, mask, value, where
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.spec, TensorSpec) and value.spec.dtype in FLOATS


def _steps(node: Node, maps: ElementMaps) -> list[Step] | None:
    """The product that computes the scores `node`, and the steps after it, in order; None if there is no such product."""
    if node.target is aten.bmm.default:
        return [Step("same", node)]
    if node.target is aten.baddbmm.default:
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        steps = [Step("same", node), Step("scaled", node, float(alpha))]
        if beta not in (0, 1) or not isinstance(alpha, (int, float)):
            return None
        return steps if beta == 0 else [*steps, Step("added", node, 1.0, node.args[0])]
    for source, step in _step_candidates(node, maps):
        before = _steps(source, maps)
        if before is not None:
            return [*before, step]
    return None


def _step_candidates(node: Node, maps: ElementMaps) -> list[tuple[Node, Step]]:
    """The possible last steps of `node`, each with the scores before it."""
    if (source := same_elements(node, maps)) is not None:
        return [(source, Step("same", node, source=source))]
    if (scaled := factor_of(node, maps)) is not None:
        return [(scaled[0], Step("scaled", node, scaled[1]))]
    if (filled := filled_with(node, maps)) is not None:
        x, mask, value, where = filled
        return [(x, Step("filled", node, value, mask, where))]
    sign = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}.get(node.target)
    if sign is None or node.kwargs.get("alpha", 1) != 1 or not all(map(_is_float, node.args)):
        return []
    a, b = node.args
    sides = [(a, Step("added", node, sign, b))]
    if sign == 1.0:
        sides.append((b, Step("added", node, 1.0, a)))
    return [(x, step) for x, step in sides if x.spec.shape == node.spec.shape]


def _check(attention: Attention) -> None:
    """Raise Refused for attention that the kernels do not compute."""
    q, k, v = (x.spec for x in (attention.q, attention.k, attention.v))
    sizes = [n for s in (q, k, v) for n in s.shape]
    if not all(type(n) is int and n > 0 for n in sizes):
        raise Refused("sizes are symbolic or zero")
    if (
        q.device.type != "cuda"
        or q.dtype not in FLOATS
        or any((s.dtype, s.device) != (q.dtype, q.device) for s in (k, v))
    ):
        raise Refused("queries, keys and values have several dtypes or devices, or are on a CPU")
    if any(x.spec.dtype not in FLOATS for x in attention.inside):
        raise Refused("scores are computed in float64")
    softmax = attention.softmax
    if softmax.args[1] % len(softmax.spec.shape) != len(softmax.spec.shape) - 1:
        raise Refused("the softmax is along another dimension")
    matrices = q.shape[1], k.shape[2]
    if any(x.spec.shape[-2:] != matrices for x in attention.inside if len(x.spec.shape) < 5):
        raise Refused("the softmax is of matrices in another shape")
    if softmax.spec.shape[-1] != matrices[1]:
        raise Refused("the softmax is of rows of another length")
    kinds = [s.kind for s in attention.steps if s.kind in ("added", "filled")]
    if kinds != sorted(kinds) or kinds.count("filled") > 1:
        raise Refused("scores are masked before something is added, or twice")
    if not 0 < attention.scale < math.inf or any(
        s.number <= 0 for s in attention.steps if s.kind == "scaled"
    ):
        raise Refused(f"scores are scaled by {attention.scale}")
    filled = attention.filled
    if filled is not None and not filled.number * attention.weight(filled) <= MASKED:
        raise Refused(f"masked scores are {filled.number}")
