"""Views with a set neg bit that are both returned and read by kernels.

A kernel reads memory and receives the value whose negative it computes with; a returned view aliases the memory that
other results show too. One value cannot be both.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from smelt.graph import graph_passes
from smelt.graph.conj_neg_bits import NEGATIVE
from smelt.graph.ir import Graph, Node, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.torch_private import OpOverload


def only_returned(graph: Graph, node: Node) -> bool:
    """Whether a value and its views are results of the graph and nothing else reads them."""
    users = [n for n in graph if node in leaves([n.args, n.kwargs], Node)]
    return all(n.op == "output" or (is_part(n) and only_returned(graph, n)) for n in users)


def is_part(node: Node) -> bool:
    """Whether a node returns views of its first argument, or is one of several results."""
    return node.target is operator.getitem or _is_view(node)


def _is_view(node: Node) -> bool:
    """Whether an operator only returns views of its first argument."""
    results = effects(node.target).results if isinstance(node.target, OpOverload) else ()
    return bool(results) and all(r.kind == "view" for r in results)


def with_signs_apart(graph: Graph) -> Graph:
    """`graph` (aten level) with a second copy of such results' nodes for the output, or itself if there are none."""
    twice: set[Node] = set()
    for result in leaves(graph.output.args, Node):
        chain = _views(result)
        signs = [k for k, n in enumerate(chain) if n.target is NEGATIVE and not only_returned(graph, n)]
        if signs:
            twice.update(chain[: signs[-1] + 1])
    if not twice:
        return graph
    made, copy_of = graph_passes.copied(graph, graph.constants)
    returned: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in graph:
        nodes.append(copy_of[node])
        if node in twice:
            args = map_nodes(node.args, lambda n: returned.get(n, copy_of[n]))
            returned[node] = replace(node, args=args, name=f"{node.name}_returned")
            nodes.append(returned[node])
    made.nodes = nodes
    of_copies = {copy_of[node]: second for node, second in returned.items()}
    made.output.args = map_nodes(made.output.args, lambda n: of_copies.get(n, n))
    return made


def _views(node: Node) -> list[Node]:
    """The chain of views to a value, last first."""
    found = []
    while is_part(node):
        found.append(node)
        node = node.args[0]
    return found
