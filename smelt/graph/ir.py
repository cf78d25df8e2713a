"""The graph IR: a flat list of nodes in execution order, at the torch level or at the aten level.

Invariants (see `verify_graph`): placeholders come first, one `output` node is last, every argument node precedes its
users, names are unique and valid Python identifiers. `Node.spec` describes the node's result: a `TensorSpec`, a tuple
of specs for several results, or None for a non-tensor. Each size symbol is the size of some dimension of a
placeholder, unless it is unbacked (`graph/unbacked_sizes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from smelt.graph.object_handles import Handle
from smelt.graph.pytree import leaves, map_leaves
from smelt.shapes.expr import Expr, Size, Sym
from smelt.shapes.substitute import substitute, substitution
from smelt.user_lines import Line as Line

OpKind = Literal["placeholder", "get_attr", "call_function", "call_method", "output"]


@dataclass(frozen=True)
class TensorSpec:
    """Metadata of a tensor. `stride` and `offset` count elements."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Size = 0
    requires_grad: bool = False


@dataclass(frozen=True)
class NumberSpec:
    """A placeholder for a Python number (`type`: int or float) that changes from call to call."""

    type: type

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the 0-d tensor that torch makes of such a number."""
        return torch.float64 if self.type is float else torch.int64

    def __str__(self) -> str:
        return self.type.__name__


@dataclass(eq=False, slots=True)
class Node:
    """One step. `args` and `kwargs` hold Nodes, constants, and lists, tuples, dicts and slices of them.

    placeholder: target is its name. get_attr: target is a key of `Graph.constants`. call_function: target is a
    callable (aten level: an OpOverload). call_method: target is the method's name, args[0] the object. output: args[0]
    is a tuple of Nodes (None allowed). `operator.getitem` nodes read a node with several results.
    """

    op: OpKind
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    spec: Any = None
    line: Line | None = None
    # Aten level: the torch-level node that caused this one. Of a backward: a node of no graph that stands for what autograd
    # runs, and whose own source is the torch-level node of which that computes the gradients, where it is known.
    source: Node | None = None

    def __repr__(self) -> str:
        return self.name


class Graph:
    """Nodes in order, and the constants that `get_attr` nodes name."""

    def __init__(self, level: Literal["torch", "aten"]) -> None:
        self.level = level
        self.nodes: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}

    @property
    def placeholders(self) -> list[Node]:
        """The graph's inputs, in order."""
        return [n for n in self.nodes if n.op == "placeholder"]

    @property
    def output(self) -> Node:
        """The last node, whose first argument is the tuple of results. Only finished graphs have one."""
        return self.nodes[-1]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def copy_at(graph: Graph, values: Mapping[Sym, Size]) -> tuple[Graph, dict[Node, Node]]:
    """A copy of `graph` with these sizes for its symbols, numbers or others, and the copy of each node."""
    copied = Graph(graph.level)
    copied.constants = graph.constants
    copy_of: dict[Node, Node] = {}

    def argument(leaf: Any) -> Any:
        return copy_of[leaf] if isinstance(leaf, Node) else substitute(leaf, values)

    for node in graph:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr, Handle), argument)
        copy_of[node] = replace(node, args=args, kwargs=kwargs, spec=substitute(node.spec, values))
        copied.nodes.append(copy_of[node])
    return copied, copy_of


@substitution(Graph)
def _copy(graph: Graph, values: Mapping[Sym, Size]) -> Graph:
    return copy_at(graph, values)[0]


def argument_nodes(node: Node) -> list[Node]:
    """The nodes among a node's arguments, at any depth, with repetitions."""
    found = leaves(node.args, Node)
    return found + leaves(node.kwargs, Node) if node.kwargs else found


def free_name(stem: str, taken: set[str]) -> str:
    """`stem`, with a number appended if it is in `taken`. Adds the name to `taken`."""
    count, name = 1, stem
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def map_nodes(value: Any, function: Callable[[Node], Any]) -> Any:
    """`value` (arguments of a node) with every Node `n` replaced by `function(n)`."""
    return map_leaves(value, Node, function)
