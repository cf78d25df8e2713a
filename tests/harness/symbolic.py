"""Graphs with symbols for sizes, made from traces at sizes that are primes: a multiple of one is its symbol's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.sizes import Size, Sym, evaluate
from tests.harness.traced import traced

S0, S1 = Sym("s0", 2), Sym("s1", 2)
SIZES = {101: S0, 211: S1}  # primes that tests use for no other size


def symbolic(f: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """(aten graph with symbols, the real tensors of its placeholders), of inputs with sizes of `SIZES`."""
    graph, real = traced(f, *inputs)
    return with_sizes(graph, symbol_of), real


def at(graph: Graph, values: Mapping[Sym, int]) -> Graph:
    """The graph at these sizes."""
    return with_sizes(graph, lambda size: evaluate(size, values))


def symbol_of(number: int) -> Size:
    """The product of symbols and a number that `number` is."""
    rest: Size = number
    factor: Size = 1
    for prime, sym in SIZES.items():
        while isinstance(rest, int) and rest and rest % prime == 0:
            rest //= prime
            factor = factor * sym
    return factor * rest


def with_sizes(graph: Graph, change: Callable[[Any], Size]) -> Graph:
    """A copy, with each integer and size of specs and arguments changed."""
    made = Graph(graph.level)
    made.constants = graph.constants
    nodes: dict[Node, Node] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Node):
            return nodes[value]
        if isinstance(value, TensorSpec):
            sizes = {name: mapped(getattr(value, name)) for name in ("shape", "stride", "offset")}
            return replace(value, **sizes)
        if isinstance(value, (tuple, list)):
            return type(value)(map(mapped, value))
        if isinstance(value, slice):
            return slice(*map(mapped, (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            return {k: mapped(v) for k, v in value.items()}
        return change(value) if type(value) is int or isinstance(value, Size) else value

    for node in graph:
        nodes[node] = replace(
            node, args=mapped(node.args), kwargs=mapped(node.kwargs), spec=mapped(node.spec), source=None
        )
        made.nodes.append(nodes[node])
    return made
