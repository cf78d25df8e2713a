"""How the outputs of a trace follow from the values of its joint graph.

An output is not always a value of the joint graph. A view of an input or of another result must be a view for autograd
as well: a later in-place write through one must be visible through the other. So only the base tensors of such outputs
are values of the graph, and each `OutputSource` describes how an output is derived from one, outside of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from smelt.graph.ir import Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.node_builders import UNTRACKED_VIEW
from smelt.torch_private import OpOverload
from smelt.tracing.backward.autograd_graph import computation_order, reachable_edges
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.backward.shared_saves import saves_its_result
from smelt.tracing.fake.fake_tensor import FakeTensor, check_fixed, fakes_in
from smelt.tracing.record.autograd_calls import AutogradCalls
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.trace_inputs import Inputs


@dataclass(frozen=True)
class ViewStep:
    """One view operator; None if its results are the source. The only node in `args` and `kwargs` stands for the source.
    `item`: index of the result, for operators with several. `call`: index of the recorded call, so that results of one call
    can share its view."""

    op: OpOverload | None
    args: Args
    kwargs: Kwargs
    item: int | None
    call: int | None


VIEWED = Node("placeholder", "viewed", (), {}, "viewed")


@dataclass(frozen=True)
class OutputSource:
    """The derivation of one output of the trace: from value `index` of the joint graph, input `index`, or epilogue
    tensor `index`, through the views `steps`.

    `detached`: autograd does not see its base. `no_grad`: the view was created without gradients, so it is a leaf.
    `retained`: it retains its gradient.
    """

    kind: Literal["value", "input", "epilogue"]
    index: int
    steps: tuple[ViewStep, ...] = ()
    detached: bool = False
    no_grad: bool = False
    retained: bool = False

    def renumbered(self, position: Callable[[int], int]) -> OutputSource:
        """The source with input `i` renumbered to `position(i)`."""
        return replace(self, index=position(self.index)) if self.kind == "input" else self

    @property
    def multi_output_call(self) -> OutputSource | None:
        """The source without its last item: equal for the views that one call of a multi-output operator returned."""
        if not self.steps or self.steps[-1].item is None:
            return None
        return replace(self, steps=(*self.steps[:-1], replace(self.steps[-1], item=None)), retained=False)


@dataclass(frozen=True)
class EpilogueTensor:
    """A tensor that is created outside of the graph's nodes and that other results are computed from: a view, or an
    input that value `written` of the joint graph is copied into. `node`: the autograd node it belongs to; the views of
    one operator share one."""

    source: OutputSource
    node: int
    written: int | None = None


def output_sources(
    tape: Tape, inputs: Inputs, outputs: Sequence[FakeTensor], epilogue: Sequence[FakeTensor] = ()
) -> tuple[tuple[FakeTensor, ...], tuple[OutputSource, ...], tuple[OutputSource, ...]]:
    """The values that a joint graph must return; the sources of `outputs` over them and the epilogue; and the sources
    of the views in `epilogue`, in order. A source of kind input indexes `inputs`. Raises NotDifferentiable."""
    sources = _Sources(tape, inputs, outputs, epilogue)
    results = tuple(sources.source(f) for f in outputs)
    return tuple(sources.values.values()), results, tuple(sources.source(f, itself=False) for f in epilogue)


class _Sources:
    """`values`: the tensors that a joint graph must return, by storage."""

    def __init__(
        self, tape: Tape, inputs: Inputs, outputs: Sequence[FakeTensor], epilogue: Sequence[FakeTensor]
    ) -> None:
        self._inputs = inputs
        self._owners = {f.storage_key: f for f in reversed(inputs)}
        self._shared = [f.storage_key for f in (*outputs, *epilogue)]
        self._roots = _ViewRoots(tape, inputs)
        self._epilogue = {id(f): i for i, f in enumerate(epilogue)}
        self.values: dict[int, FakeTensor] = {}
        self._index: dict[int, int] = {}  # of the value in each storage

    def source(self, fake: FakeTensor, itself: bool = True) -> OutputSource:
        """The source of `fake`. `itself`: it may be its own epilogue tensor."""
        base = self._owner_of(fake)
        if base is fake and not self._inputs.holds(fake):
            return OutputSource("value", self._index[fake.storage_key], retained=fake.retains_grad)
        ends = self._epilogue.keys() if itself else self._epilogue.keys() - {id(fake)}
        steps, start = self._roots.views(fake, ends)
        kind, at = self._start(start, base, ends)
        if at < 0 or (fake.requires_grad and not start.requires_grad):
            raise refuse("results share memory in another way than one being a view of the other")
        is_detached = start.requires_grad and not fake.requires_grad
        retained = itself and fake.retains_grad and not self._inputs.holds(fake)
        _check_history(fake, start)
        # A result of `unsafe_chunk`: the same memory with a version counter of its own.
        if fake is not start and fake.requires_grad and not fake._is_view():
            check_fixed(fake, "a result that autograd sees as no view")
            steps = (*steps, ViewStep(UNTRACKED_VIEW, (VIEWED, list(fake.spec.shape)), {}, None, None))
        return OutputSource(kind, at, steps, is_detached, is_no_grad_view(fake), retained)

    def _owner_of(self, fake: FakeTensor) -> FakeTensor:
        """The input or value whose memory `fake` shares."""
        key = fake.storage_key
        if key in self._owners:
            return self._owners[key]
        if key not in self.values:
            self._index[key] = len(self.values)
            is_only_one = self._shared.count(key) == 1 and not is_no_grad_view(fake)
            self.values[key] = fake if is_only_one else self._roots.owner(key)
        return self.values[key]

    def _start(
        self, start: FakeTensor, base: FakeTensor, ends: Collection[int]
    ) -> tuple[Literal["value", "input", "epilogue"], int]:
        if id(start) in ends:
            return "epilogue", self._epilogue[id(start)]
        if base.storage_key in self._owners:
            return "input", next((i for i, f in enumerate(self._inputs) if f is start), -1)
        return "value", self._index[base.storage_key] if start is base else -1


def is_no_grad_view(fake: FakeTensor) -> bool:
    """Whether it is a view created without gradients of a tensor that has some: a leaf for autograd."""
    return fake.requires_grad and fake.is_leaf and fake._is_view()


def _check_history(view: FakeTensor, start: FakeTensor) -> None:
    """Raise NotDifferentiable where the gradient of a view, on the way to its base, ends elsewhere or goes through a
    custom function's backward."""
    node: Any = view.grad_fn
    if node is None:
        return
    while node is not None and node is not start.grad_fn and getattr(node, "variable", None) is not start:
        if hasattr(type(node), "_forward_cls"):
            raise refuse("a result is a view that a custom autograd.Function gave")
        node = node.next_functions[0][0] if node.next_functions else None
    if node is None:
        raise refuse("a result is a view of a leaf made inside")


