"""Torch-level graphs that are split for a backend which may make each graph one node of autograd.

Gradients of tensors inside of a graph are then hidden, so a graph ends behind each tensor with a hook.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.errors import BackendError, NeedsFixedSize
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_passes import extract
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.tensor_specs import empty_like_spec
from smelt.tracing.record.traced import Traced

CompilePart = Callable[[Graph, list[torch.Tensor]], Compiled]


@dataclass
class _Part:
    """A graph from `inputs` to `outputs`, nodes of the whole graph."""

    inputs: list[Node]
    outputs: list[Node]
    call: Compiled


def compile_parts(traced: Traced, compile_part: CompilePart) -> Compiled:
    """The graph of `traced`, split at its boundaries. `compile_part(graph, example_inputs)` compiles a part. Raises
    NeedsFixedSize for symbolic sizes, and BackendError for other numbers."""
    if traced.sizes or traced.unbacked is not None:
        raise NeedsFixedSize("a hook on a tensor that a graph computes", frozenset(traced.sizes))
    if traced.numbers:
        raise BackendError("a graph that computes a tensor with a hook takes numbers")
    graph, outputs = traced.torch_graph, traced.torch_graph.output.args[0]
    placeholders = graph.placeholders
    examples: dict[Node, torch.Tensor] = dict(zip(placeholders, traced.example_inputs()))
    segments = _segments(graph, traced.boundaries)
    parts: list[_Part] = []
    for index, segment in enumerate(segments):
        later = {a for s in segments[index + 1 :] for n in s for a in argument_nodes(n)}.union(outputs)
        inputs = list(dict.fromkeys(a for n in segment for a in argument_nodes(n) if a not in segment))
        results = [n for n in segment if n in later]
        part = extract(graph, inputs, segment, results)
        part.level = graph.level
        call = compile_part(part, [examples[n] for n in inputs])
        examples.update((n, _example(n)) for n in results)
        parts.append(_Part(inputs, results, call))

    def run(tensors: tuple[Any, ...]) -> Sequence[Any]:
        values = dict(zip(placeholders, tensors))
        for part in parts:
            values.update(zip(part.outputs, part.call(tuple([values[n] for n in part.inputs])), strict=True))
        return [None if n is None else values[n] for n in outputs]

    return run


def _segments(graph: Graph, boundaries: Sequence[Node]) -> list[list[Node]]:
    """The nodes of each part. Several results of an operator leave a part one by one. The last part also has nodes without a
    call that follow."""
    items: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.target is operator.getitem and isinstance(node.args[0].spec, tuple):
            items.setdefault(node.args[0], []).append(node)
    selected = {node for nodes in items.values() for node in nodes}
    segments: list[list[Node]] = [[]]
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node in selected:
            continue
        computed = [node, *items.get(node, ())]
        segments[-1] += computed
        if any(n in boundaries for n in computed):
            segments.append([])
    if not any(node.op.startswith("call") for node in segments[-1]):
        segments[-2:] = [segments[-2] + segments[-1]]
    return segments


def _example(node: Node) -> torch.Tensor:
    """An example of the tensor that crosses between two parts. Raises BackendError for another value."""
    spec = node.spec
    if not isinstance(spec, TensorSpec):
        raise BackendError(f"{node.name}, which is no tensor, is used before and behind a tensor with a hook")
    return empty_like_spec(spec, spec.device).requires_grad_(spec.requires_grad)
