"""Values that the user holds, and that some results' gradients may not read there.

Eager reads such a value for the gradients of certain results only. If the others read it too (to compute again what eager
keeps in its stead), they would notice a write that they do not notice in eager, where the only result to notice may be dead.
So what eager reads itself is read from the user's tensor, and all else is computed from a copy, if it is worth one.
"""

from __future__ import annotations

from collections.abc import Container

import torch

from smelt.autograd.recompute_formulas import NodeBuilder
from smelt.autograd.save_costs import Memory
from smelt.graph.ir import Node, NumberSpec, TensorSpec, map_nodes
from smelt.tracing.backward.joint import Joint

aten = torch.ops.aten


class DefensiveCopies:
    """`copy_of`: what looks at the memory of a value in `shared` -> what all but eager's own reads read instead; of the
    value itself, a copy that the forward makes.  `copies`: those copies -> what they are copies of."""

    def __init__(self, joint: Joint, memory: Memory, shared: Container[Node], maker: NodeBuilder) -> None:
        self.copy_of: dict[Node, Node] = {}
        self.copies: dict[Node, Node] = {}
        self.views: set[Node] = set()
        tangents = set(joint.graph.placeholders[joint.n_primals :])
        for node in joint.graph.nodes[:-1]:
            if node in joint.backward or node in tangents or memory.bases[node] not in shared:
                continue
            maker.begin(node)
            if memory.bases[node] is node:
                own = maker(aten.clone.default, node)
                self.copies[own] = node
            else:
                args, kwargs = (map_nodes(a, self._own) for a in (node.args, node.kwargs))
                name = maker.name(f"{node.name}_own")
                own = Node(node.op, node.target, args, kwargs, name, node.spec, node.line, node.source)
                self.views.add(own)
            self.copy_of[node] = own

    def _own(self, node: Node) -> Node:
        return self.copy_of.get(node, node)

    def read(self, node: Node, user: Node) -> Node:
        """What `user`, which eager's backward does not run, reads for `node`."""
        return node if user in self.copy_of else self.copy_of.get(node, node)

    def can_be_made(self, own: Node) -> bool:
        """Whether the copy `own` is laid out as what it is of, so that the same views can be taken of it."""
        return own in self.copies and _layout(own.spec) == _layout(self.copies[own].spec)


def _layout(spec: TensorSpec | NumberSpec | object) -> object:
    return (spec.shape, spec.stride, spec.offset, spec.dtype) if isinstance(spec, TensorSpec) else None
