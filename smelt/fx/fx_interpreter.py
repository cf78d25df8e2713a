"""Execution of torch.fx's graphs: transformation into other graphs, and shape propagation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.fx.passes import shape_prop

from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import Proxy
from smelt.fx.symbolic_tracer import Tracer


class _Appending(Tracer):
    """Appends nodes to a graph; the calls of all modules are nodes."""

    def __init__(self, graph: Graph, root: nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.root = root

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class Transformer(torch.fx.Transformer):
    """Runs a graph on proxies: `transform()` returns a new GraphModule. Subclasses override `call_function`, `call_method`,
    `call_module` and others, which return the value of a node."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        codegen = self.new_graph._codegen
        self.new_graph = Graph()
        self.new_graph.set_codegen(codegen)
        self.tracer = _Appending(self.new_graph, module)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A proxy of a placeholder of the new graph."""
        default = next(iter(args)) if args else inspect.Signature.empty
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)


class ShapeProp(shape_prop.ShapeProp):
    pass
