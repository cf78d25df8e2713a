"""The backward in one piece.

A joint graph's backward is recorded so that it can run in pieces: an output that others are computed from (`Joint.cuts`)
has a tangent that stands for all that flows into it, and a gradient that says what flows into it from the others. So
autograd can know each such output as a node of its own, with hooks, and gradients that can be asked for. In pieces,
though, all that lies before several outputs is gone through once for each of them: the keys and values that a transformer
returns layer by layer would make its backward quadratic in the number of layers. Where nobody looks at what flows into
those outputs it may flow on, in one piece: gradients are linear in the tangents, so that what reaches the outputs from
elsewhere can still be sent through their own pieces, and adds up.
"""

from __future__ import annotations

import torch

from smelt.autograd.recompute_classes import has_conj_neg_bit
from smelt.graph.graph_passes import eliminate_dead
from smelt.graph.ir import Graph, Node, argument_nodes, map_nodes
from smelt.ops.result_specs import result_spec
from smelt.tracing.backward.joint import Joint

aten = torch.ops.aten


def unsegmented(backward: Graph, joint: Joint) -> Graph:
    """`backward` (of a partition of `joint`) where what flows into the cuts flows on. It takes the same values; a tangent of
    a cut is what comes from elsewhere. It gives the gradients of primals; those of cuts are None."""
    gradients = backward.output.args[0]
    n_own = len(gradients) - len(joint.cuts)
    named = {node.name: node for node in backward.placeholders}
    totals: dict[Node, Node] = {}  # tangent of a cut -> with what flows in from the other outputs
    for value, inflow in zip(joint.cuts, gradients[n_own:]):
        if inflow is not None:
            inflow = _computed(inflow)
            tangent = named[f"tangents_{joint.tangents.index(value) + 1}"]
            spec = result_spec(aten.add.Tensor, (tangent, inflow), {})
            totals[tangent] = Node(
                "call_function",
                aten.add.Tensor,
                (tangent, inflow),
                {},
                f"{tangent.name}_and_inflow",
                spec,
                inflow.line,
            )
    returned = (*gradients[:n_own], *(None for _ in joint.cuts))
    return _reading(backward, totals, returned)


def _computed(gradient: Node) -> Node:
    """Kernels read memory, in which there are other signs where a gradient is lazy. In pieces autograd hands it on, and it
    is computed where it arrives."""
    if not has_conj_neg_bit(gradient):
        return gradient
    spec = result_spec(aten.clone.default, (gradient,), {})
    name = f"{gradient.name}_computed"
    return Node("call_function", aten.clone.default, (gradient,), {}, name, spec, gradient.line)


def _reading(graph: Graph, instead: dict[Node, Node], returned: tuple[Node | None, ...]) -> Graph:
    """A copy that returns `returned`, whose nodes read `instead[n]` for `n`; in the old order where that is still one."""
    own = {total: tangent for tangent, total in instead.items()}  # what a total reads as it is
    copies: dict[Node, Node] = {}

    def read(argument: Node, user: Node | None = None) -> Node:
        if user is not None and own.get(user) is argument:
            return argument
        return instead.get(argument, argument)

    def copy(node: Node) -> Node:
        args = map_nodes(node.args, lambda n: copies[read(n, node)])
        kwargs = map_nodes(node.kwargs, lambda n: copies[read(n, node)])
        return Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line, node.source)

    def emit(root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [n for a in argument_nodes(node) if (n := read(a, node)) not in copies]
            if not missing:
                stack.pop()
                copies[node] = copies.get(node) or copy(node)
            stack += missing
        return copies[root]

    for node in graph.nodes[:-1]:
        emit(node)
    results = tuple(None if n is None else emit(read(n)) for n in returned)
    specs = tuple(None if n is None else n.spec for n in results)
    made = Graph("aten")
    made.constants = dict(graph.constants)
    made.nodes = [*copies.values(), Node("output", "output", (results,), {}, "output", specs)]
    eliminate_dead(made)
    return made
