"""Graphs with symbols for sizes, made from traces at sizes that are primes: a multiple of one is its symbol's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.shapes.expr import Expr, Size, Sym, evaluate
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.trace_outputs import OutputSource
from smelt.tracing.record.traced import SizeInput, Traced
from smelt.tracing.symbolic.symbolic_layouts import SizeSource
from tests.harness.traced import flatten, traced

S0, S1 = Sym("s0", 2), Sym("s1", 2)
SIZES = {101: S0, 211: S1}  # primes that tests use for no other size


def symbolic(f: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """(aten graph with symbols, the real tensors of its placeholders), of inputs with sizes of `SIZES`."""
    graph, real = traced(f, *inputs)
    return with_sizes(graph, symbol_of), real


def symbolic_trace(
    f: Callable[..., Any], *inputs: torch.Tensor, joint: bool = False
) -> tuple[Traced, list[torch.Tensor]]:
    """(a trace whose graphs have symbols, the real tensors of its inputs), of inputs with sizes of `SIZES`. `joint`: with a
    joint graph."""
    recorder = Trace()
    recorder.autograd.wants_joint = joint
    recorder.inputs.on_unknown_tensor = recorder.fake
    with torch.set_grad_enabled(joint), recorder:
        record = recorder.finish(flatten(f(*[recorder.fake(t) for t in inputs])))
    sizes: dict[Sym, SizeInput] = {}
    for i, fake in enumerate(record.inputs):
        for d, size in enumerate(fake.shape):
            if size in SIZES:
                sizes.setdefault(SIZES[size], SizeInput(i, SizeSource(d), size))
    torch_graph = with_sizes(record.torch_graph, symbol_of)
    made = replace(record, torch_graph=torch_graph, sizes=sizes)
    if record.joint is None:
        made = replace(made, aten_graph=with_sizes(record.aten_graph, symbol_of))
    else:
        torch_nodes = dict(zip(record.torch_graph, torch_graph, strict=True))
        made = replace(made, joint=_symbolic_joint(record.joint, torch_nodes))
    return made, [recorder.real(fake) for fake in record.inputs]


def _symbolic_joint(joint: Joint, torch_nodes: Mapping[Node, Node]) -> Joint:
    graph = with_sizes(joint.graph, symbol_of)
    copy_of = dict(zip(joint.graph, graph, strict=True))
    return replace(
        joint,
        graph=graph,
        backward=frozenset(copy_of[n] for n in joint.backward if n in copy_of),
        results=tuple(map(_symbolic_source, joint.results)),
        epilogue=tuple(replace(t, source=_symbolic_source(t.source)) for t in joint.epilogue),
        torch_level_tensors=tuple(
            p and replace(p, node=torch_nodes[p.node], history_node=torch_nodes[p.history_node])
            for p in joint.torch_level_tensors
        ),
    )


def _symbolic_source(source: OutputSource) -> OutputSource:
    def symbols(tree: Any) -> Any:
        return map_leaves(tree, int, lambda n: n if isinstance(n, bool) else symbol_of(n))

    steps = (replace(s, args=symbols(s.args), kwargs=symbols(s.kwargs)) for s in source.steps)
    return replace(source, steps=tuple(steps))


def at(graph: Graph, values: Mapping[Sym, int]) -> Graph:
    """The graph at these sizes."""
    return with_sizes(graph, lambda size: evaluate(size, values))


def symbol_of(number: int) -> Size:
    """The product of symbols and a number that `number` is."""
    rest: Size = number
    factor: Size = 1
    for prime, sym in SIZES.items():
        while isinstance(rest, int) and rest and rest % prime == 0:
            rest //= prime
            factor = factor * sym
    return factor * rest


def with_sizes(graph: Graph, change: Callable[[Any], Size]) -> Graph:
    """A copy, with each integer and size of specs and arguments changed."""
    made = Graph(graph.level)
    made.constants = graph.constants
    nodes: dict[Node, Node] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Node):
            return nodes[value]
        if isinstance(value, TensorSpec):
            sizes = {name: mapped(getattr(value, name)) for name in ("shape", "stride", "offset")}
            return replace(value, **sizes)
        if isinstance(value, (tuple, list)):
            return type(value)(map(mapped, value))
        if isinstance(value, slice):
            return slice(*map(mapped, (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            return {k: mapped(v) for k, v in value.items()}
        return change(value) if type(value) is int or isinstance(value, Expr) else value

    for node in graph:
        nodes[node] = replace(
            node, args=mapped(node.args), kwargs=mapped(node.kwargs), spec=mapped(node.spec), source=None
        )
        made.nodes.append(nodes[node])
    return made
