"""Interpreters of torch.fx's graphs: on proxies, for a new graph, and on smelt's fakes, for shapes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.func import functional_call
from torch.fx.node import map_aggregate

from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import Proxy
from smelt.fx.symbolic_tracer import Tracer
from smelt.torch_private import fx_tensor_metadata
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace import Trace


class _Appending(Tracer):
    """Appends nodes to a graph; each call of a module is a node."""

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
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        self.tracer: Any = _Appending(self.new_graph, module)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A proxy of a placeholder of the new graph."""
        default = next(iter(args)) if args else inspect.Signature.empty
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)


class ShapeProp(torch.fx.Interpreter):
    """Determines the type and shape of each node's result: `ShapeProp(gm).propagate(*inputs)` runs the graph on fakes of the
    inputs, without computing, and fills `node.meta`: "spec" holds smelt's `TensorSpec`, "tensor_meta" the `TensorMetadata`
    that torch.fx's passes read, "type" the class of the result.

    Raises Unsupported if a node needs a tensor's data, and the exceptions of the nodes.
    """

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node and describe its result in `n.meta`."""
        result = super().run_node(n)
        if n.op == "get_attr" and isinstance(result, torch.Tensor):
            result = self._recorder.fake(result)
        n.meta["type"] = torch.Tensor if isinstance(result, FakeTensor) else type(result)
        if _tensors(result):
            n.meta["spec"] = _described(result, lambda t: t.spec)
            n.meta["tensor_meta"] = _described(result, fx_tensor_metadata)
        return result

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module with fakes for its parameters and buffers, so that its writes leave the real ones unchanged."""
        module = self.fetch_attr(target)
        state = [*module.named_parameters(), *module.named_buffers()]
        return functional_call(
            module, {name: self._recorder.fake(tensor) for name, tensor in state}, args, kwargs
        )

    def propagate(self, *args: Any) -> Any:
        """Run the graph and return its result, with fakes for tensors. `args`: real tensors, or torch's fakes."""
        recorder = self._recorder = Trace()
        recorder.inputs.on_unknown_tensor = recorder.fake
        with recorder:
            fakes = [recorder.fake(a) if isinstance(a, torch.Tensor) else a for a in args]
            return super().run(*fakes)


def _tensors(result: Any) -> list[FakeTensor]:
    found: list[FakeTensor] = []
    _described(result, found.append)
    return found


def _described(result: Any, describe: Any) -> Any:
    return map_aggregate(result, lambda leaf: describe(leaf) if isinstance(leaf, FakeTensor) else leaf)
