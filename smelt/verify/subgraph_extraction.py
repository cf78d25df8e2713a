"""Subgraphs of an aten graph as graphs of their own."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence

from smelt.graph.graph_passes import extract
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, argument_nodes

Unit = tuple[Node, ...]  # a call, with the nodes that read one of its several results


def units(graph: Graph) -> list[Unit]:
    """The calls of a graph, in order."""
    found: dict[Node, list[Node]] = {}
    for node in graph:
        if node.target is operator.getitem and node.args[0] in found:
            found[node.args[0]].append(node)
        elif node.op.startswith("call"):
            found[node] = [node]
    return [tuple(unit) for unit in found.values()]


def part(graph: Graph, inside: Sequence[Node], results: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """The nodes `inside` that `results` need, as a graph that returns these, and its inputs: nodes of `graph`."""
    needed = needed_for(inside, results)
    body = [n for n in inside if n in needed]
    read = dict.fromkeys(a for n in body for a in argument_nodes(n) if a not in needed)
    takes = [n for n in read if n.op != "get_attr"]
    constants = [n for n in read if n.op == "get_attr"]
    return extract(graph, takes, [*constants, *body], results), takes


def needed_for(inside: Sequence[Node], results: Iterable[Node]) -> set[Node]:
    """The nodes of `inside` that `results` are, or are computed from."""
    needed = set(results)
    for node in reversed(inside):
        if node in needed:
            needed.update(argument_nodes(node))
    return needed.intersection(inside)


def live(graph: Graph, before: Collection[Node]) -> list[Node]:
    """The nodes among `before` that later nodes or the graph's results read, and writes, which have no readers."""
    read = dict.fromkeys(a for n in graph if n not in before for a in argument_nodes(n))
    return [n for n in graph if n in before and (n in read or n.target is WRITE_INPUT)]
