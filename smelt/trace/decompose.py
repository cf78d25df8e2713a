"""Rewriting an aten graph with some of its operators taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.errors import SmeltError
from smelt.graph.effects import effects
from smelt.graph.ir import Graph, Line, Node, NumberSpec, argument_nodes, map_nodes
from smelt.graph.specs import empty_like_spec
from smelt.trace.fake import FakeTensor
from smelt.trace.number_inputs import NumberInput
from smelt.trace.symbols import Symbols, has_symbols
from smelt.trace.trace import Trace

_MAX_ROUNDS = 8


def decompose(graph: Graph, table: Mapping[OpOverload, Callable[..., Any]]) -> Graph:
    """`graph` (functional, aten level) with every operator in `table` replaced by what its function calls.

    The graph is recorded again; placeholders keep their order and names, nodes their lines and torch-level sources. A
    graph without such operators is returned as it is, and so is one that draws random numbers: their order is eager's.
    """
    if any(effects(n.target).random for n in graph.nodes if type(n.target) is OpOverload):
        return graph
    for _ in range(_MAX_ROUNDS):  # what a decomposition calls may be in the table, too
        if not any(n.target in table and not _takes_number(n) for n in graph.nodes):
            break
        graph = _Decomposer(graph, table).run()
    return graph


def _takes_number(node: Node) -> bool:
    return any(isinstance(n.spec, NumberSpec) for n in argument_nodes(node))


class _Decomposer:
    def __init__(self, graph: Graph, table: Mapping[OpOverload, Callable[..., Any]]) -> None:
        self.graph = graph
        self.table = table
        self.line: Line | None = None
        self.values: dict[Node, Any] = {}
        self.trace = Trace(lambda: self.line)

    def run(self) -> Graph:
        out = Graph("aten")
        with torch.no_grad(), torch._C._DisableAutocast():
            for node in self.graph.placeholders:
                if isinstance(node.spec, NumberSpec):
                    self.values[node] = self._number(node)
                    continue
                real = empty_like_spec(node.spec, node.spec.device)
                self.values[node] = self.trace.fake(real, node.name)
            with self.trace:
                for node in self.graph.nodes:
                    self._repeat(node)
        recorded = self.trace.tape.aten.graph
        inputs = [self.trace.inputs.aten_node(f) for f in self.trace.inputs]
        results = tuple(None if n is None else self._node(n) for n in self.graph.output.args[0])
        out.constants = recorded.constants
        out.nodes = [
            *inputs,
            *(node for node in self.graph.placeholders if isinstance(node.spec, NumberSpec)),
            *recorded.nodes,
            Node("output", "output", (results,), {}, "output", self.graph.output.spec),
        ]
        return out

    def _number(self, node: Node) -> Any:
        """A symbolic number that is that placeholder. Operators that are given it are not taken apart, so nothing is
        computed with it, or asked of it."""
        numbers = self.trace.numbers
        if numbers.symbols is None:
            numbers.symbols = Symbols(_refuse, _refuse)
        number = numbers.symbols.leaf(node, node.spec.type())
        numbers.by_expression[number.node.expression] = NumberInput(number.node, {"aten": node})
        return number

    def _node(self, node: Node) -> Node:
        return self.trace.inputs.aten_node(self.values[node])

    def _repeat(self, node: Node) -> None:
        if node.op in ("placeholder", "output"):
            return
        start = len(self.trace.tape.aten.graph.nodes)
        self.line = node.line
        if node.op == "get_attr":
            with self.trace.paused():
                self.values[node] = self.trace.tape.add_constant(self.graph.constants[node.target])
        else:
            args = map_nodes(node.args, self.values.__getitem__)
            kwargs = map_nodes(node.kwargs, self.values.__getitem__)
            function = (
                node.target if has_symbols((args, kwargs)) else self.table.get(node.target, node.target)
            )
            self.values[node] = self._checked(node, function(*args, **kwargs))
        for new in self.trace.tape.aten.graph.nodes[start:]:
            new.source = node.source

    def _checked(self, node: Node, value: Any) -> Any:
        """`value` in the layout that the graph promised: decompositions may give other strides."""
        if node.target not in self.table:
            return value
        if isinstance(value, (tuple, list)):
            return tuple(_laid_out(v, spec) for v, spec in zip(value, node.spec))
        return _laid_out(value, node.spec)


def _refuse(*asked: Any) -> None:
    raise SmeltError("a decomposition depends on a number that changes from call to call")


def _laid_out(value: Any, spec: Any) -> Any:
    if type(value) is not FakeTensor or spec is None or value.spec.stride == spec.stride:
        return value
    empty = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    return torch.ops.aten.copy.default(empty, value)
