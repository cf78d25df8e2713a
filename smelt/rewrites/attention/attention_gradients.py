"""The recorded backward of attention: the nodes that a kernel's backward replaces.

Autograd's formulas, for scores S = q @ k * scale + bias, probabilities P = softmax(S) and the tangent T of the result:

    dv = P.mT @ T
    dS = softmax's backward of T @ v.mT
    dq = dS * scale @ k.mT,   dk = q.mT @ dS * scale
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from smelt.graph.ir import Node
from smelt.rewrites.attention.attention_pattern import (
    Attention,
    Refused,
    factor_of,
    filled_with,
    same_elements,
    views_between,
)
from smelt.rewrites.attention.element_maps import ElementMaps

aten = torch.ops.aten


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


def gradients_of(
    attention: Attention,
    users: Mapping[Node, Sequence[Node]],
    maps: ElementMaps,
) -> Gradients | None:
    """The gradients of attention; None if the graph has none. Raises Refused if other nodes read scores or
    probabilities."""
    return _Search(attention, users, maps).run()


class _Search:
    def __init__(
        self,
        attention: Attention,
        users: Mapping[Node, Sequence[Node]],
        maps: ElementMaps,
    ) -> None:
        self.attention, self.users, self.maps = attention, users, maps
        self.inside: set[Node] = set()

    def run(self) -> Gradients | None:
        transposes, backwards = self._readers()
        if len(transposes) > 1 or len(backwards) > 1:
            raise Refused("probabilities have several gradients")
        if not transposes and not backwards:
            return None
        of_v, tangent = self._of_values(transposes[0]) if transposes else (None, None)
        if backwards:
            other = self._tangent_of(backwards[0])
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
        forward: Collection[Node] = {*self.attention.inside, self.attention.result}
        transposes, backwards = [], []
        for node in self.attention.inside:
            for user in dict.fromkeys(self.users[node]):
                if user in forward:
                    continue
                if (
                    user.target is aten._softmax_backward_data.default
                    and user.args[1] is self.attention.softmax
                ):
                    backwards.append(user)
                elif node is self.attention.probabilities and self._is_transpose(user, node):
                    transposes.append(user)
                else:
                    raise Refused(f"scores or probabilities are read by {user}")
        return transposes, backwards

    def _is_transpose(self, node: Node, source: Node) -> bool:
        if node.op != "call_function" or node.spec.shape[-2:] != source.spec.shape[-2:][::-1]:
            return False
        return self.maps.of(node) == self.maps.of(source).transposed

    def _only_user(self, node: Node) -> Node:
        first, *others = dict.fromkeys(self.users[node])
        if others:
            raise Refused(f"{node} of the backward is read by {others[0]}")
        self.inside.add(node)
        return first

    def _of_values(self, transposed: Node) -> tuple[Node, Node]:
        """(gradient of the values, tangent)."""
        product = self._only_user(transposed)
        if product.target is not aten.bmm.default or product.args[0] is not transposed:
            raise Refused(f"probabilities are read by {product}")
        return product, product.args[1]

    def _tangent_of(self, backward: Node) -> Node:
        """The tangent: the factor that, multiplied by the values, gives the gradient of the probabilities."""
        node = backward.args[0]
        while node.target is not aten.bmm.default:
            source = same_elements(node, self.maps)
            if source is None:
                raise Refused(f"the gradient of the probabilities is changed by {node}")
            for view in (node, *views_between(node, source, self.maps)):
                self._only_user(view)
            node = source
        self._only_user(node)
        tangent: Node = node.args[0]
        if self.maps.of(node.args[1]) != self.maps.of(self.attention.v).transposed:
            raise Refused("the gradient of the probabilities is a product with other values")
        return tangent

    def _follow(self, gradients: Gradients, node: Node, factor: float, masked: bool) -> None:
        """Collect the gradients computed from `node`, which is `factor` times the gradient of the scores. `masked`:
        with zeros where the forward fills in a number."""
        self.inside.add(node)
        ends = False
        for user in dict.fromkeys(self.users[node]):
            scaled = factor_of(user, self.maps)
            source = same_elements(user, self.maps)
            if source is not None and source in (node, self.maps.of(node).root):
                self._follow(gradients, user, factor, masked)
            elif scaled is not None and scaled[0] is node:
                self._follow(gradients, user, factor * scaled[1], masked)
            elif self._is_masked(user, node):
                self._follow(gradients, user, factor, True)
            else:
                ends = True
                self._end(gradients, user, node, factor)
        if ends and not masked:
            raise Refused("the gradient of masked scores is not masked")

    def _end(self, gradients: Gradients, user: Node, node: Node, factor: float) -> None:
        if self._is_product(user, node, 0, self.attention.k):
            gradients.of_q.append((user, factor))
        elif self._is_product(user, node, 1, self.attention.q):
            gradients.of_k.append((user, factor))
        elif not self.attention.added:
            raise Refused(f"the gradient of the scores is read by {user}")
        elif (node, factor) not in gradients.of_scores:
            gradients.of_scores.append((node, factor))

    def _is_masked(self, user: Node, node: Node) -> bool:
        """Whether `user` is `node` with zeros where the forward fills in a number."""
        step = self.attention.filled
        masked = filled_with(user, self.maps) if step is not None else None
        if step is None or masked is None or step.tensor is None:
            return False
        x, mask, value, where = masked
        same = self.maps.of(mask) == self.maps.of(step.tensor) and where is step.where
        return x is node and value == 0 and same

    def _is_product(self, user: Node, node: Node, position: int, other: Node) -> bool:
        """Whether `user` is a product of `node`, its operand at `position`, with `other` transposed."""
        if user.target is not aten.bmm.default or user.args[position] is not node:
            return False
        return self.maps.of(user.args[1 - position]) == self.maps.of(other).transposed
