"""Operators of higher order as nodes of the trace: one at each level, and one of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import FunctionCtx

from smelt._native import isinstance
from smelt.capture.torch_calls import subgraph_capture
from smelt.capture.torch_calls.subgraph_capture import TracedSubgraph, alone, refuse, row_major
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import RUN_GRAPHS, Choice, Inner, Program, has_gradients
from smelt.graph.tensor_specs import empty_like_spec, static_sizes
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap
from smelt.tracing.record.trace_parts import TraceParts


def record(parts: TraceParts, program: Program, tensors: Sequence[FakeTensor]) -> list[FakeTensor]:
    """Records the call of `program` on `tensors`; gives its results. Raises Unsupported."""
    own = 1 if isinstance(program.rule, Choice) else 0  # what the rule itself takes
    operands = tensors[own:]
    sources = frozenset(i for i, f in enumerate(operands) if torch.is_grad_enabled() and f.requires_grad)
    if sources and not isinstance(program.rule, Choice):
        raise refuse("a loop with gradients")
    specs = [f.spec for f in operands]
    inside = [subgraph_capture.trace(parts, g, specs, frozenset(), record) for g in program.graphs]
    handle = Handle.of(Inner(program.rule, [subgraph_capture.forward_graph(i) for i in inside]))
    results = _result_specs(program, inside)
    torch_nodes = tuple(f.torch_node or parts.inputs.torch_node(f) for f in tensors)
    node = Node("call_function", program, torch_nodes, {}, "")
    made = _added(parts, node, handle, tensors, results, program.rule.name)
    if sources:
        inside = [subgraph_capture.trace(parts, g, specs, sources, record) for g in program.graphs]
        graphs = [subgraph_capture.backward_graph(i, results, sources) for i in inside]
        backward = _Backward(parts, Handle.of(Inner(program.rule, graphs)), program, own, sources)
        with DisableTorchFunction(), DisableTorchDispatch():
            made = list(_History.apply(backward, made, *tensors))  # type: ignore[no-untyped-call]
    parts.torch_recorder.record(node, program, made)
    return made


def _result_specs(program: Program, inside: Sequence[TracedSubgraph]) -> list[TensorSpec]:
    """Of the results, which all graphs that give any must agree on."""
    given = inside if isinstance(program.rule, Choice) else inside[1:]
    found = [[alone(f.spec) for f in i.traced.outputs] for i in given]
    if any(specs != found[0] for specs in found):
        raise refuse("branches with tensors of other layouts")
    if any(n != 1 and s == 0 for spec in found[0] for n, s in zip(spec.shape, spec.stride)):
        raise refuse("results of which elements share memory")
    return found[0]


def _added(
    parts: TraceParts,
    source: Node | None,
    handle: Handle,
    tensors: Sequence[FakeTensor],
    specs: Sequence[TensorSpec],
    name: str,
) -> list[FakeTensor]:
    """An aten node that runs the graphs of `handle`; gives its results."""
    with DisableTorchFunction(), DisableTorchDispatch():
        made = [wrap(_meta(spec), spec.device, spec) for spec in specs]
    nodes = [f.aten_node or parts.inputs.aten_node(f) for f in tensors]
    call, before = parts.call, parts.call.node
    call.node = source or before
    try:
        node = parts.tape.add_operator(RUN_GRAPHS, (handle, nodes), {}, name, tuple(specs))
        parts.tape.finish_operator(node, made)
    finally:
        call.node = before
    return made


def _meta(spec: TensorSpec) -> torch.Tensor:
    return empty_like_spec(spec, torch.device("meta"))


@dataclass(frozen=True)
class _Backward:
    """Records the gradients of a program. `own`: how many tensors the rule takes, before the operands."""

    parts: TraceParts
    handle: Handle
    program: Program
    own: int
    sources: frozenset[int]

    def __call__(
        self, tensors: Sequence[FakeTensor], tangents: Sequence[FakeTensor]
    ) -> list[FakeTensor | None]:
        specs = [row_major(f.spec) for i, f in enumerate(tensors[self.own :]) if i in self.sources]
        name = f"{self.program.rule.name}_backward"
        made = iter(_added(self.parts, None, self.handle, (*tensors, *tangents), specs, name))
        wanted = (i - self.own in self.sources for i in range(len(tensors)))
        return [next(made) if is_source else None for is_source in wanted]


class _History(torch.autograd.Function):
    """Gives results that are made their history."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, backward: _Backward, results: list[FakeTensor], *tensors: FakeTensor
    ) -> tuple[FakeTensor, ...]:
        ctx.record = backward  # type: ignore[attr-defined]
        ctx.layouts = [r.spec if has_gradients(r.dtype) else None for r in results]  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(r for r in results if not has_gradients(r.dtype)))
        return tuple(results)

    @staticmethod
    def backward(ctx: FunctionCtx, *tangents: FakeTensor) -> tuple[FakeTensor | None, ...]:
        if torch.is_grad_enabled():  # gradients that have no history would be constants of the next ones
            raise refuse("derivatives of derivatives of an operator of higher order")
        pairs = zip(tangents, ctx.layouts)  # type: ignore[attr-defined]
        given = [_laid_out(t, spec) for t, spec in pairs if spec is not None]
        return (None, None, *ctx.record(ctx.saved_tensors, given))  # type: ignore[attr-defined]


def _laid_out(tangent: FakeTensor, spec: TensorSpec) -> torch.Tensor:
    if tangent.spec.stride == spec.stride:
        return tangent
    made = torch.empty_strided(
        static_sizes(spec.shape), static_sizes(spec.stride), dtype=spec.dtype, device=spec.device
    )
    return made.copy_(tangent)
