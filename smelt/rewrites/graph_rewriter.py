"""The writer of rewritten graphs: it copies an aten graph node by node and emits other nodes instead of some.

Invariants: `env` maps each original node written so far to the node with its value; names are unique; new nodes belong to
the user line of the original node `like`. `finish` removes nodes that only replaced nodes read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from smelt.graph.graph_passes import eliminate_dead, has_effect
from smelt.graph.ir import Graph, Node, free_name, map_nodes
from smelt.ops.result_specs import result_spec
from smelt.rewrites.patterns import users_of
from smelt.torch_private import OpOverload


class NodeBuilder:
    """Creates nodes one after the other. `names` are those in use; `suffix` marks the names of new nodes."""

    def __init__(self, names: set[str], suffix: str = "recomputed") -> None:
        self.names, self.suffix = names, suffix
        self.nodes: list[Node] = []
        self.like: Node | None = None

    def begin(self, like: Node) -> NodeBuilder:
        """Start a new list of nodes, which belong to the line of `like`."""
        self.nodes, self.like = [], like
        return self

    def name(self, stem: str) -> str:
        """A name that is not in use."""
        return free_name(stem, self.names)

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        """The node of `op(*args, **kwargs)`."""
        return self.emit(op, args, kwargs, result_spec(op, args, kwargs))

    __call__ = call

    def emit(self, op: Any, args: Iterable[Any], kwargs: dict[str, Any], spec: Any, stem: str = "") -> Node:
        """The node of a call with a result of `spec`. `stem` of its name: by default, that of the operator."""
        assert self.like is not None
        if not stem:
            kind = op._schema.name.split("::")[1].strip("_") if isinstance(op, OpOverload) else "item"
            stem = f"{kind}_{self.suffix}"
        name, line, source = self.name(stem), self.like.line, self.like.source
        return self.append(Node("call_function", op, tuple(args), dict(kwargs), name, spec, line, source))

    def item(self, call: Node, index: int, stem: str = "") -> Node:
        """A result of an operator with several."""
        return self.emit(operator.getitem, (call, index), {}, call.spec[index], stem)

    def append(self, node: Node) -> Node:
        """Add the node to the list."""
        self.nodes.append(node)
        return node

    def rename(self, node: Node, name: str) -> Node:
        """The node, with the name of the node that it replaces."""
        self.names.discard(node.name)
        node.name = name
        return node


@dataclass(frozen=True)
class Rewritten:
    """`graph`: the new graph, or the original if nothing changes. `backward`: its nodes that replace the original's backward
    nodes. `refused`: nodes that a pattern matches but that are not rewritten, and why."""

    graph: Graph
    backward: frozenset[Node]
    refused: tuple[tuple[Node, str], ...] = ()


class GraphRewriter(NodeBuilder):
    """Writes the new graph of `original`. `backward`: its nodes that a backward recorded; `new_backward`: those of the new
    graph, which are the nodes written while `in_backward`."""

    def __init__(self, original: Graph, suffix: str, backward: frozenset[Node] = frozenset()) -> None:
        super().__init__({node.name for node in original}, suffix)
        self.original, self.backward = original, backward
        self.env: dict[Node, Node] = {}
        self.in_backward = False
        self.new_backward: set[Node] = set()

    @cached_property
    def users(self) -> dict[Node, list[Node]]:
        """The users of each original node."""
        return users_of(self.original)

    def at(self, node: Node) -> Node:
        """The original node: nodes written from now on replace it."""
        self.like, self.in_backward = node, node in self.backward
        return node

    def append(self, node: Node) -> Node:
        """Add the node to the new graph."""
        if self.in_backward:
            self.new_backward.add(node)
        self.nodes.append(node)
        return node

    def write(self, node: Node, **changes: Any) -> Node:
        """The original node with `changes`, as its new value."""
        new = self.env[node] = self.append(replace(node, **changes))
        return new

    def copy(self, node: Node, read: Callable[[Node], Node] | None = None) -> Node:
        """A copy of the original node that reads the new values of its arguments, by `read` or `env`."""
        read = read or self.env.__getitem__
        args, kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read) if node.kwargs else {}
        new = Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line, node.source)
        self.env[node] = self.append(new)
        return new

    def undo(self, length: int) -> None:
        """Remove all but the first `length` nodes."""
        for node in self.nodes[length:]:
            self.names.discard(node.name)
            self.new_backward.discard(node)
        del self.nodes[length:]

    def finish(self, refused: Iterable[tuple[Node, str]] = ()) -> Rewritten:
        """The result. Nodes that the original does not read stay: they may raise."""
        unread = {self.env.get(node) for node, users in self.users.items() if not users}
        graph = Graph(self.original.level)
        graph.nodes, graph.constants = self.nodes, dict(self.original.constants)
        eliminate_dead(graph, keep=lambda node: node in unread or has_effect(node))
        return Rewritten(graph, frozenset(self.new_backward.intersection(graph.nodes)), tuple(refused))
