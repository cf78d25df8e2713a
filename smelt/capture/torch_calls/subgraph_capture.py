"""Functions that operators of higher order take, as graphs of their own (`smelt.graph.subgraphs`).

The machine runs each function once, on the tensors of the trace; what that recorded at the torch level is cut out, and is a
graph. It is traced anew, as any program is, with tensors of its own: that gives the functional aten graph and, where
gradients are wanted, the joint graph, whose backward is a graph, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch

from smelt._native import isinstance
from smelt.autograd.unsegmented_backward import unsegmented
from smelt.errors import Unsupported
from smelt.graph import graph_passes, torch_settings
from smelt.graph.ir import Graph, Node, NumberSpec, TensorSpec, argument_nodes, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.subgraphs import Program, has_gradients
from smelt.graph.tensor_specs import empty_like_spec, make_spec
from smelt.graph.user_kernel_calls import KernelLaunch
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.shapes.expr import contiguous_stride
from smelt.torch_private import (
    DisableTorchDispatch,
    EnableTorchFunction,
    OpOverload,
    current_dispatch_modes,
    current_function_modes,
    pop_torch_dispatch_stack,
    pop_torch_function_stack,
    push_on_torch_dispatch_stack,
    push_on_torch_function_stack,
)
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.not_differentiable import NotDifferentiable
from smelt.tracing.fake.fake_tensor import FakeTensor, check_fixed, fakes_in, wrap
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.tape import TapeEntry
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.traced import Traced

aten = torch.ops.aten


def refuse(what: str) -> Unsupported:
    """The error for functions that cannot be graphs of their own: the graph breaks where they are chosen."""
    return Unsupported(Reason(DATA_DEPENDENT, what))


# --------------------------------------------------------------------------------------------- cutting out


@dataclass(frozen=True)
class TapePosition:
    """How much was recorded before a function ran, and under which settings."""

    entries: int
    aten: int
    torch: int
    settings: torch_settings.TorchSettings


def mark(parts: TraceParts) -> TapePosition:
    """What is recorded from here on can be taken out."""
    with parts.call.paused():
        torch.clear_autocast_cache()  # a cast that is cached is part of one graph only
    settings = torch_settings.read()
    parts.torch_recorder.record_settings(settings)
    tape = parts.tape
    return TapePosition(len(tape.entries), len(tape.aten.graph.nodes), len(tape.torch.graph.nodes), settings)


def cut_out(parts: TraceParts, start: TapePosition, end: TapePosition | None = None) -> list[Node]:
    """The torch-level nodes recorded since `start` (up to `end`), which are in no graph any more. Constants stay."""
    tape = parts.tape
    entries, n_aten, n_torch = (None, None, None) if end is None else (end.entries, end.aten, end.torch)
    made = tape.entries[start.entries : entries]
    tape.entries[start.entries : entries] = [e for e in made if e.node.op == "get_attr"]
    _take(tape.aten.graph.nodes, slice(start.aten, n_aten))
    return _take(tape.torch.graph.nodes, slice(start.torch, n_torch))


def _take(nodes: list[Node], where: slice) -> list[Node]:
    taken = nodes[where]
    nodes[where] = [n for n in taken if n.op == "get_attr"]
    return [n for n in taken if n.op != "get_attr"]


@dataclass(frozen=True)
class Part:
    """What one function did at the torch level, and the tensors that it gave."""

    nodes: list[Node]
    results: Sequence[FakeTensor]

    def reads(self) -> Iterator[Node]:
        """What it reads of others."""
        own = set(self.nodes)
        for node in self.nodes:
            _check(node)
            yield from (n for n in argument_nodes(node) if n not in own)
        yield from (
            f.torch_node for f in self.results if f.torch_node is not None and f.torch_node not in own
        )

    def graph(self, placeholders: Sequence[Node]) -> Graph:
        """As a graph that takes the values of `placeholders`."""
        graph = Graph("torch")
        copies = {p: _placeholder(f"operand_{i}", p.spec) for i, p in enumerate(placeholders)}
        for node in self.nodes:
            args, kwargs = (map_nodes(a, copies.__getitem__) for a in (node.args, node.kwargs))
            copies[node] = Node(node.op, node.target, args, kwargs, node.name, node.spec, node.line)
        graph.nodes = [*copies.values()]
        _end(graph, [copies[f.torch_node] for f in self.results if f.torch_node is not None])
        graph_passes.eliminate_dead(graph, keep=lambda n: n.op != "get_attr")
        return graph


def _check(node: Node) -> None:
    if type(node.target) in (OpaqueCall, KernelLaunch) or node.target is torch.autograd.grad:
        raise refuse("a function of an operator of higher order that calls autograd")
    if graph_passes.changes_state(node) and node.target not in torch_settings.CHANGES:
        raise refuse("a function of an operator of higher order that changes what autograd knows")


def _placeholder(name: str, spec: object) -> Node:
    return Node("placeholder", name, (), {}, name, spec)


def _end(graph: Graph, results: Sequence[Node]) -> None:
    specs = tuple(n.spec for n in results)
    graph.nodes.append(Node("output", "output", (tuple(results),), {}, "output", specs))


def stand_in(parts: TraceParts, fake: FakeTensor) -> FakeTensor:
    """Any tensor laid out as `fake`, in memory of its own, which no graph gives."""
    spec = replace(fake.spec, offset=0)
    with parts.call.paused(), DisableTorchDispatch():
        made = wrap(empty_like_spec(spec, torch.device("meta")), fake.device)
    node = made.aten_node = _placeholder("carried", made.spec)
    made.torch_node = _placeholder("carried", made.spec)
    parts.tape.entries.append(TapeEntry(node, made))  # until what its function did is taken out
    return made


def operands(parts: TraceParts, functions: Sequence[Part], own: Sequence[Node]) -> list[FakeTensor]:
    """The tensors that the functions read, but for those of the nodes `own`."""
    made = {f.torch_node: f for entry in parts.tape.entries for f in fakes_in(entry.out)}
    made.update((f.torch_node, f) for f in parts.inputs)
    found: dict[Node, FakeTensor] = {}
    for node in dict.fromkeys(n for part in functions for n in part.reads()):
        if node in found or node in own:
            continue
        if isinstance(node.spec, NumberSpec) or made.get(node) is None:
            raise refuse("a function of an operator of higher order that reads a number that changes")
        found[node] = made[node]
    if any(f.subclass is not None or f.device.type != "cpu" for f in found.values()):
        raise refuse("an operator of higher order on tensors that are not plain ones on the CPU")
    check_fixed(list(found.values()), "an operator of higher order")
    return list(found.values())


# ---------------------------------------------------------------------------------------------- tracing anew

Record = Callable[[TraceParts, Program, Sequence[FakeTensor]], Sequence[FakeTensor]]


@dataclass(frozen=True)
class TracedSubgraph:
    """A graph traced by itself. `fakes` are its operands."""

    traced: Traced
    fakes: list[FakeTensor]


def trace(
    parts: TraceParts, graph: Graph, specs: Sequence[TensorSpec], sources: frozenset[int], record: Record
) -> TracedSubgraph:
    """`graph`, of the torch level, on tensors with these specs. `sources`: those that require gradients. `record` records a
    program among its nodes. Raises Unsupported where it does what a graph inside cannot."""
    with parts.call.paused(), _without_modes():
        reals = [empty_like_spec(spec, torch.device("cpu")) for spec in specs]
        for i in sources:
            reals[i].requires_grad_()
        inner = Trace(parts.call.where)
        inner.autograd.wants_joint = bool(sources)
        try:
            with EnableTorchFunction(), inner:
                fakes = [inner.fake(real) for real in reals]
                results = _replayed(inner, graph, fakes, record)
                before = {f.storage_key for f in fakes}
                inner.record_backward(results)
                traced = inner.finish(results)
        except NotDifferentiable as error:
            raise Unsupported(error.reason) from error
        finally:
            inner.release_inputs()
    storages = [f.storage_key for f in results]
    if traced.mutated or len(set(storages)) < len(storages) or before & {*storages}:
        raise refuse("a function of an operator of higher order that gives, or writes, what it was given")
    if any(isinstance(n.target, OpOverload) and effects(n.target).random for n in traced.aten_graph):
        raise refuse("a function of an operator of higher order that draws random numbers")
    traced.release_examples()
    return TracedSubgraph(traced, fakes)


def _replayed(inner: Trace, graph: Graph, fakes: Sequence[FakeTensor], record: Record) -> list[FakeTensor]:
    values: dict[Node, object] = dict(zip(graph.placeholders, fakes))
    for node in graph.nodes[len(fakes) : -1]:
        args, kwargs = (map_nodes(a, values.__getitem__) for a in (node.args, node.kwargs))
        if isinstance(node.target, Program):
            values[node] = record(inner, node.target, args)
        elif node.op == "call_method":
            values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)
    return [cast(FakeTensor, values[n]) for n in graph.output.args[0]]


@contextmanager
def _without_modes() -> Iterator[None]:
    """The modes of the trace around it are off."""
    dispatch, function = current_dispatch_modes(), current_function_modes()
    for _ in dispatch:
        pop_torch_dispatch_stack(None)
    for _ in function:
        pop_torch_function_stack()
    try:
        yield
    finally:
        for mode in dispatch:
            push_on_torch_dispatch_stack(mode)
        for mode in function:
            push_on_torch_function_stack(mode)


# ----------------------------------------------------------------------------------------------- aten graphs


def forward_graph(inside: TracedSubgraph) -> Graph:
    """The aten graph, which takes all operands."""
    graph, traced = inside.traced.aten_graph, inside.traced
    _take_all(graph, dict(zip(map(id, traced.inputs), graph.placeholders)), inside.fakes)
    return graph


def _take_all(
    graph: Graph, known: dict[int, Node], fakes: Sequence[FakeTensor], more: Sequence[Node] = ()
) -> None:
    """Makes the placeholders of `graph` those of all operands, and `more`."""
    inputs = [known.get(id(f)) or _placeholder(f"unused_{i}", f.spec) for i, f in enumerate(fakes)]
    graph.nodes[:] = [*inputs, *more, *(n for n in graph.nodes if n.op != "placeholder")]


def backward_graph(inside: TracedSubgraph, results: Sequence[TensorSpec], sources: frozenset[int]) -> Graph:
    """The aten graph of the gradients of `sources`, which takes all operands, then the tangents of the results that can have
    one, laid out as these. The gradients are row-major. It computes again what it needs of the forward, as torch's own
    operators do."""
    joint = inside.traced.joint
    graph = Graph("aten")
    primals: dict[int, Node] = {}
    tangents: dict[int, Node] = {}
    gradients: dict[int, Node | None] = {}
    if joint is not None:
        _check_joint(joint)
        graph = _only_gradients(joint)
        inputs = graph.placeholders
        primals = dict(zip(map(id, inside.traced.inputs), inputs))
        tangents = dict(zip(joint.tangents, inputs[joint.n_primals :]))
        by_input = dict(zip(joint.gradients, graph.output.args[0]))
        gradients = {id(f): by_input.get(i) for i, f in enumerate(inside.traced.inputs)}
        graph.nodes.pop()
    given = []
    for i, spec in enumerate(results):
        if has_gradients(spec.dtype):
            place = joint.results[i].index if joint is not None else -1
            given.append(tangents.get(place) or _placeholder(f"untaken_{i}", spec))
    _take_all(graph, primals, inside.fakes, given)
    ends = [_gradient(graph, i, f, gradients.get(id(f))) for i, f in enumerate(inside.fakes) if i in sources]
    _end(graph, ends)
    graph_passes.eliminate_dead(graph)
    return graph


def _check_joint(joint: Joint) -> None:
    plain = all(r.kind == "value" and not r.steps and not r.detached for r in joint.results)
    if not plain or joint.writes or joint.freed or joint.flags.enabled:
        raise refuse("a function of an operator of higher order that changes what autograd knows")


def _only_gradients(joint: Joint) -> Graph:
    graph, _ = graph_passes.copied(joint.graph.nodes, joint.graph.constants)
    returned = graph.output.args[0][joint.n_outputs :]
    specs = tuple(None if n is None else n.spec for n in returned)
    graph.nodes[-1] = Node("output", "output", (returned,), {}, "output", specs)
    graph_passes.eliminate_dead(graph)
    with _without_modes():
        return unsegmented(graph, joint) if joint.cuts else graph


def _gradient(graph: Graph, i: int, fake: FakeTensor, found: Node | None) -> Node:
    """The gradient of an operand, row-major; zeros where there is none."""
    spec = row_major(fake.spec)
    if found is not None and found.spec.stride == spec.stride and found.op != "placeholder":
        return found
    name = f"gradient_of_{i}"
    if found is None:
        options = {"dtype": spec.dtype, "device": spec.device}
        node = Node("call_function", aten.full.default, (list(spec.shape), 0), options, name, spec)
    else:
        options = {"memory_format": torch.contiguous_format}
        node = Node("call_function", aten.clone.default, (found,), options, name, spec)
    graph.nodes.append(node)
    return node


def alone(spec: TensorSpec) -> TensorSpec:
    """The same layout, in memory of its own."""
    return make_spec(spec.shape, spec.stride, spec.dtype, spec.device)


def row_major(spec: TensorSpec) -> TensorSpec:
    """The same shape, in memory of its own."""
    return make_spec(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)
