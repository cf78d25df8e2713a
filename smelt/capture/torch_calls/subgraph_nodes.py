"""Nodes of higher-order operators: one at each level of the trace, and one in autograd's graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch.autograd.function import FunctionCtx

from smelt._native import isinstance
from smelt.autograd.recompute_classes import class_of
from smelt.capture.torch_calls import subgraph_capture
from smelt.capture.torch_calls.subgraph_capture import (
    Numbers,
    TracedSubgraph,
    refuse,
    row_major,
    with_own_storage,
)
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.object_handles import Handle
from smelt.graph.pytree import map_leaves
from smelt.graph.subgraphs import RUN_GRAPHS, Choice, Inner, Program, has_gradients
from smelt.graph.tensor_specs import static_sizes
from smelt.ops.may_raise import must_run
from smelt.shapes.expr import Expr
from smelt.torch_private import DisableAutocast, DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.recorded_results import fresh_fake, number_of_size
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.sym_numbers import NUMBERS


def record(parts: TraceParts, program: Program, operands: Sequence[object]) -> list[FakeTensor]:
    """Record the call of `program` on `operands`: tensors, then numbers; return its results. Raises Unsupported."""
    tensors = [x for x in operands if isinstance(x, FakeTensor)]
    numbers, own = operands[len(tensors) :], tensors[program.rule.n_own :]
    sources = frozenset(i for i, f in enumerate(own) if torch.is_grad_enabled() and f.requires_grad)
    if sources and not isinstance(program.rule, Choice):
        raise refuse("a loop with gradients")
    specs = [f.spec for f in own]

    def traced(sources: frozenset[int]) -> list[TracedSubgraph]:
        return [subgraph_capture.trace(parts, g, specs, numbers, sources, record) for g in program.graphs]

    subgraphs = traced(frozenset())
    read = subgraph_capture.numbers_read(subgraphs)
    graphs = [subgraph_capture.forward_graph(s, read) for s in subgraphs]
    handle = Handle.of(Inner(program.rule, graphs))
    results = _result_specs(program, subgraphs)
    torch_nodes = [f.torch_node or parts.inputs.torch_node(f) for f in tensors]
    known = [parts.numbers.node(n, parts.tape.torch) if type(n) in NUMBERS else n for n in numbers]
    node = Node("call_function", program, (*torch_nodes, *known), {}, "")
    outputs = _run_graphs(parts, node, handle, tensors, read, results, program.rule.name)
    if sources:
        subgraphs = traced(sources)
        differentiable = program.differentiable([spec.dtype for spec in results])
        if program.exact and not _reach_the_same(program.graphs, sources, differentiable):
            raise refuse("branches that compute gradients of different tensors")
        costly = [n for g in handle.inner.graphs for n in g if n.op == "call_function" and not _is_small(n)]
        if program.exact and len(costly) > _MAX_RECOMPUTED:
            raise refuse("branches of many operators, which the backward would compute again")
        read = subgraph_capture.numbers_read(subgraphs)
        graphs = [
            subgraph_capture.backward_graph(
                s, list(zip(results, differentiable)), sources, read, zeros=not program.exact
            )
            for s in subgraphs
        ]
        backward = _Backward(parts, Handle.of(Inner(program.rule, graphs)), program, read, sources)
        with DisableTorchFunction(), DisableTorchDispatch():
            outputs = list(_History.apply(backward, outputs, *tensors))  # type: ignore[no-untyped-call]
    parts.torch_recorder.record(node, program, outputs)
    return outputs


def _reach_the_same(graphs: Sequence[Graph], sources: frozenset[int], differentiable: Sequence[bool]) -> bool:
    """Whether each differentiable result depends on all of the operands `sources` in all graphs."""
    found = []
    for graph in graphs:
        reached: dict[Node, frozenset[int]] = {p: sources & {i} for i, p in enumerate(graph.placeholders)}
        for node in graph.nodes[len(reached) : -1]:
            if not isinstance(node.spec, TensorSpec) or has_gradients(node.spec.dtype):
                reached[node] = frozenset().union(*(reached[n] for n in argument_nodes(node)))
            else:
                reached[node] = frozenset()
        results = zip(graph.output.args[0], differentiable, strict=True)
        found += [reached[n] for n, is_one in results if is_one]
    return all(each == sources for each in found)


def _result_specs(program: Program, subgraphs: Sequence[TracedSubgraph]) -> list[TensorSpec]:
    """The specs of the results, on which all subgraphs with results must agree."""
    with_results = subgraphs if isinstance(program.rule, Choice) else subgraphs[1:]
    found = [[with_own_storage(f.spec) for f in i.traced.outputs] for i in with_results]
    if any(specs != found[0] for specs in found):
        raise refuse("branches whose results have different layouts")
    if any(n != 1 and s == 0 for spec in found[0] for n, s in zip(spec.shape, spec.stride)):
        raise refuse("results with elements that share memory")
    return found[0]


def _run_graphs(
    parts: TraceParts,
    source: Node | None,
    handle: Handle,
    tensors: Sequence[FakeTensor],
    numbers: Numbers,
    specs: Sequence[TensorSpec],
    name: str,
) -> list[FakeTensor]:
    """Record an aten node that runs the subgraphs of `handle`; return its results. Two graphs of few cheap operators are
    both computed, and each element of their results is selected: so they fuse with their neighbours, and the gradient of
    the unselected graph cannot reach a result, even if it is NaN."""
    inner = handle.inner
    if isinstance(inner.rule, Choice) and are_cheap([n for g in inner.graphs for n in g if n.op != "output"]):
        return _both(parts, source, inner, tensors, numbers, specs)
    with DisableTorchFunction(), DisableTorchDispatch():
        outputs = [fresh_fake(parts.inputs, spec) for spec in specs]
    nodes = [f.aten_node or parts.inputs.aten_node(f) for f in tensors]
    number_nodes = [parts.numbers.node(n.symbol.number(), parts.tape.aten) for n in numbers.values()]
    args = handle, nodes, *([number_nodes] if number_nodes else [])
    call, before = parts.call, parts.call.node
    call.node = source or before
    try:
        node = parts.tape.add_operator(RUN_GRAPHS, args, {}, name, tuple(specs))
        parts.tape.finish_operator(node, outputs)
    finally:
        call.node = before
    return outputs


def _both(
    parts: TraceParts,
    source: Node | None,
    inner: Inner,
    tensors: Sequence[FakeTensor],
    numbers: Numbers,
    specs: Sequence[TensorSpec],
) -> list[FakeTensor]:
    """Record the nodes of both graphs of a `Choice`, and the selection between their results."""
    call, before = parts.call, parts.call.node
    call.node = source or before
    try:
        with DisableTorchFunction(), DisableAutocast(), torch.no_grad():
            condition, *operands = tensors
            holds = condition.reshape(())
            values = [*operands, *(n.symbol.number() for n in numbers.values())]
            both = [_inlined(parts, graph, values) for graph in inner.graphs]
            results = [torch.where(holds, a, b) for a, b in zip(*both)]
            return [cast(FakeTensor, _with_layout(parts, r, spec)) for r, spec in zip(results, specs)]
    finally:
        call.node = before


def _inlined(parts: TraceParts, graph: Graph, operands: Sequence[object]) -> list[torch.Tensor]:
    values: dict[Node, object] = dict(zip(graph.placeholders, operands))

    def value(leaf: Node | Expr) -> object:
        return values[leaf] if isinstance(leaf, Node) else number_of_size(parts.inputs, leaf)

    for node in graph.nodes[len(operands) : -1]:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr), value)
        values[node] = node.target(*args, **kwargs)
    return [cast(torch.Tensor, values[n]) for n in graph.output.args[0]]


_MAX_SELECTED_NODES = 32  # of both graphs
_MAX_RECOMPUTED = 8  # operators of both graphs that are not cheap
_MAX_TRANSCENDENTAL = (
    2048  # elements: sin and cos of 4,096 take 1.3 times as long as one of them in a plan of its own
)
_CHEAP = frozenset(("view", "creation", "pointwise", "transcendental", "movement", "reduction", "input"))


def are_cheap(nodes: Sequence[Node]) -> bool:
    """Whether these aten nodes of two branches are so few and cheap that both are computed."""
    if len(nodes) > _MAX_SELECTED_NODES or not all(map(_is_small, nodes)):
        return False
    shapes = [n.spec.shape for n in nodes if class_of(n).name == "transcendental"]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return False
    return sum(math.prod(static_sizes(shape)) for shape in shapes) <= _MAX_TRANSCENDENTAL


def _is_small(node: Node) -> bool:
    return node.op != "get_attr" and class_of(node).name in _CHEAP and not must_run(node)


@dataclass(frozen=True)
class _Backward:
    """Records the gradients of a program. `numbers`: those that its graphs take; `sources`: which of their tensors require
    gradients."""

    parts: TraceParts
    handle: Handle
    program: Program
    numbers: Numbers
    sources: frozenset[int]

    def __call__(
        self, tensors: Sequence[FakeTensor], tangents: Sequence[FakeTensor]
    ) -> list[FakeTensor | None]:
        n_own = self.program.rule.n_own
        specs = [row_major(f.spec) for i, f in enumerate(tensors[n_own:]) if i in self.sources]
        name, operands = f"{self.program.rule.name}_backward", (*tensors, *tangents)
        gradients = iter(_run_graphs(self.parts, None, self.handle, operands, self.numbers, specs, name))
        wanted = (i - n_own in self.sources for i in range(len(tensors)))
        return [next(gradients) if is_source else None for is_source in wanted]


class _History(torch.autograd.Function):
    """The autograd node of a program, on results that are computed already."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, backward: _Backward, results: list[FakeTensor], *tensors: FakeTensor
    ) -> tuple[FakeTensor, ...]:
        ctx.record = backward  # type: ignore[attr-defined]
        differentiable = backward.program.differentiable([r.dtype for r in results])
        pairs = list(zip(results, differentiable))
        ctx.layouts = [r.spec if is_one else None for r, is_one in pairs]  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(r for r, is_one in pairs if not is_one))
        return tuple(results)

    @staticmethod
    def backward(ctx: FunctionCtx, *tangents: FakeTensor) -> tuple[FakeTensor | None, ...]:
        if torch.is_grad_enabled():  # gradients without a history would be constants in the next ones
            raise refuse("second derivatives of a subgraph")
        pairs = zip(tangents, ctx.layouts)  # type: ignore[attr-defined]
        parts = ctx.record.parts  # type: ignore[attr-defined]
        laid_out = [_with_layout(parts, t, spec) for t, spec in pairs if spec is not None]
        return (None, None, *ctx.record(ctx.saved_tensors, laid_out))  # type: ignore[attr-defined]


def _with_layout(parts: TraceParts, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    if cast(FakeTensor, tensor).spec.stride == spec.stride:
        return tensor
    shape, stride = ([number_of_size(parts.inputs, n) for n in sizes] for sizes in (spec.shape, spec.stride))
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).copy_(tensor)
