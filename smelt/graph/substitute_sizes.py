"""Graphs whose sizes have symbols, at numbers: the same nodes, with specs and arguments that are right for these sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.object_handles import handles_in
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.subgraphs import Inner
from smelt.graph.tensor_specs import at_numbers
from smelt.shapes.expr import Expr, Size, Sym, evaluate, free_syms

_NONE: frozenset[Sym] = frozenset()


def at_sizes(graph: Graph, values: Mapping[Sym, Size]) -> Graph:
    """A copy of `graph` for these sizes, numbers or other symbols."""
    return copied_at(graph, values)[0]


def copied_at(graph: Graph, values: Mapping[Sym, Size]) -> tuple[Graph, dict[Node, Node]]:
    """The same, and the copy of each node."""
    made = Graph(graph.level)
    made.constants = graph.constants
    copy_of: dict[Node, Node] = {}

    def argument(leaf: Any) -> Any:
        return copy_of[leaf] if isinstance(leaf, Node) else evaluate(leaf, values)

    for node in graph:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr), argument)
        spec = map_leaves(node.spec, TensorSpec, lambda s: at_numbers(s, values))
        copy_of[node] = replace(node, args=args, kwargs=kwargs, spec=spec)
        made.nodes.append(copy_of[node])
    return made, copy_of


def symbols_of_arguments(graph: Graph) -> frozenset[Sym]:
    """The symbols that calls are given: without them the graph is right for any sizes as it is."""
    return _NONE.union(*(free_syms(e) for n in graph for e in leaves((n.args, n.kwargs), Expr)))


def depends_inside(graph: Graph) -> bool:
    """Whether something that calls are given by its number (graphs inside, kernels of the user's) may depend on symbols:
    `at_sizes` puts no numbers there."""
    handles = [handle for node in graph for handle in handles_in((node.args, node.kwargs))]
    return any(not isinstance(h.inner, Inner) or any(map(_depends, h.inner.graphs)) for h in handles)


def _depends(graph: Graph) -> bool:
    specs = [spec for node in graph for spec in leaves(node.spec, TensorSpec)]
    sizes = [size for s in specs for size in (*s.shape, *s.stride, s.offset)]
    return (
        any(isinstance(size, Expr) for size in sizes)
        or bool(symbols_of_arguments(graph))
        or depends_inside(graph)
    )
