"""Node-by-node execution of a graph on real tensors: the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from smelt.graph import torch_settings
from smelt.graph.ir import Graph, Line, Node, argument_nodes, map_nodes

Caller = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]

_call: Caller = lambda target, args, kwargs: target(*args, **kwargs)  # noqa: E731 - one line, so that it can be moved


def at_user_line(line: Line | None) -> Caller:
    """A caller whose frame stands at a line of the program: tracebacks within the called function name that line."""
    if line is None:
        return _call
    name = line.function.rpartition(".")[2]
    code = _call.__code__.replace(co_filename=line.filename, co_firstlineno=line.line, co_name=name)
    return FunctionType(code, _call.__globals__)


def run(
    graph: Graph, inputs: Sequence[torch.Tensor], caller: Callable[[Line | None], Caller] = lambda line: _call
) -> tuple[Any, ...]:
    """The outputs of `graph` on `inputs` (one per placeholder, in order), which may be written.

    A torch-level graph runs under the caller's settings, and gradients flow. An aten graph describes execution beneath
    autograd and autocast and runs without them. Values are dropped after their last use. `caller`: makes the calls of the
    nodes of a line.
    """
    placeholders = graph.placeholders
    if len(placeholders) != len(inputs):
        raise ValueError(f"the graph takes {len(placeholders)} tensors, got {len(inputs)}")
    values: dict[Node, Any] = dict(zip(placeholders, inputs))
    last = _last_uses(graph)
    with torch_settings.beneath_autograd() if graph.level == "aten" else torch_settings.restored():
        for node in graph.nodes[len(placeholders) :]:
            if node.op == "output":
                return tuple(map_nodes(node.args[0], values.__getitem__))
            values[node] = step(graph, node, values, caller(node.line))
            for done in last.get(node, ()):
                del values[done]
    raise ValueError("the graph has no output node")


def step(graph: Graph, node: Node, values: Mapping[Node, Any], call: Caller = _call) -> Any:
    """The result of `node` for these values of its arguments, under the current settings."""
    if node.op == "get_attr":
        return graph.constants[node.target]
    args = map_nodes(node.args, values.__getitem__)
    kwargs = map_nodes(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return call(getattr(args[0], node.target), args[1:], kwargs)
    return call(node.target, args, kwargs)


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """Node -> the nodes whose last use it is."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            last[node] = node
        for argument in argument_nodes(node):
            last[argument] = node
    done: dict[Node, list[Node]] = {}
    for node, user in last.items():
        done.setdefault(user, []).append(node)
    return done
