"""Gradient liveness: for which results' gradients a value is read, and which gradients need it. The user may write a
value that is read only for gradients of dead results, or only for gradients that nobody requests."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

from smelt.graph.ir import Graph, Node, argument_nodes


def live_for(
    nodes: Sequence[Node], tangents: Sequence[Node], backward: Container[Node]
) -> Mapping[Node, int]:
    """For each node that nodes of `backward` read, a bit mask of the tangents for whose gradients they do; `nodes`
    in order."""
    depends = defaultdict(int, {tangent: 1 << k for k, tangent in enumerate(tangents)})
    for node in nodes:
        for argument in argument_nodes(node):
            depends[node] |= depends[argument]
    reads: defaultdict[Node, int] = defaultdict(int)
    for node in reversed(nodes):
        if node in backward:
            # a node that no tangent reaches (the sine in a cosine's derivative) is live for its readers
            readers = depends[node] or reads[node]
            for argument in argument_nodes(node):
                reads[argument] |= readers
    return reads


def needed_for(backward: Graph, n_saved: int) -> list[int]:
    """For each saved value, a bit mask of the gradients for which eager would run a node that reads it: all that are
    computed from the same tangent."""
    tangents = backward.placeholders[n_saved:]
    depends = {*tangents}
    for node in backward.nodes[:-1]:
        if not depends.isdisjoint(argument_nodes(node)):
            depends.add(node)
    gives: defaultdict[Node, int] = defaultdict(int)
    for k, gradient in enumerate(backward.output.args[0]):
        if gradient is not None:
            gives[gradient] |= 1 << k
    for node in reversed(backward.nodes[:-1]):
        for argument in argument_nodes(node) if node in depends else ():
            if argument in depends:
                gives[argument] |= gives[node]
    for node in reversed(backward.nodes[:-1]):
        arguments = list(argument_nodes(node))
        with_tangents = [gives[a] for a in arguments if a in depends] or [gives[node]]
        for argument in arguments:
            if argument not in depends:
                gives[argument] |= functools.reduce(operator.or_, with_tangents)
    return [gives[p] for p in backward.placeholders[:n_saved]]
