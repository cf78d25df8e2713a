"""The calls of modules in a trace: which torch-level nodes each made, and of which arguments and results.

A torch-level graph goes through modules. `smelt.symbolic_trace` finds the modules again from these records.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import nn

from smelt.graph.ir import Graph, Node
from smelt.graph.pytree import PLAIN
from smelt.tracing.fake.fake_tensor import FakeTensor


@dataclass(frozen=True)
class ModuleCall:
    """One call. `nodes` are the calls of torch in it, those of inner modules included. `values` are its arguments, keyword
    arguments and result, with nodes for tensors; None if they hold anything but tensors and plain values: the record
    keeps no object of the user's alive."""

    module: weakref.ref[nn.Module]
    depth: int
    nodes: tuple[Node, ...]
    values: tuple[tuple[Any, ...], dict[str, Any], Any] | None


class ModuleCalls:
    """The calls of a trace in the order in which they ended: inner ones before outer ones. `records`: whether anyone asks
    for them, as compilation does not."""

    def __init__(self, graph: Graph) -> None:
        self.records = False
        self.ended: list[ModuleCall] = []
        self._graph = graph
        self._starts: list[int] = []

    def begin(self) -> None:
        """A module is called."""
        self._starts.append(len(self._graph.nodes))

    def end(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """The innermost call returns `result`."""
        nodes = tuple(self._graph.nodes[self._starts.pop() :])
        try:
            values = _described((tuple(args), dict(kwargs), result))
        except _NotPlain:
            values = None
        self.ended.append(ModuleCall(weakref.ref(module), len(self._starts), nodes, values))

    def leave(self) -> None:
        """The innermost call raises."""
        self._starts.pop()


class _NotPlain(Exception):
    """A value is neither a tensor of the graph nor a plain value, nor a container of them."""


def _described(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor and value.torch_node is not None:
        return value.torch_node
    if kind in PLAIN:
        return value
    if kind in (list, tuple):
        return kind([_described(v) for v in value])
    if kind is dict:
        return {_described(k): _described(v) for k, v in value.items()}
    raise _NotPlain
