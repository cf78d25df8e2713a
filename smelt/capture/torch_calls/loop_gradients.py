"""Gradients of loops.

The forward records the values with which each step began. The backward runs the joint graph of a step, which computes the
step again, for all steps in reverse order, and adds up the gradients of invariants.

A result whose value nothing needs has no gradient, and neither do the values that only it is computed from: their tangents
would be zeros, and zero times infinity is NaN. So a step's graph is traced for the results that have gradients there: those
of the last step are the ones that the program uses, those of earlier steps the ones that the next step reads.

Eager's gradients reach a tensor only where some step reads it. `Program.least_steps` is the number of steps after which
further ones reach no others; the graph checks that there are as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch.autograd.function import FunctionCtx

from smelt._native import isinstance
from smelt.capture.torch_calls import subgraph_capture
from smelt.capture.torch_calls.subgraph_capture import Numbers, Record, numbers_read, refuse, row_major
from smelt.graph.graph_passes import copied
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import Inner, Loop, LoopBackward, Program, has_gradients
from smelt.graph.tensor_specs import row_major_spec
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.recorded_results import number_of_size
from smelt.tracing.record.trace_parts import TraceParts

HISTORY = row_major_spec((), torch.int64, torch.device("cpu"))
_MAX_GRAPHS = 4  # of steps in which different results have gradients

RunGraphs = Callable[..., list[FakeTensor]]


@dataclass(frozen=True)
class LoopCall:
    """The call of a recorded loop: its history, the `numbers` among its operands, those that its graphs `read`, and the
    tensors that require gradients."""

    parts: TraceParts
    program: Program
    history: FakeTensor
    numbers: Sequence[object]
    read: Numbers
    required: frozenset[int]


def differentiated(
    call: LoopCall,
    results: list[FakeTensor],
    tensors: Sequence[FakeTensor],
    record: Record,
    run_graphs: RunGraphs,
) -> list[FakeTensor]:
    """The results of a recorded loop on `tensors`, with its autograd node; sets `least_steps` of the program. Raises
    Unsupported."""
    gradients = _Gradients(call, tensors, record, run_graphs)
    reached = [tensors[i] for i in gradients.required]
    with DisableTorchFunction(), DisableTorchDispatch():
        return list(_History.apply(gradients, results, *reached))  # type: ignore[no-untyped-call]


class _Gradients:
    """Records the backward of a loop. `floats`: the carried values that have gradients."""

    def __init__(
        self, call: LoopCall, tensors: Sequence[FakeTensor], record: Record, run_graphs: RunGraphs
    ) -> None:
        program = call.program
        assert isinstance(program.rule, Loop)
        self._call, self._tensors, self._step = call, tensors, program.graphs[1]
        self._record_inner, self._run_graphs = record, run_graphs
        self._carried = program.rule.carried
        self._required = call.required
        self._graphs: dict[frozenset[int], tuple[Graph, tuple[int, ...]]] = {}
        specs = self._specs()
        self.floats = [i for i in range(self._carried) if has_gradients(specs[i].dtype)]
        self._reads = self._read_by_results()
        before = self.sources
        reached, program.least_steps = self._reached()
        self.floats = [i for i in self.floats if i in reached]
        if self.sources != before:
            self._graphs.clear()
            self._reads = self._read_by_results()

    def _specs(self) -> list[TensorSpec]:
        """The layouts of the tensors that a step takes."""
        inputs = self._step.placeholders
        return [p.spec for p in inputs[: len(inputs) - len(self._call.numbers)]]

    @property
    def required(self) -> list[int]:
        """The tensors that gradients reach."""
        return sorted(self._required)

    @property
    def sources(self) -> list[int]:
        """The operands of a step whose gradients its backward computes: `floats` first."""
        return [*self.floats, *sorted(i for i in self._required if i >= self._carried)]

    def _reached(self) -> tuple[frozenset[int], int]:
        """The results that have gradients, and the least number of steps after which each of them reaches the same tensors
        as after all further steps. These are `_required` from now on."""
        now = {i: self._required & {i} for i in self.floats}
        for steps in range(len(self.floats) + 2):
            after = {
                i: frozenset[int]().union(*(now.get(k, self._required & {k}) for k in self._reads[i]))
                for i in self.floats
            }
            if now == after:
                self._reached_by = now
                self._required = frozenset[int]().union(*now.values())
                return frozenset(i for i in self.floats if now[i]), steps
            now = after
        raise refuse("gradients of a loop that reach other tensors in each step")

    def _read_by_results(self) -> dict[int, frozenset[int]]:
        """For each of `floats`, the sources whose gradients depend on its own."""
        graph, _ = self._graph(frozenset(self.floats))
        depends: dict[Node, frozenset[int]] = {
            p: frozenset((i,)) for p, i in zip(graph.placeholders, self.floats)
        }
        for node in graph.nodes:
            if node not in depends:
                depends[node] = frozenset[int]().union(*(depends[n] for n in argument_nodes(node)))
        outputs = dict(zip(self.sources, graph.output.args[0]))
        return {i: frozenset(k for k, output in outputs.items() if i in depends[output]) for i in self.floats}

    def _graph(self, defined: frozenset[int]) -> tuple[Graph, tuple[int, ...]]:
        """The backward of a step in which these results have gradients, and the tensors whose numbers it takes. Inputs: the
        tangents of `floats`, the tensors of the step, and numbers."""
        if defined not in self._graphs:
            self._graphs[defined] = self._traced(defined)
        return self._graphs[defined]

    def _traced(self, defined: frozenset[int]) -> tuple[Graph, tuple[int, ...]]:
        call, specs, sources = self._call, self._specs(), self.sources
        with torch.enable_grad():  # also within a backward
            graph = _detached(self._step, defined)
            step = subgraph_capture.trace(
                call.parts, graph, specs, call.numbers, sources, self._record_inner, may_draw=False
            )
        if not numbers_read([step]).keys() <= call.read.keys():
            raise refuse("gradients of a loop that compute with a number")
        results = [(spec, i in self.floats) for i, spec in enumerate(specs[: self._carried])]
        graph = subgraph_capture.gradients(
            step, results, sources, call.read, zeros=True, is_costly=lambda node: False
        ).graph
        inputs, n = graph.placeholders, len(specs)
        tangents = inputs[n : n + len(self.floats)]
        graph.nodes[: len(inputs)] = [*tangents, *inputs[:n], *inputs[n + len(tangents) :]]
        return graph, tuple(len(tangents) + i for i in step.held)

    def __call__(self, tangents: Sequence[FakeTensor | None]) -> list[FakeTensor | None]:
        """The gradients of the tensors that gradients reach."""
        tensors = self._tensors
        defined = frozenset(i for i in self.floats if tangents[i] is not None)
        if not defined:
            return [None] * len(self._required)
        graphs = [self._graph(each) for each in self._defined_in_steps(defined)]
        rule = LoopBackward(len(self.floats), self._carried)
        handle = Handle.of(Inner(rule, *zip(*graphs)))
        parts, numbers = self._call.parts, self._call.read
        first = [_tangent(parts, tangents[i], tensors[i].spec) for i in self.floats]
        specs = [row_major(tensors[i].spec) for i in self.sources]
        inputs = (self._call.history, *first, *tensors)
        results = self._run_graphs(parts, None, handle, inputs, numbers, specs, rule.name)
        found = dict(zip(self.sources, results))
        reached = frozenset[int]().union(*(self._reached_by[i] for i in defined))
        return [found[i] if i in reached else None for i in self.required]

    def _defined_in_steps(self, defined: frozenset[int]) -> list[frozenset[int]]:
        """The results that have gradients in the last step, the one before it, and so on; the last entry for all that
        remain."""
        found = [defined]
        while True:
            before = frozenset(i for i in self.floats if any(i in self._reads[k] for k in found[-1]))
            if before == found[-1]:
                return found
            found.append(before)
            if len(found) > _MAX_GRAPHS:
                raise refuse("gradients of a loop that reach other variables in each step")


def _detached(graph: Graph, kept: frozenset[int]) -> Graph:
    """A graph of the torch level with results that have no history, except those `kept`."""
    made, _ = copied(graph.nodes, graph.constants)
    output = made.nodes.pop()
    results = list(output.args[0])
    for i, node in enumerate(results):
        if i not in kept and has_gradients(node.spec.dtype):
            for method in ("detach", "clone"):
                node = Node("call_method", method, (node,), {}, f"{node.name}_{method}", node.spec)
                made.nodes.append(node)
            results[i] = node
    made.nodes.append(Node("output", "output", (tuple(results),), {}, "output", output.spec))
    return made


def _tangent(parts: TraceParts, tangent: FakeTensor | None, spec: TensorSpec) -> torch.Tensor:
    return _empty(parts, spec).zero_() if tangent is None else with_layout(parts, tangent, spec)


def with_layout(parts: TraceParts, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """`tensor`, or a copy of it with the strides of `spec`."""
    if cast(FakeTensor, tensor).spec.stride == spec.stride:
        return tensor
    return _empty(parts, spec).copy_(tensor)


def _empty(parts: TraceParts, spec: TensorSpec) -> torch.Tensor:
    shape, stride = ([number_of_size(parts.inputs, n) for n in sizes] for sizes in (spec.shape, spec.stride))
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)


class _History(torch.autograd.Function):
    """The autograd node of a loop, on results that are computed already."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, gradients: _Gradients, results: list[FakeTensor], *tensors: FakeTensor
    ) -> tuple[FakeTensor, ...]:
        ctx.record = gradients  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(r for i, r in enumerate(results) if i not in gradients.floats))
        return tuple(results)

    @staticmethod
    def backward(ctx: FunctionCtx, *tangents: FakeTensor | None) -> tuple[FakeTensor | None, ...]:
        if torch.is_grad_enabled():  # gradients without a history would be constants in the next ones
            raise refuse("second derivatives of a loop")
        return (None, None, *ctx.record(tangents))  # type: ignore[attr-defined]
