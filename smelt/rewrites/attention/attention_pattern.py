"""The forward of attention in an aten graph: from the product of queries and keys to the product with the values.

    softmax(steps(q @ k), -1) @ v

`STEPS` are the rules for the operations on all scores between the products; `_legality` lists what the kernels compute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.rewrites.attention.element_maps import ElementMaps
from smelt.rewrites.attention.value_facts import constant_value
from smelt.rewrites.patterns import (
    Call,
    Capture,
    Fact,
    Match,
    OneOf,
    Refused,
    Rule,
    Through,
    Where,
    apply_first,
)

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# A filled-in number up to this one means "masked". It is replaced by minus infinity, which is the same unless all
# visible scores are as low.
MASKED = -5e4


@dataclass(frozen=True)
class Step:
    """An operation on all scores: `same` (another shape or dtype), `scaled` (by a number), `added` (`number`, 1 or -1,
    times a tensor), `filled` (with a number, where a mask is `where`)."""

    kind: Literal["same", "scaled", "added", "filled"]
    node: Node
    number: float = 0.0
    tensor: Node | None = None
    where: bool = True
    views: tuple[Node, ...] = ()  # of `same`: those between the scores and `node`


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


# ---- patterns


def _is_float(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.spec, TensorSpec) and value.spec.dtype in FLOATS


def _is_whole(match: Match) -> bool:
    """The operator does not broadcast `x`."""
    return isinstance(match["x"], Node) and bool(match["x"].spec.shape == match["node"].spec.shape)


def _is_cast_of_a_float(match: Match) -> bool:
    return _is_float(match["x"]) and bool(match["x"].spec.device == match["node"].spec.device)


def _is_sum_of_floats(match: Match) -> bool:
    node = match["node"]
    return node.kwargs.get("alpha", 1) == 1 and _is_whole(match) and all(map(_is_float, node.args))


def _adds_at_most_once(match: Match) -> bool:
    beta, alpha = _beta_and_alpha(match["product"])
    return beta in (0, 1) and isinstance(alpha, (int, float))


def _beta_and_alpha(product: Node) -> tuple[Any, Any]:
    return product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)


def _inverse(value: Any, maps: ElementMaps) -> float | None:
    number = constant_value(value, maps)
    return 1.0 / number if number else None


def _reshaped(value: Node, maps: ElementMaps) -> Node | None:
    return maps.reshaped(value) if isinstance(value.spec, TensorSpec) else None


X, TENSOR, NUMBER = Capture("x"), Capture("tensor"), Fact(constant_value, "number")
# The elements of x in order, perhaps in another floating dtype.
SAME = OneOf(
    Where(Call(aten.copy.default, Capture(), X), lambda m: _is_float(m["x"]) and _is_whole(m)),
    Where(Call(aten._to_copy.default, X), _is_cast_of_a_float),
    Fact(_reshaped, "x"),
)
_TIMES = Call((aten.mul.Tensor, aten.mul.Scalar), X, NUMBER, commutative=True)
_OVER = Call((aten.div.Tensor, aten.div.Scalar), X, Fact(_inverse, "number"))
SCALED = Where(OneOf(_TIMES, _OVER), _is_whole)
FILLED = Where(
    OneOf(
        Call((aten.masked_fill.Scalar, aten.masked_fill.Tensor), X, TENSOR, NUMBER),
        Call(aten.where.self, TENSOR, X, NUMBER),
        Call(aten.where.self, TENSOR, NUMBER, X),
    ),
    _is_whole,
)
ADDED = Where(
    OneOf(Call(aten.add.Tensor, X, TENSOR, commutative=True), Call(aten.sub.Tensor, X, TENSOR)),
    _is_sum_of_floats,
)
QUERIES_AND_KEYS = Capture("q"), Capture("k")
PRODUCT = OneOf(
    Call(aten.bmm.default, *QUERIES_AND_KEYS, name="product"),
    Where(Call(aten.baddbmm.default, TENSOR, *QUERIES_AND_KEYS, name="product"), _adds_at_most_once),
)
_SIGNS = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}
CASTS = (Rule(SAME, lambda m: Step("same", m["node"], views=views_between(m["node"], m["x"], m.facts))),)
STEPS = (
    *CASTS,
    Rule(SCALED, lambda m: Step("scaled", m["node"], m["number"])),
    Rule(FILLED, lambda m: Step("filled", m["node"], m["number"], m["tensor"], fills_where(m))),
    Rule(ADDED, lambda m: Step("added", m["node"], _SIGNS[m["node"].target], m["tensor"])),
)
SOFTMAX = Call(aten._softmax.default, Through(STEPS, PRODUCT, "steps"), Capture("dim"), name="softmax")
ATTENTION = Call(aten.bmm.default, Through(CASTS, SOFTMAX, "casts"), Capture("v"))


def fills_where(match: Match) -> bool:
    """The value of the mask where FILLED has the number."""
    return match["node"].args[1] is not match["x"]


def views_between(node: Node, source: Node, maps: ElementMaps) -> tuple[Node, ...]:
    """The views and copies by which `node` has the elements of `source`."""
    if maps.of(node).root is node:
        return ()
    return tuple(n for n in itertools.takewhile(lambda n: n is not source, maps.chain(node)) if n is not node)


# ---- rules


def _legality(a: Attention) -> Iterator[tuple[bool, str]]:
    """What the kernels compute, with the reason to refuse other attention."""
    q, k, v = (x.spec for x in (a.q, a.k, a.v))
    yield all(type(n) is int and n > 0 for s in (q, k, v) for n in s.shape), "sizes are symbolic or zero"
    uniform = (q.dtype, q.device) == (k.dtype, k.device) == (v.dtype, v.device)
    on_gpu = uniform and q.device.type == "cuda" and q.dtype in FLOATS
    yield on_gpu, "queries, keys and values have several dtypes or devices, or are on a CPU"
    yield all(x.spec.dtype in FLOATS for x in a.inside), "scores are computed in float64"
    softmax = a.softmax.spec.shape
    yield a.softmax.args[1] in (-1, len(softmax) - 1), "the softmax is along another dimension"
    matrices = {x.spec.shape[-2:] for x in a.inside if len(x.spec.shape) < 5}
    yield matrices <= {(q.shape[1], k.shape[2])}, "the softmax is of matrices in another shape"
    yield softmax[-1] == k.shape[2], "the softmax is of rows of another length"
    kinds = [s.kind for s in a.steps if s.kind in ("added", "filled")]
    once = kinds == sorted(kinds) and kinds.count("filled") <= 1
    yield once, "scores are masked before something is added, or twice"
    scales = [s.number for s in a.steps if s.kind == "scaled"]
    yield 0 < a.scale < math.inf and min(scales, default=1) > 0, f"scores are scaled by {a.scale}"
    if a.filled is not None:
        yield a.filled.number * a.weight(a.filled) <= MASKED, f"masked scores are {a.filled.number}"


def _attention(match: Match) -> Attention:
    """The attention that ATTENTION matches. Raises Refused."""
    product, softmax = match["product"], match["softmax"]
    steps: tuple[Step, ...] = match["steps"]
    if product.target is aten.baddbmm.default:
        beta, alpha = _beta_and_alpha(product)
        added = (Step("added", product, 1.0, product.args[0]),) if beta else ()
        steps = (Step("scaled", product, float(alpha)), *added, *steps)
    inside = (*_nodes(match["casts"]), softmax, *_nodes(match["steps"]), product)
    attention = Attention(match["node"], match["q"], match["k"], match["v"], steps, softmax, inside)
    for is_legal, reason in _legality(attention):
        if not is_legal:
            raise Refused(reason)
    return attention


def _nodes(steps: Sequence[Step]) -> list[Node]:
    """The nodes of steps, in reverse order."""
    return [n for step in reversed(steps) for n in (step.node, *step.views)]


def match_attention(result: Node, maps: ElementMaps) -> Attention | None:
    """The attention whose second product is the `bmm` `result`; None if there is none. Raises Refused."""
    if not all(type(n) is int for x in (result, result.args[0]) for n in x.spec.shape):
        raise Refused("sizes are symbolic")
    return apply_first((Rule(ATTENTION, _attention),), result, maps)
