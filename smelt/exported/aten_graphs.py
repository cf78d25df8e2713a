"""Conversion of graphs, mostly aten graphs, to and from the data of a program's file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from smelt.errors import ExportError, ProgramError
from smelt.exported.program_file import GraphData, GraphNode, Ref
from smelt.graph.ir import Graph, Line, Node, NumberSpec, OpKind
from smelt.graph.object_handles import handles_in
from smelt.graph.pytree import map_leaves
from smelt.torch_private import OpOverload

_GETITEM = "getitem"
_GETITEMS: dict[Any, Any] = {_GETITEM: operator.getitem}
_NUMBERS = {"int": int, "float": float}  # specs of numbers, by their text


def as_data(
    graph: Graph,
    name_of: Callable[[torch.Tensor], str],
    target_of: Callable[[Node], Any] | None = None,
) -> GraphData:
    """Return `graph` as data. `name_of` returns a constant's name in the state, `target_of` the stored form of a node's
    target; without it, `graph` is an aten graph. Raises ExportError for a node that has no form in a file."""
    target_of = target_of or _aten_target
    index = {node: i for i, node in enumerate(graph)}

    def references(value: Any) -> Any:
        return map_leaves(value, Node, lambda node: Ref(index[node]))

    nodes = []
    for node in graph:
        target = target_of(node)
        if handles_in((node.args, node.kwargs)):
            raise ExportError(
                f"the graph calls {node.name}, a graph inside of a graph (torch.cond, while_loop) or a kernel of the "
                f"program, which has no form in a file{_at(node.line)}"
            )
        spec = node.spec.type.__name__ if isinstance(node.spec, NumberSpec) else node.spec
        line = None if node.line is None else (node.line.filename, node.line.line, node.line.function)
        nodes.append(
            GraphNode(node.op, target, references(node.args), references(node.kwargs), node.name, spec, line)
        )
    return GraphData(tuple(nodes), {key: name_of(value) for key, value in graph.constants.items()})


def restored(
    data: GraphData, state: Mapping[str, torch.Tensor], target_from: Callable[[GraphNode], Any] | None = None
) -> Graph:
    """The graph of `data`: an aten graph, or the torch-level graph whose targets `target_from` returns. Raises ProgramError
    for references to later nodes or to missing constants."""
    graph = Graph("aten" if target_from is None else "torch")
    for d in data.nodes:
        known = graph.nodes

        def node_of(ref: Ref, known: list[Node] = known) -> Node:
            if not 0 <= ref.index < len(known):
                raise ProgramError("a graph whose nodes are out of order")
            return known[ref.index]

        args, kwargs = map_leaves((d.args, d.kwargs), Ref, node_of)
        target = target_from(d) if target_from is not None else _GETITEMS.get(d.target, d.target)
        line = None if d.line is None else Line(*d.line)
        spec = NumberSpec(_NUMBERS[d.spec]) if isinstance(d.spec, str) else d.spec
        graph.nodes.append(Node(cast(OpKind, d.op), target, args, kwargs, d.name, spec, line))
    try:
        graph.constants = {key: state[name] for key, name in data.constants.items()}
    except KeyError as error:
        raise ProgramError(f"a graph with an unknown constant, {error}") from error
    return graph


def _aten_target(node: Node) -> Any:
    target = _GETITEM if node.target is operator.getitem else node.target
    is_known = target == _GETITEM or isinstance(target, OpOverload)
    if node.op == "call_method" or (node.op == "call_function" and not is_known):
        raise ExportError(f"the graph calls {node.target}, which has no form in a file{_at(node.line)}")
    return target


def _at(line: Line | None) -> str:
    return "" if line is None else f" at {line}"
