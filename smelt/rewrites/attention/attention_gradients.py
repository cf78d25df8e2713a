"""The recorded backward of attention: the nodes that a kernel's backward replaces.

Autograd's formulas, for scores S = q @ k * scale + bias, probabilities P = softmax(S) and the tangent T of the result:

    dv = P.mT @ T
    dS = softmax's backward of T @ v.mT
    dq = dS * scale @ k.mT,   dk = q.mT @ dS * scale
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.rewrites.attention.attention_pattern import (
    FILLED,
    SAME,
    SCALED,
    Attention,
    X,
    fills_where,
    views_between,
)
from smelt.rewrites.attention.element_maps import ElementMap, ElementMaps
from smelt.rewrites.patterns import Call, Capture, Fact, Match, Pattern, Refused, Rule, Where, apply_first

aten = torch.ops.aten


def _elements(value: Node, maps: ElementMaps) -> ElementMap | None:
    return maps.of(value) if isinstance(value.spec, TensorSpec) else None


def _is_masked_as_before(match: Match) -> bool:
    """Whether zeros are where the forward fills in a number."""
    step, maps = match["filled"], match.facts
    if step is None or match["number"] != 0 or fills_where(match) is not step.where:
        return False
    return bool(maps.of(match["tensor"]) == maps.of(step.tensor))


# Names that the search binds: `x` is a gradient that it has found, `filled` the step of the forward; `kT` are the
# elements of k transposed, and so on.
TRANSPOSED_PROBABILITIES = Fact(_elements, "pT")
SOFTMAX_BACKWARD = Call(aten._softmax_backward_data.default, X, Capture("softmax"))
OF_VALUES = Call(aten.bmm.default, X, Capture("tangent"))
OF_PROBABILITIES = Call(aten.bmm.default, Capture("tangent"), Fact(_elements, "vT"))
OF_QUERIES = Call(aten.bmm.default, X, Fact(_elements, "kT"))
OF_KEYS = Call(aten.bmm.default, Fact(_elements, "qT"), X)
# How a user of `factor * dS` computes another multiple of dS: (the change of the factor, whether it masks).
MULTIPLES = (
    Rule(SAME, lambda m: (1.0, False)),
    Rule(SCALED, lambda m: (m["number"], False)),
    Rule(Where(FILLED, _is_masked_as_before), lambda m: (1.0, True)),
)


@dataclass
class Gradients:
    """The gradient nodes of attention, each with its scalar factor.

    Attributes:
        tangent: of the result, [n, l, d].
        of_q, of_k: `factor * dS @ k.mT` [n, l, e] and `factor * q.mT @ dS` [n, e, s].
        of_v: [n, s, d]; None if values need no gradient.
        of_scores: `factor * dS`, read outside of attention: the gradient of the bias.
        inside: nodes without other readers.
    """

    tangent: Node
    of_v: Node | None
    of_q: list[tuple[Node, float]] = field(default_factory=list)
    of_k: list[tuple[Node, float]] = field(default_factory=list)
    of_scores: list[tuple[Node, float]] = field(default_factory=list)
    inside: set[Node] = field(default_factory=set)


Users = Mapping[Node, Sequence[Node]]


def gradients_of(attention: Attention, users: Users, maps: ElementMaps) -> Gradients | None:
    """The gradients of attention; None if the graph has none. Raises Refused if other nodes read scores or
    probabilities."""
    return _Search(attention, users, maps).run()


class _Search:
    def __init__(self, attention: Attention, users: Users, maps: ElementMaps) -> None:
        self.attention, self.users, self.maps = attention, users, maps
        self.inside: set[Node] = set()

    @cached_property
    def transposed(self) -> dict[str, ElementMap | None]:
        """The names in patterns that stand for the elements of transposed matrices."""
        a = self.attention
        operands = {"pT": a.probabilities, "qT": a.q, "kT": a.k, "vT": a.v}
        return {name: self.maps.of(node).transposed for name, node in operands.items()}

    def run(self) -> Gradients | None:
        transposes, backwards = self._readers()
        if len(transposes) > 1 or len(backwards) > 1:
            raise Refused("probabilities have several gradients")
        if not transposes and not backwards:
            return None
        of_v, tangent = self._of_values(transposes[0]) if transposes else (None, None)
        if backwards:
            other = self._tangent_of(backwards[0].args[0])
            if tangent is not None and self.maps.of(tangent) != self.maps.of(other):
                raise Refused("probabilities and values have gradients of different tangents")
            tangent = other
        assert tangent is not None
        gradients = Gradients(tangent, of_v, inside=self.inside)
        if backwards:
            self._follow(gradients, backwards[0], 1.0, self.attention.filled is None)
        return gradients

    def _readers(self) -> tuple[list[Node], list[Node]]:
        """The readers of the probabilities outside of the forward: their transposes, and softmax's backward."""
        attention = self.attention
        forward = {*attention.inside, attention.result}
        transposes, backwards = [], []
        for node in attention.inside:
            for user in self.users[node]:
                if user in forward:
                    continue
                if SOFTMAX_BACKWARD.first(user, softmax=attention.softmax):
                    backwards.append(user)
                elif node is attention.probabilities and self._matches(TRANSPOSED_PROBABILITIES, user):
                    transposes.append(user)
                else:
                    raise Refused(f"scores or probabilities are read by {user}")
        return transposes, backwards

    def _matches(self, pattern: Pattern, value: Node, **bound: Any) -> Match | None:
        return pattern.first(value, self.maps, **self.transposed, **bound)

    def _only_user(self, node: Node) -> Node:
        first, *others = self.users[node]
        if others:
            raise Refused(f"{node} of the backward is read by {others[0]}")
        self.inside.add(node)
        return first

    def _of_values(self, transposed: Node) -> tuple[Node, Node]:
        """(gradient of the values, tangent)."""
        product = self._only_user(transposed)
        match = self._matches(OF_VALUES, product, x=transposed)
        if match is None:
            raise Refused(f"probabilities are read by {product}")
        return product, match["tangent"]

    def _tangent_of(self, node: Node) -> Node:
        """The tangent: the factor that, multiplied by the values, gives `node`, the gradient of the probabilities."""
        while node.target is not aten.bmm.default:
            step = SAME.first(node, self.maps)
            if step is None:
                raise Refused(f"the gradient of the probabilities is changed by {node}")
            for view in (node, *views_between(node, step["x"], self.maps)):
                self._only_user(view)
            node = step["x"]
        self._only_user(node)
        match = self._matches(OF_PROBABILITIES, node)
        if match is None:
            raise Refused("the gradient of the probabilities is a product with other values")
        tangent: Node = match["tangent"]
        return tangent

    def _follow(self, gradients: Gradients, node: Node, factor: float, masked: bool) -> None:
        """Collect the gradients computed from `node`, which is `factor` times the gradient of the scores. `masked`:
        with zeros where the forward fills in a number."""
        self.inside.add(node)
        ends = False
        for user in self.users[node]:
            multiple = self._multiple(user, node)
            if multiple is not None:
                self._follow(gradients, user, factor * multiple[0], masked or multiple[1])
            else:
                ends = True
                self._end(gradients, user, node, factor)
        if ends and not masked:
            raise Refused("the gradient of masked scores is not masked")

    def _multiple(self, user: Node, node: Node) -> tuple[float, bool] | None:
        """The result of the rule in MULTIPLES for a user of `node`, or of the tensor that `node` is a view of."""
        sources = dict.fromkeys((node, self.maps.of(node).root))
        found = (apply_first(MULTIPLES, user, self.maps, x=x, filled=self.attention.filled) for x in sources)
        return next((multiple for multiple in found if multiple is not None), None)

    def _end(self, gradients: Gradients, user: Node, node: Node, factor: float) -> None:
        if self._matches(OF_QUERIES, user, x=node):
            gradients.of_q.append((user, factor))
        elif self._matches(OF_KEYS, user, x=node):
            gradients.of_k.append((user, factor))
        elif not self.attention.added:
            raise Refused(f"the gradient of the scores is read by {user}")
        elif (node, factor) not in gradients.of_scores:
            gradients.of_scores.append((node, factor))
