"""Nodes of higher-order operators: one at each level of the trace, and one in autograd's graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch.autograd.function import FunctionCtx

from smelt._native import isinstance
from smelt.autograd.recompute_classes import class_of
from smelt.capture.torch_calls import subgraph_capture
from smelt.capture.torch_calls.loop_gradients import HISTORY, LoopCall, differentiated, with_layout
from smelt.capture.torch_calls.subgraph_capture import (
    FLAG,
    Numbers,
    TracedSubgraph,
    refuse,
    row_major,
    with_own_storage,
)
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.object_handles import Handle
from smelt.graph.pytree import map_leaves
from smelt.graph.subgraphs import (
    RUN_DRAWING_GRAPHS,
    RUN_GRAPHS,
    Choice,
    Inner,
    Loop,
    Program,
    Rule,
    draws,
    is_statement,
)
from smelt.graph.tensor_specs import static_sizes
from smelt.ops.may_raise import must_run
from smelt.shapes.expr import Expr
from smelt.torch_private import DisableAutocast, DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.backward.conditional_gradients import DEFINED_IF
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.recorded_results import fresh_fake, number_of_size
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.sym_numbers import NUMBERS


def record(parts: TraceParts, program: Program, operands: Sequence[object]) -> list[FakeTensor]:
    """Record the call of `program` on `operands`: tensors, then numbers; return its results. Raises Unsupported."""
    tensors = [x for x in operands if isinstance(x, FakeTensor)]
    numbers, own = operands[len(tensors) :], tensors[program.rule.n_own :]
    statement = is_statement(program.rule)
    sources = [i for i, f in enumerate(own) if torch.is_grad_enabled() and f.requires_grad]
    rule: Rule = program.rule
    if sources and isinstance(rule, Loop):
        rule = Loop(rule.carried, is_recorded=True)
    joint_sources = sources if isinstance(rule, Choice) else []  # a loop's steps are differentiated apart
    specs = [f.spec for f in own]
    subgraphs = [
        subgraph_capture.trace(parts, g, specs, numbers, joint_sources, record, statement)
        for g in program.graphs
    ]
    if any(draws(n) for s in subgraphs for n in s.traced.aten_graph):
        program.rule = Choice(is_statement=True, draws=True)
    read = subgraph_capture.numbers_read(subgraphs)
    results = _result_specs(program, subgraphs)
    ends = list(zip(results, program.differentiable([spec.dtype for spec in results])))
    gradients = [
        subgraph_capture.gradients(
            s, ends, sources, read, not statement, is_costly=lambda n: not _is_small(n)
        )
        for s in subgraphs
        if joint_sources
    ]
    by_source = [*zip(*(g.defined for g in gradients))]  # in each graph
    flags = [*dict.fromkeys(pair for pair in by_source if statement and len({*pair}) > 1)]
    kept = [(i, node) for i, g in enumerate(gradients) for node in g.kept]
    graphs = []
    for i, s in enumerate(subgraphs):
        own_kept = [node if at == i else node.spec for at, node in kept]
        graphs.append(subgraph_capture.forward_graph(s, read, [*(pair[i] for pair in flags), *own_kept]))
    torch_nodes = [f.torch_node or parts.inputs.torch_node(f) for f in tensors]
    known_numbers = [parts.numbers.node(n, parts.tape.torch) if type(n) in NUMBERS else n for n in numbers]
    node = Node("call_function", program, (*torch_nodes, *known_numbers), {}, "")
    if isinstance(rule, Loop) and rule.is_recorded:
        handle = Handle.of(Inner(rule, graphs, [s.held for s in subgraphs]))
        *outputs, history = run_graphs(parts, node, handle, tensors, read, [*results, HISTORY], rule.name)
        call = LoopCall(parts, program, history, numbers, read, frozenset(sources))
        outputs = differentiated(call, outputs, tensors, record, run_graphs)
        parts.torch_recorder.record(node, program, outputs)
        return outputs
    more = [*(FLAG for _ in flags), *(node.spec for _, node in kept)]
    handle = Handle.of(Inner(program.rule, graphs, [s.held for s in subgraphs]))
    outputs = run_graphs(parts, node, handle, tensors, read, [*results, *more], program.rule.name)
    outputs, found = outputs[: len(results)], outputs[len(results) :]
    if sources:
        known: dict[object, FakeTensor] = dict(zip(flags, found))
        defined = {
            i: not statement or (any(pair) and known.get(pair, True)) for i, pair in zip(sources, by_source)
        }
        for i, g in enumerate(gradients):
            g.pad([n.spec for at, n in kept if at < i], [n.spec for at, n in kept if at > i])
        inner = Handle.of(Inner(program.rule, [g.graph for g in gradients]))
        backward = _Backward(parts, inner, program, read, defined, found[len(flags) :])
        with DisableTorchFunction(), DisableTorchDispatch():
            outputs = list(_History.apply(backward, outputs, *tensors))  # type: ignore[no-untyped-call]
    parts.torch_recorder.record(node, program, outputs)
    return outputs


def _result_specs(program: Program, subgraphs: Sequence[TracedSubgraph]) -> list[TensorSpec]:
    """The specs of the results, on which all subgraphs with results must agree."""
    with_results = subgraphs if isinstance(program.rule, Choice) else subgraphs[1:]
    found = [[with_own_storage(f.spec) for f in i.traced.outputs] for i in with_results]
    if any(specs != found[0] for specs in found):
        raise refuse("branches whose results have different layouts")
    if any(n != 1 and s == 0 for spec in found[0] for n, s in zip(spec.shape, spec.stride)):
        raise refuse("results with elements that share memory")
    return found[0]


def run_graphs(
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
    with _called_by(parts, source):
        op = RUN_DRAWING_GRAPHS if any(map(draws, itertools.chain(*inner.graphs))) else RUN_GRAPHS
        number_nodes = [parts.numbers.node(n.symbol.number(), parts.tape.aten) for n in numbers.values()]
        args = handle, nodes, *([number_nodes] if number_nodes else [])
        node = parts.tape.add_operator(op, args, {}, name, tuple(specs))
        parts.tape.finish_operator(node, outputs)
    return outputs


@contextmanager
def _called_by(parts: TraceParts, source: Node | None) -> Iterator[None]:
    """Context in which aten nodes belong to the call `source`, if any."""
    call, before = parts.call, parts.call.node
    call.node = source or before
    try:
        yield
    finally:
        call.node = before


def _both(
    parts: TraceParts,
    source: Node | None,
    inner: Inner,
    tensors: Sequence[FakeTensor],
    numbers: Numbers,
    specs: Sequence[TensorSpec],
) -> list[FakeTensor]:
    """Record the nodes of both graphs of a `Choice`, and the selection between their results."""
    with _called_by(parts, source), DisableTorchFunction(), DisableAutocast(), torch.no_grad():
        condition, *operands = tensors
        holds = condition.reshape(())
        values = [*operands, *(n.symbol.number() for n in numbers.values())]
        both = [_inlined(parts, graph, values) for graph in inner.graphs]
        results = [torch.where(holds, a, b) for a, b in zip(*both)]
        return [cast(FakeTensor, with_layout(parts, r, spec)) for r, spec in zip(results, specs)]


def _inlined(parts: TraceParts, graph: Graph, operands: Sequence[object]) -> list[torch.Tensor]:
    values: dict[Node, object] = dict(zip(graph.placeholders, operands))

    def value(leaf: Node | Expr) -> object:
        return values[leaf] if isinstance(leaf, Node) else number_of_size(parts.inputs, leaf)

    for node in graph.nodes[len(operands) : -1]:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, Expr), value)
        values[node] = node.target(*args, **kwargs)
    return [cast(torch.Tensor, values[n]) for n in graph.output.args[0]]


_MAX_SELECTED_NODES = 32  # of both graphs
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
    """Records the gradients of a program. `numbers`: those that its graphs take; `defined`: by operand that requires
    gradients, whether it has one: known, or a flag in the graph; `kept`: results of the forward."""

    parts: TraceParts
    handle: Handle
    program: Program
    numbers: Numbers
    defined: dict[int, FakeTensor | bool]
    kept: Sequence[FakeTensor]

    def __call__(
        self, tensors: Sequence[FakeTensor], tangents: Sequence[FakeTensor]
    ) -> list[FakeTensor | None]:
        n_own = self.program.rule.n_own
        specs = [row_major(tensors[n_own + i].spec) for i in self.defined]
        name, operands = f"{self.program.rule.name}_backward", (*tensors, *tangents, *self.kept)
        values = run_graphs(self.parts, None, self.handle, operands, self.numbers, specs, name)
        gradients: list[FakeTensor | None] = [None] * len(tensors)
        for (i, flag), value in zip(self.defined.items(), values):
            gradients[n_own + i] = self._defined_if(flag, value)
        return gradients

    def _defined_if(self, flag: FakeTensor | bool, value: FakeTensor) -> FakeTensor | None:
        """The gradient `value`, which is undefined unless `flag` holds."""
        if isinstance(flag, bool):
            return value if flag else None
        if not self.parts.backward.is_recorded:
            raise refuse("the function reads a gradient that one branch gives")
        with DisableTorchFunction(), DisableTorchDispatch():
            marked = fresh_fake(self.parts.inputs, value.spec)
        tape = self.parts.tape
        node = tape.add_operator(DEFINED_IF, (value.aten_node, flag.aten_node), {}, "gradient", value.spec)
        tape.finish_operator(node, marked)
        return marked


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
        laid_out = [with_layout(parts, t, spec) for t, spec in pairs if spec is not None]
        return (None, None, *ctx.record(ctx.saved_tensors, laid_out))  # type: ignore[attr-defined]
