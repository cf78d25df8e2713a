"""The backends `eager` and `aot_eager`, which compile nothing: they tell which stage an error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.autograd.compile_joint import compile_joint
from smelt.backends.size_dispatch import by_sizes
from smelt.config import Config
from smelt.graph.graph_callable import Compiled, GraphFunction
from smelt.graph.ir import Graph
from smelt.graph.substitute_sizes import at_sizes, symbols_of_arguments
from smelt.tracing.fake.returned_views import allow_inplace_writes
from smelt.tracing.record.trace_at_sizes import traced_at
from smelt.tracing.record.traced import Traced


def eager(traced: Traced, config: Config) -> Compiled:
    """Runs the torch-level graph, call by call; autograd records it as it does any program."""

    def called(graph: Graph) -> Compiled:
        function = GraphFunction(graph)
        return lambda tensors: function(*tensors)

    if symbols_of_arguments(traced.torch_graph):
        return by_sizes(traced.sizes, lambda values: (called(at_sizes(traced.torch_graph, values)), []))
    return called(traced.torch_graph)


def aot_eager(traced: Traced, config: Config) -> Compiled:
    """Runs the functional aten graph, operator by operator; where gradients are needed, the forward and backward that the
    joint graph is cut into. Runs the torch-level graph where gradients are needed and there is no joint graph."""
    if traced.sizes:
        return by_sizes(traced.sizes, lambda values: (aot_eager(traced_at(traced, values), config), []))
    if traced.joint is not None:
        return compile_joint(traced, traced.joint, config, beneath_a_node, beneath_a_node)
    if traced.needs_grad:
        return eager(traced, config)
    return _by_operators(traced.aten_graph)


eager.takes_sizes = True  # type: ignore[attr-defined]
eager.runs_calls = True  # type: ignore[attr-defined]
aot_eager.takes_sizes = True  # type: ignore[attr-defined]
aot_eager.differentiates = True  # type: ignore[attr-defined]


def _by_operators(graph: Graph) -> Compiled:
    """Runs `graph`, which needs no gradients."""
    function = GraphFunction(graph)

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        results = function(*tensors)
        return allow_inplace_writes(results, tensors) if torch.is_grad_enabled() else results

    return call


def beneath_a_node(graph: Graph, given: frozenset[int]) -> Compiled:
    """Runs `graph` as the forward of a node of autograd, beneath which operators do not count writes in the versions of
    tensors: those of the inputs that it writes are counted up here, unless there is no such node."""
    function = GraphFunction(graph)
    targets = {node.args[0] for node in graph if node.target is torch.ops.aten.copy_.default}
    written = [i for i, p in enumerate(graph.placeholders) if p in targets]

    def call(tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        versions = [tensors[i]._version for i in written]
        results = function(*tensors)
        uncounted = [tensors[i] for i, v in zip(written, versions) if tensors[i]._version == v]
        torch.autograd.graph.increment_version(uncounted)
        return results

    return call
