"""Conversion of graphs, mostly aten graphs, to and from the data of a program's file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch

from smelt.errors import ExportError, ProgramError
from smelt.exported.program_file import GraphData, GraphNode, InnerGraphs, Ref, StepGraphs
from smelt.graph.ir import Graph, Line, Node, NumberSpec, OpKind
from smelt.graph.object_handles import Handle
from smelt.graph.pytree import map_leaves
from smelt.graph.subgraphs import CHOICES, Choice, Inner, Loop, LoopBackward, Rule, stored_name
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
    of_target = target_of or _aten_target
    index = {node: i for i, node in enumerate(graph)}

    def stored(node: Node, leaf: Any) -> Any:
        if isinstance(leaf, Node):
            return Ref(index[leaf])
        if not isinstance(leaf.inner, Inner):
            raise ExportError(
                f"the graph calls {node.name}, a user kernel, which programs cannot hold{_at(node.line)}. "
                "Write it with torch functions"
            )
        inner = leaf.inner
        return inner_data(inner.rule, inner.graphs, name_of, target_of, inner.held)

    nodes = []
    for node in graph:
        target = of_target(node)
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Handle), partial(stored, node))
        spec = node.spec.type.__name__ if isinstance(node.spec, NumberSpec) else node.spec
        line = None if node.line is None else (node.line.filename, node.line.line, node.line.function)
        nodes.append(GraphNode(node.op, target, args, kwargs, node.name, spec, line))
    return GraphData(tuple(nodes), {key: name_of(value) for key, value in graph.constants.items()})


def restored(
    data: GraphData, state: Mapping[str, torch.Tensor], target_from: Callable[[GraphNode], Any] | None = None
) -> Graph:
    """The graph of `data`: an aten graph, or the torch-level graph whose targets `target_from` returns. Raises ProgramError
    for references to later nodes or to missing constants."""
    graph = Graph("aten" if target_from is None else "torch")
    for d in data.nodes:
        known = graph.nodes

        def value_of(ref: Ref | InnerGraphs, known: list[Node] = known) -> Node | Handle:
            if isinstance(ref, InnerGraphs):
                held = ref.held if isinstance(ref, StepGraphs) else ()
                return Handle.of(Inner(*inner_graphs(ref, state, target_from), held))
            if not 0 <= ref.index < len(known):
                raise ProgramError("a graph whose nodes are out of order")
            return known[ref.index]

        args, kwargs = map_leaves((d.args, d.kwargs), (Ref, InnerGraphs), value_of)
        target = target_from(d) if target_from is not None else _GETITEMS.get(d.target, d.target)
        line = None if d.line is None else Line(*d.line)
        spec = NumberSpec(_NUMBERS[d.spec]) if isinstance(d.spec, str) else d.spec
        graph.nodes.append(Node(cast(OpKind, d.op), target, args, kwargs, d.name, spec, line))
    try:
        graph.constants = {key: state[name] for key, name in data.constants.items()}
    except KeyError as error:
        raise ProgramError(f"a graph with an unknown constant, {error}") from error
    return graph


def inner_data(
    rule: Rule,
    graphs: Iterable[Graph],
    name_of: Callable[[torch.Tensor], str],
    target_of: Callable[[Node], Any] | None = None,
    held: tuple[tuple[int, ...], ...] = (),
) -> InnerGraphs:
    """Graphs inside a graph as data."""
    carried = 0 if isinstance(rule, Choice) else rule.carried
    tangents = rule.tangents if isinstance(rule, LoopBackward) else 0
    data = tuple(as_data(graph, name_of, target_of) for graph in graphs)
    if tangents or any(held):
        return StepGraphs(stored_name(rule), carried, data, held, tangents)
    return InnerGraphs(stored_name(rule), carried, data)


def inner_graphs(
    data: InnerGraphs,
    state: Mapping[str, torch.Tensor],
    target_from: Callable[[GraphNode], Any] | None = None,
) -> tuple[Rule, tuple[Graph, ...]]:
    """The rule and the graphs of `data`. Raises ProgramError for an unknown rule."""
    tangents = data.tangents if isinstance(data, StepGraphs) else 0
    loops = Loop(data.carried), Loop(data.carried, True), LoopBackward(tangents, data.carried)
    rules: dict[str, Rule] = {**CHOICES, **{rule.name: rule for rule in loops}}
    if data.rule not in rules or (len(data.graphs) != 2 and not isinstance(rules[data.rule], LoopBackward)):
        raise ProgramError(f"a graph with an unknown rule, {data.rule}")
    return rules[data.rule], tuple(restored(graph, state, target_from) for graph in data.graphs)


def _aten_target(node: Node) -> Any:
    target = _GETITEM if node.target is operator.getitem else node.target
    is_known = target == _GETITEM or isinstance(target, OpOverload)
    if node.op == "call_method" or (node.op == "call_function" and not is_known):
        raise ExportError(f"the graph calls {node.target}, which has no form in a file{_at(node.line)}")
    return target


def _at(line: Line | None) -> str:
    return "" if line is None else f" at {line}"
