"""Defensive copies of values that the user holds and that only some results' gradients may read.

Eager reads such a value for the gradients of certain results only. If other gradients read it too (to recompute a
value that eager saves), they would detect a write that they do not detect in eager, where the only result to detect it
may be dead. So eager's own reads use the user's tensor, and everything else is computed from a copy, if it is worth
one.
"""

from __future__ import annotations

from collections.abc import Container

from smelt.autograd.save_costs import Memory
from smelt.graph.ir import Node, NumberSpec, TensorSpec, map_nodes
from smelt.ops.node_builders import CLONE
from smelt.rewrites.graph_rewriter import NodeBuilder
from smelt.tracing.backward.joint import Joint


class DefensiveCopies:
    """`copy_of`: a node in the memory of a value in `shared` -> the node that other readers use instead; for the value
    itself, a copy made by the forward. `copies`: those copies -> their originals. `views`: views of copies."""

    def __init__(self, joint: Joint, memory: Memory, shared: Container[Node], builder: NodeBuilder) -> None:
        self.copy_of: dict[Node, Node] = {}
        self.copies: dict[Node, Node] = {}
        self.views: set[Node] = set()
        tangents = set(joint.graph.placeholders[joint.n_primals :])
        for node in joint.graph.nodes[:-1]:
            if node in joint.backward or node in tangents or memory.bases[node] not in shared:
                continue
            builder.begin(node)
            if memory.bases[node] is node:
                copy = builder(CLONE, node)
                self.copies[copy] = node
            else:
                args, kwargs = (map_nodes(a, self._copy_or_self) for a in (node.args, node.kwargs))
                copy = builder.emit(node.target, args, kwargs, node.spec, f"{node.name}_copy")
                self.views.add(copy)
            self.copy_of[node] = copy

    def _copy_or_self(self, node: Node) -> Node:
        return self.copy_of.get(node, node)

    def read(self, node: Node, user: Node) -> Node:
        """The node that `user`, which is no read of eager's, reads for `node`."""
        return node if user in self.copy_of else self.copy_of.get(node, node)

    def keeps_layout(self, copy: Node) -> bool:
        """Whether `copy` has the layout of its original, so that the same views apply to it."""
        return copy in self.copies and _layout(copy.spec) == _layout(self.copies[copy].spec)


def _layout(spec: TensorSpec | NumberSpec | object) -> object:
    return (spec.shape, spec.stride, spec.offset, spec.dtype) if isinstance(spec, TensorSpec) else None
