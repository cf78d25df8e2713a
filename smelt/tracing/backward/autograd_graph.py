"""Walks through autograd's graph, from results to what they were computed from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from typing import Any

Edge = tuple[Any, int]  # a node of autograd, and which of its results


def reachable_edges(nodes: Iterable[Any], ends: Collection[Any] = ()) -> KeysView[Edge]:
    """What `nodes` and all nodes behind them are computed from, in the order in which it is met; not what `ends` are."""
    pending = list(nodes)
    seen = set(pending)
    found: dict[Edge, None] = {}
    while pending:
        node = pending.pop()
        for following, output in () if node in ends else node.next_functions:
            if following is not None:
                found[following, output] = None
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
    return found.keys()


def topological_order(results: Sequence[Any], outside: frozenset[Any]) -> list[Any]:
    """The nodes, those that gradients reach first before those behind them."""
    done: dict[Any, None] = {}
    for result in results:
        stack = [(result, False)]
        while stack:
            node, is_left = stack.pop()
            if is_left:
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
    """Keys that sort `results`, and the nodes behind them, by the order of their computation. Autograd numbers its nodes as
    they are made, but a view of memory that was written since is given a new one only when an operator looks for it."""
    keys: dict[Any, tuple[int, int]] = {}
    for i, node in enumerate(reversed(topological_order(tuple(results), frozenset(outside)))):
        behind = (keys[following][0] for following, _ in node.next_functions if following in keys)
        keys[node] = max([node._sequence_nr(), *behind]), i
    return keys
