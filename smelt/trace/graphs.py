"""From what was recorded to the two finished graphs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from smelt.graph import passes
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.specs import empty_like_spec
from smelt.trace.fake import FakeTensor, fakes_in
from smelt.trace.functionalize import functionalize
from smelt.trace.joint import Joint, Recorded, Whole
from smelt.trace.symbols import NumberInput

if TYPE_CHECKING:
    from smelt.trace.record import Trace


@dataclass(slots=True)
class Record:
    """An aten node and the fake (or tuple or list of them) it gave."""

    node: Node
    out: Any

    def replace(self, old: FakeTensor, new: FakeTensor) -> None:
        """`new` takes the place of `old` in the result."""
        self.out = _replaced(self.out, old, new)


def _replaced(value: Any, old: FakeTensor, new: FakeTensor) -> Any:
    if isinstance(value, (list, tuple)):
        return [_replaced(v, old, new) for v in value]
    return new if value is old else value


@dataclass(frozen=True)
class Traced:
    """A finished trace. `inputs[i]` is the fake of placeholder i of both graphs; only inputs that a graph uses are there.

    The aten graph is functional but for `copy_` nodes at its end that write inputs (`mutated`: their positions).
    `needs_grad`: running the aten graph would lose gradients (or that an output is an inference tensor): the joint graph is
    what runs, or autograd has to see the torch-level graph run, operator by operator.
    """

    torch_graph: Graph
    aten_graph: Graph
    inputs: tuple[FakeTensor, ...]
    mutated: frozenset[int]
    outputs: tuple[FakeTensor, ...]
    needs_grad: bool
    _examples: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    numbers: tuple[NumberInput, ...] = ()  # Python numbers that both graphs take after the tensors
    joint: Joint | None = None  # where gradients are needed, were asked for, and can be had ahead of time

    def example_inputs(self) -> tuple[Any, ...]:
        """The tensors that the trace saw, where they still exist, else empty ones like them; then the numbers."""
        found = itertools.zip_longest((ref() for ref in self._examples), self.inputs)
        tensors = [_empty_like(fake) if real is None else real for real, fake in found]
        return (*tensors, *(n.symbol.value for n in self.numbers))

    def forget_examples(self) -> None:
        """Lets go of the tensors that the trace saw: `torch.utils.swap_tensors` refuses those with weak references."""
        self._examples.clear()


def _empty_like(fake: FakeTensor) -> torch.Tensor:
    return empty_like_spec(fake.spec, fake.device)


def build(trace: Trace, outputs: Sequence[FakeTensor], recorded: Recorded | None) -> Traced:
    """The two graphs of a trace; where its backward was recorded, the joint graph too."""
    _note_gradients(trace)
    impure = _impure_calls(trace)
    torch_graph, aten_graph = trace.torch.graph, trace.aten.graph
    _fold_pinned(trace)
    more, start = (recorded.fakes, recorded.start) if recorded else ([], None)
    given = recorded.written if recorded else ()
    aten_graph, ends, written, late = functionalize(trace, [*outputs, *more], start, given)
    whole = Whole.of(trace, recorded, aten_graph, late, ends[len(outputs) :]) if recorded else None
    if whole is not None:  # the joint graph leaves these writes to its caller
        aten_graph.nodes += [_write(trace, f, n) for f, n in whole.written(ends[len(outputs) :])]
    _end(torch_graph, [fake.torch_node for fake in outputs])
    _end(aten_graph, ends[: len(outputs)])
    passes.eliminate_dead(torch_graph, keep=lambda node: node in impure)
    passes.eliminate_dead(aten_graph)
    passes.eliminate_detach(aten_graph)
    passes.eliminate_common(aten_graph)
    used = {n for graph in (torch_graph, aten_graph) for node in graph for n in argument_nodes(node)}
    inputs = tuple(f for f in trace.inputs if f.aten_node in used or f.torch_node in used)
    numbers = tuple(n for n in trace.numbers.values() if not used.isdisjoint(n.nodes.values()))
    places = [n.node(trace.torch) for n in numbers], [n.node(trace.aten) for n in numbers]
    _begin(torch_graph, [*(f.torch_node or trace._placeholder(f, trace.torch) for f in inputs), *places[0]])
    _begin(aten_graph, [*(f.aten_node or trace._placeholder(f, trace.aten) for f in inputs), *places[1]])
    return Traced(
        torch_graph=torch_graph,
        aten_graph=aten_graph,
        inputs=inputs,
        mutated=frozenset(i for i, f in enumerate(inputs) if id(f) in written or any(f is g for g in given)),
        outputs=tuple(outputs),
        needs_grad=needs_grad(trace, outputs),
        _examples=[weakref.ref(trace.real(f)) for f in inputs],  # type: ignore[arg-type]
        numbers=numbers,
        joint=whole.joint(inputs, aten_graph.placeholders) if whole else None,
    )


def _write(trace: Trace, fake: FakeTensor, value: Node) -> Node:
    name = trace.aten.name("copy")
    return Node("call_function", torch.ops.aten.copy_.default, (fake.aten_node, value), {}, name, fake.spec)


def _fold_pinned(trace: Trace) -> None:
    """Numbers that turned out to be the same at every call are constants of the graphs."""
    folded = {
        node: n.symbol.value for n in trace.numbers.values() if n.is_pinned for node in n.nodes.values()
    }
    if not folded:
        return
    for node in (*trace.torch.graph, *trace.aten.graph):
        node.args = map_nodes(node.args, lambda n: folded.get(n, n))
        node.kwargs = map_nodes(node.kwargs, lambda n: folded.get(n, n))


def _end(graph: Graph, outputs: Sequence[Node | None]) -> None:
    specs = tuple(n.spec if n is not None else None for n in outputs)
    graph.nodes.append(Node("output", "output", (tuple(outputs),), {}, "output", specs))


def _begin(graph: Graph, placeholders: list[Node]) -> None:
    graph.nodes[:] = placeholders + [n for n in graph.nodes if n.op != "placeholder"]


def _note_gradients(trace: Trace) -> None:
    """Nodes learn which of their tensors require grad (known only now: autograd sets it after an operator ran)."""
    for fake in (*trace.inputs, *(f for r in trace.records for f in fakes_in(r.out))):
        if fake.requires_grad:
            for node in (fake.aten_node, fake.torch_node):
                if node is not None and type(node.spec) is TensorSpec and not node.spec.requires_grad:
                    node.spec = replace(node.spec, requires_grad=True)


def _impure_calls(trace: Trace) -> set[Node]:
    """Torch-level nodes that must stay although nobody uses their result."""
    impure = {r.node.source for r in trace.records if passes.has_effect(r.node) and r.node.source is not None}
    stateful = {n for n in trace.torch.graph if n.op != "placeholder" and passes.changes_state(n)}
    return impure | stateful | trace.kept


def needs_grad(trace: Trace, outputs: Sequence[FakeTensor]) -> bool:
    computed = [f for f in outputs if not trace.is_input(f)]
    inference = trace.first_state[1]
    return (
        trace.needs_autograd
        or any(f.requires_grad or f.is_inference() is not inference for f in computed)
        or any(_has_other_history(trace, f) for f in trace.inputs)
        or _detaches(trace, computed)
    )


def _detaches(trace: Trace, computed: Sequence[FakeTensor]) -> bool:
    """Whether a result is a view of an input that requires grad, and does not: autograd knows how it was taken."""
    sources = {f.storage_key for f in trace.inputs if f.requires_grad}
    return any(f.storage_key in sources for f in computed)


def _has_other_history(trace: Trace, fake: FakeTensor) -> bool:
    """Whether autograd sees an input differently at the end: it was written with gradients, or its flag was set."""
    real = trace.real(fake)
    if real is not None and fake.requires_grad != real.requires_grad:
        return True
    return fake.grad_fn is not trace.first_history.get(id(fake))
