"""Gradient liveness: for which results' gradients a value is read. The user may write a value that only gradients of
dead results read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

from smelt.graph.ir import Node, argument_nodes


def live_for(
    nodes: Sequence[Node], tangents: Sequence[Node], backward: Container[Node]
) -> Mapping[Node, int]:
    """For each node that nodes of `backward` read, the tangents (as bits) for whose gradients they do; `nodes` in
    order."""
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
