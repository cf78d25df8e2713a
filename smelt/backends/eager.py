"""Backends that compile nothing: for finding out which stage an error comes from."""

from __future__ import annotations

from typing import Any

import torch

from smelt.autograd.compile import compile_joint
from smelt.config import Config
from smelt.graph.graph_function import Compiled, GraphFunction
from smelt.graph.ir import Graph
from smelt.trace.traced import Traced


def eager(traced: Traced, config: Config) -> Compiled:
    """The torch-level graph as it is, gradients and all."""
    function = GraphFunction(traced.torch_graph)
    return lambda tensors: function(*tensors)


def aot_eager(traced: Traced, config: Config) -> Compiled:
    """The functional aten graphs, operator by operator: forward and, where gradients are needed, backward; the torch-level
    graph where there is no joint graph."""
    if traced.joint is not None:
        return compile_joint(traced, traced.joint, config, _beneath_a_node)
    if traced.needs_grad:
        return eager(traced, config)
    return _by_operators(traced.aten_graph)


aot_eager.differentiates = True  # type: ignore[attr-defined]


def _by_operators(graph: Graph) -> Compiled:
    function = GraphFunction(graph)
    return lambda tensors: function(*tensors)


def _beneath_a_node(graph: Graph) -> Compiled:
    """There, operators do not count writes in the versions of tensors as they do elsewhere."""
    function = GraphFunction(graph)
    targets = {node.args[0] for node in graph if node.target is torch.ops.aten.copy_.default}
    written = [i for i, p in enumerate(graph.placeholders) if p in targets]

    def call(tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        results = function(*tensors)
        torch.autograd.graph.increment_version([tensors[i] for i in written])
        return results

    return call
