"""The unsegmented backward.

A joint graph's backward is recorded so that it can run in segments: an output that others are computed from
(`Joint.cuts`) has a tangent that stands for all that flows into it, and a gradient for what flows into it from the
others. So autograd has a node for each such output, with hooks and gradients of its own. In segments, though,
everything before several outputs runs once for each of them: the keys and values that a transformer returns layer by
layer would make its backward quadratic in the number of layers. Where nothing observes the gradients that flow into
those outputs, they may flow on in one graph: gradients are linear in the tangents, so that what reaches the outputs
from elsewhere can still be sent through their own segments, and adds up. Where something reaches the last of them from
elsewhere, or a hook is there, the flow stops there, so that what precedes this output runs once.
"""

from __future__ import annotations

from enum import IntEnum

from smelt.autograd.recompute_classes import has_conj_neg_bit
from smelt.graph.graph_passes import eliminate_dead, stays_in_backward
from smelt.graph.ir import Graph, Node, argument_nodes, map_nodes
from smelt.ops.node_builders import ADD, CLONE
from smelt.ops.result_specs import result_spec
from smelt.tracing.backward.joint import Joint


class Reach(IntEnum):
    """How far a backward computes: to the cuts that come first, past all of them but the last, or past all of them."""

    SEGMENT, TO_LAST, WHOLE = range(3)


def unsegmented(backward: Graph, joint: Joint, stop: int | None = None) -> Graph:
    """`backward` (of a partition of `joint`) with the flow into the cuts continued, except for that of tangent `stop`. It
    has the same inputs; a tangent of a cut is the gradient from elsewhere. It returns the gradients of primals; those of
    cuts are None, except for that of `stop`."""
    gradients = backward.output.args[0]
    n_primal = len(gradients) - len(joint.cuts)
    named = {node.name: node for node in backward.placeholders}
    totals: dict[Node, Node] = {}  # tangent of a cut -> its sum with the inflow from other outputs
    stopped: list[Node | None] = [None] * len(joint.cuts)
    for at, (value, inflow) in enumerate(zip(joint.cuts, gradients[n_primal:])):
        k = joint.tangents.index(value)
        if k == stop:
            stopped[at] = inflow
        elif inflow is not None:
            inflow = _materialized(inflow)
            tangent = named[f"tangents_{k + 1}"]
            spec = result_spec(ADD, (tangent, inflow), {})
            totals[tangent] = Node(
                "call_function",
                ADD,
                (tangent, inflow),
                {},
                f"{tangent.name}_and_inflow",
                spec,
                inflow.line,
            )
    returned = (*gradients[:n_primal], *stopped)
    return _substituted(backward, totals, returned)


def _materialized(gradient: Node) -> Node:
    """The gradient without pending conjugation or negation, which kernels would not see in memory. In segments
    autograd passes it on, and it is materialized where it arrives."""
    if not has_conj_neg_bit(gradient):
        return gradient
    spec = result_spec(CLONE, (gradient,), {})
    name = f"{gradient.name}_materialized"
    return Node("call_function", CLONE, (gradient,), {}, name, spec, gradient.line)


def _substituted(graph: Graph, substitutes: dict[Node, Node], returned: tuple[Node | None, ...]) -> Graph:
    """A copy that returns `returned` and whose nodes read `substitutes[n]` for `n`, in topological order."""
    tangent_of = {
        total: tangent for tangent, total in substitutes.items()
    }  # a total reads the tangent itself
    copies: dict[Node, Node] = {}

    def read(argument: Node, user: Node | None = None) -> Node:
        if user is not None and tangent_of.get(user) is argument:
            return argument
        return substitutes.get(argument, argument)

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
    result = Graph("aten")
    result.constants = dict(graph.constants)
    result.nodes = [*copies.values(), Node("output", "output", (results,), {}, "output", specs)]
    eliminate_dead(result, stays_in_backward)
    return result
