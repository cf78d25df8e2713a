"""The symbols of sizes in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import Expr, Sym, free_syms


def symbols_in(nodes: Iterable[Node]) -> Iterator[Sym]:
    """The symbols in the specs and arguments of nodes, with repetitions."""
    for node in nodes:
        for spec in leaves(node.spec, TensorSpec):
            yield from syms_of(spec)
        for size in _sizes(node):
            yield from free_syms(size)


def _sizes(node: Node) -> list[Expr]:
    found: list[Any] = leaves(node.args, Expr)
    return [*found, *leaves(node.kwargs, Expr)] if node.kwargs else found


def dimensions(placeholders: Iterable[Node]) -> dict[Sym, tuple[Node, int]]:
    """The first placeholder and dimension with each symbol as its size."""
    found: dict[Sym, tuple[Node, int]] = {}
    for node in placeholders:
        if isinstance(node.spec, TensorSpec):
            for dim, size in enumerate(node.spec.shape):
                if isinstance(size, Sym):
                    found.setdefault(size, (node, dim))
    return found


def symbols_of_arguments(graph: Graph) -> frozenset[Sym]:
    """The symbols in the arguments of calls: a graph without any runs as it is at all sizes."""
    return frozenset[Sym]().union(*(free_syms(e) for n in graph for e in leaves((n.args, n.kwargs), Expr)))
