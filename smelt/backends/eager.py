"""The backends `eager` and `aot_eager`, which compile nothing: they show which stage an error comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.autograd.compile_joint import compile_joint
from smelt.backends.explicit_numbers import with_explicit_numbers
from smelt.backends.size_dispatch import dispatch_by_sizes, eager_fallback
from smelt.backends.unbacked_subgraphs import run_in_parts
from smelt.config import Config
from smelt.errors import NeedsFixedSize
from smelt.graph import graph_interpreter
from smelt.graph.free_symbols import symbols_of_arguments
from smelt.graph.graph_callable import Compiled, GraphFunction
from smelt.graph.input_writes import input_writes
from smelt.graph.ir import Graph
from smelt.shapes.expr import Sym, Values
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.fake.returned_views import allow_inplace_writes
from smelt.tracing.record.trace_at_sizes import traced_at
from smelt.tracing.record.traced import Role, SizeInput, Traced


def eager(traced: Traced, config: Config) -> Compiled:
    """Runs the torch-level graph, call by call, under autograd; the joint graph for gradients of wrapper subclasses."""
    if traced.through_wrappers:
        return aot_eager(traced, config)

    def callable_of(graph: Graph) -> Compiled:
        # Guards check the mode. In anomaly mode, autograd keeps the stack of each call for its warnings.
        if torch.is_anomaly_enabled():
            return lambda tensors: graph_interpreter.run(graph, tensors, graph_interpreter.at_user_line)
        function = GraphFunction(graph)
        return lambda tensors: function(*tensors)

    if traced.unbacked is not None:
        explicit = with_explicit_numbers(traced)
        return explicit.wrap(callable_of(explicit.graph))
    if symbols_of_arguments(traced.torch_graph):
        return dispatch_by_sizes(
            traced.sizes, lambda values: (callable_of(substitute(traced.torch_graph, values)),)
        )
    return callable_of(traced.torch_graph)


def aot_eager(traced: Traced, config: Config) -> Compiled:
    """Runs the functional aten graph, operator by operator. Where gradients are needed, runs the forward and backward of the
    joint graph, or the torch-level graph where there is no joint graph or where sizes are unbacked."""
    if traced.unbacked is not None and traced.needs_grad:
        if traced.through_wrappers:
            raise NeedsFixedSize("gradients through a wrapper subclass", frozenset())
        if traced.mutated:
            raise NeedsFixedSize("an input is written before all sizes are known", frozenset())
        return eager(traced, config)
    if traced.unbacked is not None:
        return _with_unbacked_sizes(traced)
    if traced.sizes:
        return dispatch_by_sizes(traced.sizes, lambda values: (aot_eager(traced_at(traced, values), config),))
    if traced.joint is not None:
        return eager_joint(traced, traced.joint, config)
    if traced.needs_grad:
        return eager(traced, config)
    return without_gradients(GraphFunction(traced.aten_graph))


eager.takes_sizes = eager.takes_data_sizes = True  # type: ignore[attr-defined]
eager.runs_calls = True  # type: ignore[attr-defined]
aot_eager.takes_sizes = aot_eager.takes_data_sizes = True  # type: ignore[attr-defined]
aot_eager.differentiates = True  # type: ignore[attr-defined]


def _with_unbacked_sizes(traced: Traced) -> Compiled:
    """Runs the aten graph in parts, between which sizes become known."""

    def part(graph: Graph, sizes: Mapping[Sym, SizeInput]) -> Compiled:
        if not sizes:
            return eager_fallback(graph)
        return dispatch_by_sizes(
            sizes, lambda values: (eager_fallback(substitute(graph, values)),), prepare=False
        )

    return run_in_parts(traced, part)


def without_gradients(function: Callable[..., Sequence[Any]]) -> Compiled:
    """A callable that runs `function`, a graph that needs no gradients, on a tuple of tensors."""

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        results = function(*tensors)
        return allow_inplace_writes(results, tensors) if torch.is_grad_enabled() else results

    return call


def eager_joint(traced: Traced, joint: Joint, config: Config) -> Compiled:
    """Runs the forward and the backward that `joint`, of fixed sizes, is cut into, operator by operator."""

    def interpret(
        graph: Graph, donated: frozenset[int], sizes: tuple[Sym, ...], role: Role
    ) -> Callable[[Values], Compiled]:
        return lambda values: eager_beneath_node(graph, donated)

    return compile_joint(traced, joint, config, interpret, eager_beneath_node)({})


def eager_beneath_node(graph: Graph, donated: frozenset[int]) -> Compiled:
    """Runs `graph` as the forward of an autograd node."""
    function = GraphFunction(graph)
    return beneath_node(graph, lambda tensors: function(*tensors))


def beneath_node(graph: Graph, run: Compiled) -> Compiled:
    """`run`, which runs `graph`, as the forward of an autograd node. Beneath the node, operators do not count writes in the
    versions of tensors, so the versions of mutated inputs are incremented here; without a node, operators have counted
    them."""
    targets = {node.args[0] for node in input_writes(graph)}
    mutated = [i for i, p in enumerate(graph.placeholders) if p in targets]

    def call(tensors: tuple[torch.Tensor, ...]) -> Sequence[Any]:
        versions = [tensors[i]._version for i in mutated]
        results = run(tensors)
        uncounted = [tensors[i] for i, v in zip(mutated, versions) if tensors[i]._version == v]
        torch.autograd.graph.increment_version(uncounted)
        return results

    return call
