"""Traversals of autograd's graph, from results to what they were computed from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from typing import Any

Edge = tuple[Any, int]  # an autograd node and the index of its result


def reachable_edges(nodes: Iterable[Any], ends: Collection[Any] = ()) -> KeysView[Edge]:
    """The edges reachable from `nodes`, in traversal order, without those beyond `ends`."""
    pending = list(nodes)
    seen = set(pending)
    edges: dict[Edge, None] = {}
    while pending:
        node = pending.pop()
        for following, output in () if node in ends else node.next_functions:
            if following is not None:
                edges[following, output] = None
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
    return edges.keys()


def topological_order(results: Sequence[Any], outside: frozenset[Any]) -> list[Any]:
    """The nodes reachable from `results` without `outside`, each before those that its gradients flow to."""
    done: dict[Any, None] = {}
    for result in results:
        stack = [(result, False)]
        while stack:
            node, is_finished = stack.pop()
            if is_finished:
                done[node] = None
            elif (
                node is not None
                and node not in done
                and node not in outside
                and not hasattr(node, "variable")
            ):
                stack.append((node, True))
                stack += [(following, False) for following, _ in node.next_functions]
    return [*reversed(done)]


def computation_order(results: Iterable[Any], outside: Iterable[Any]) -> Mapping[Any, tuple[int, int]]:
    """Sort keys that order `results`, and the nodes they reach, by their computation. Autograd numbers nodes on
    creation, but a view of memory that was written since gets a new node only on its next use."""
    keys: dict[Any, tuple[int, int]] = {}
    for i, node in enumerate(reversed(topological_order(tuple(results), frozenset(outside)))):
        inputs = (keys[following][0] for following, _ in node.next_functions if following in keys)
        keys[node] = max([node._sequence_nr(), *inputs]), i
    return keys
