"""The symbols of sizes in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.object_handles import Handle
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import Expr, Sym, free_syms


def symbols_in(nodes: Iterable[Node]) -> Iterator[Sym]:
    """The symbols in the specs and arguments of nodes and of the graphs inside of them, with repetitions."""
    for node in nodes:
        for spec in leaves(node.spec, TensorSpec):
            yield from syms_of(spec)
        for leaf in _sizes_and_handles(node):
            if isinstance(leaf, Expr):
                yield from free_syms(leaf)
                continue
            for graph in graphs_in(leaf):
                yield from symbols_in(graph.nodes)


def graphs_in(handle: Handle) -> Sequence[Graph]:
    """The graphs behind a handle."""
    graphs: Sequence[Graph] = getattr(handle.inner, "graphs", ())
    return graphs


def _sizes_and_handles(node: Node) -> list[Expr | Handle]:
    found: list[Any] = leaves(node.args, (Expr, Handle))
    return [*found, *leaves(node.kwargs, (Expr, Handle))] if node.kwargs else found


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
    """The symbols in the arguments of calls, also of graphs inside: a graph without any runs as it is at all sizes."""
    found = frozenset[Sym]()
    for leaf in leaves([(n.args, n.kwargs) for n in graph], (Expr, Handle)):
        of_leaf = [free_syms(leaf)] if isinstance(leaf, Expr) else map(symbols_of_arguments, graphs_in(leaf))
        found = found.union(*of_leaf)
    return found