def epilogue_tensors(
    autograd: AutogradCalls,
    tape: Tape,
    inputs: Inputs,
    outputs: Sequence[FakeTensor],
    values: Sequence[FakeTensor],
    written: Sequence[FakeTensor],
) -> list[FakeTensor]:
    """The tensors to create in the epilogue, in the order of their computation. They are visible to the program, are
    created or written outside of the graph's nodes, and other results are computed from them: the gradients of those
    flow through them, where hooks or `torch.autograd.grad` may observe them. This includes the other views of the same
    operator, and what eager saves of them and of results' memory: second derivatives flow there, as long as the
    program holds those tensors or they contribute to others."""
    value_ids = {id(v) for v in values}
    saved = written_and_saved(tape)
    memory = {f.storage_key for f in (*outputs, *written)}
    hidden = [f for f in saved.values() if f._is_view() and f.storage_key in memory]
    candidates = (*autograd.hooked, *outputs, *hidden)
    visible = [*(f for f in candidates if not inputs.holds(f) and id(f) not in value_ids), *written]
    by_edge = {(f.grad_fn, f.output_nr): f for f in visible if f.grad_fn is not None}
    if not by_edge:
        return []
    ends = [f.grad_fn for f in (*outputs, *written) if f.grad_fn is not None]
    nodes = {node for node, _ in by_edge.keys() & reachable_edges(ends)}
    held = {id(f) for f in (*outputs, *written)} & saved.keys()
    nodes |= {node for (node, _), f in by_edge.items() if id(f) in held}
    order = computation_order(ends, inputs.first_history.values())
    return sorted(
        (f for f in by_edge.values() if f.grad_fn in nodes), key=lambda f: (order[f.grad_fn], f.output_nr)
    )


def written_and_saved(tape: Tape) -> dict[int, FakeTensor]:
    """The fakes, by id, written by an operator whose derivative reads its result (`tanh_`)."""
    entries = (entry for entry in tape.entries if saves_its_result(entry.node.target))
    return {id(f): f for entry in entries for f in fakes_in(entry.out)}


class _ViewRoots:
    """The recorded operator of each fake."""

    def __init__(self, tape: Tape, inputs: Inputs) -> None:
        self._entries = tape.entries
        self._inputs = inputs

    def views(self, fake: FakeTensor, ends: Collection[int] = ()) -> tuple[tuple[ViewStep, ...], FakeTensor]:
        """The view operators that lead to `fake`, and the tensor that they start from: the last one with an id in
        `ends`, or one that is no view."""
        steps: list[ViewStep] = []
        while id(fake) in self._producers and id(fake) not in ends:
            call, item = self._producers[id(fake)]
            node = self._entries[call].node
            if type(node.target) is not OpOverload or not effects(node.target).view:
                break
            sources = [n for n in argument_nodes(node) if type(n.spec) is TensorSpec]
            if len(sources) != 1 or any(n not in sources for n in argument_nodes(node)):
                raise refuse("a result is a view that takes several tensors, or numbers that change")
            args, kwargs = (map_nodes(a, lambda n: VIEWED) for a in (node.args, node.kwargs))
            steps.append(ViewStep(node.target, args, kwargs, item, call))
            if sources[0] not in self._fakes:
                raise refuse("a result is a view of a tensor that is not part of the trace")
            fake = self._fakes[sources[0]]
        return tuple(reversed(steps)), fake

    def owner(self, storage: int) -> FakeTensor:
        """The tensor that owns a storage that several outputs share."""
        for entry in self._entries:
            for fake in fakes_in(entry.out):
                if fake.storage_key == storage:
                    return fake
        raise refuse("results share memory that no operator of the graph allocated")

    @cached_property
    def _producers(self) -> dict[int, tuple[int, int | None]]:
        """By id of a computed fake: the indices of its tape entry and of the result."""
        producers: dict[int, tuple[int, int | None]] = {}
        for call, entry in enumerate(self._entries):
            several = isinstance(entry.out, (list, tuple))
            for i, out in enumerate(entry.out if several else (entry.out,)):
                if type(out) is FakeTensor and not self._inputs.holds(out):
                    producers.setdefault(id(out), (call, i if several else None))
        return producers

    @cached_property
    def _fakes(self) -> dict[Node | None, FakeTensor]:
        """The fake of each node."""
        computed = (f for entry in self._entries for f in fakes_in(entry.out))
        return {f.aten_node: f for f in reversed([*self._inputs, *computed])}
