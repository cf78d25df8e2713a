"""Derivatives of derivatives: the torch-level graph runs again under autograd, which then knows how gradients were made.

That needs the graph's inputs, unchanged. The node refers to them weakly, so it costs no memory; who wants a second
derivative with respect to something holds it anyway. Random numbers are drawn again, from the state that the generator had.
Inputs that the graph itself writes (the statistics of a batch norm) are stood in for by others: if a result was computed
from what they held (the vectors of a spectral norm), by copies that the node keeps, where these are small.

An output that others are computed from has a node of its own. There the graph is cut (`_Gate`): gradients of the others
end at that output, as the program holds it, and the history of these gradients goes on through it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from smelt.autograd.save_costs import nbytes
from smelt.graph import graph_passes, torch_settings
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, copy_at, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.graph.torch_settings import TorchSettings
from smelt.shapes.expr import Size, Values, evaluate
from smelt.torch_private import OpOverload
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.torch_level_index import TorchPlace, place_at
from smelt.tracing.fake.memory_aliases import with_bits
from smelt.tracing.functionalize.recorded_writes import base_of
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.traced import Traced

Gradients = Sequence[torch.Tensor | None]
Tensors = tuple[torch.Tensor, ...]
Defined = tuple[torch.Tensor | None, ...]
aten = torch.ops.aten

_MOST_COPIED = 1 << 16  # bytes, at each call


def double_backward(traced: Traced, joint: Joint) -> DoubleBackward | None:
    """What differentiates a graph again, if no large input must be copied for it (`DoubleBackward.at`). None for graphs that
    cannot be run a second time: results have no node at the torch level; other effects; calls of the user's code that would
    see other objects; gradients of inputs that are taken away."""
    opaque = [n.target for n in traced.torch_graph if type(n.target) is OpaqueCall]
    checkpoints = [call for call in opaque if call.is_checkpoint]
    rewritten = tuple(sorted(traced.mutated))
    copied = tuple(sorted(_read(joint) & set(rewritten)))
    effectful = [n for n in traced.aten_graph if graph_passes.has_effect(n)]
    draws = {_drawing(t.device): None for n in effectful if _draws(n) for t in leaves(n.spec, TensorSpec)}
    repeatable = (
        all(_draws(n) or n.target is aten.copy_.default for n in effectful)
        and all(call.repeatable for call in opaque)
        and joint.flags.repeatable
    )
    places = {i: place for i in joint.tangents if (place := joint.torch_places[i]) is not None}
    nodes = {node for place in places.values() for node in (place.node, place.settled)}
    if not repeatable or len(places) < len(joint.tangents) or not nodes <= {*traced.torch_graph}:
        return None
    return DoubleBackward(
        traced.torch_graph,
        tuple(places[i] for i in joint.tangents),
        tuple(places[i] for i in joint.cuts),
        joint.gradients,
        rewritten,
        copied,
        tuple(draws),
        bool(checkpoints),
        torch_settings.read(),
        tuple(nbytes(joint.graph.placeholders[i].spec) for i in copied),
    )


def _draws(node: Node) -> bool:
    """Whether it draws random numbers, with torch's generator, and does nothing else."""
    if type(node.target) is not OpOverload or not effects(node.target).random or effects(node.target).writes:
        return False
    return not leaves((node.args, node.kwargs), torch.Generator)


def _drawing(device: torch.device) -> torch.device:
    """Whose generator is drawn from there. A simulated GPU has none of its own."""
    return device if device.type == "cuda" and torch.cuda.default_generators else torch.device("cpu")


def _read(joint: Joint) -> set[int]:
    """The primals that differentiable outputs are computed from."""
    outputs = joint.graph.output.args[0]
    pending = [outputs[i] for i in joint.tangents if i < joint.n_outputs]
    seen = set(pending)
    while pending:
        for argument in _arguments(pending.pop()):
            if argument not in seen:
                seen.add(argument)
                pending.append(argument)
    return {i for i, primal in enumerate(joint.graph.placeholders[: joint.n_primals]) if primal in seen}


_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_STATISTICS = slice(3, 5)  # the running ones, which it does not read in training


def _arguments(node: Node) -> Iterator[Node]:
    """What a node's values are computed from; of the results of a batch norm in training, the first."""
    if node.target is not _BATCH_NORM or not node.args[5]:
        yield from argument_nodes(node)
        return
    args = list(node.args)
    del args[_STATISTICS]
    yield from leaves(args, Node)


@dataclass(frozen=True)
class DoubleBackward:
    """From the graph's inputs, its outputs that others are computed from (None where gone), the tangents (None where
    undefined), and the states of torch's generators on the devices in `draws` to the gradients, with a history, and then the
    results of this run. Where a formula reads a result (that of `exp`), the node has the history go on through the output
    that the program holds.

    `rewritten`: inputs that the graph writes; of those in `copied` it is given copies from before, of the others the values
    do not matter. The graph is made for its sizes when it first runs.
    """

    graph: Graph
    results: tuple[TorchPlace, ...]  # per tangent
    cuts: tuple[TorchPlace, ...]
    sources: tuple[int, ...]
    rewritten: tuple[int, ...]
    copied: tuple[int, ...]
    draws: tuple[torch.device, ...]
    has_checkpoints: bool
    settings: TorchSettings
    copied_bytes: tuple[Size, ...]
    values: Values = field(default_factory=dict)  # the sizes that it is for, where the graph's have symbols

    def at(self, values: Values) -> DoubleBackward | None:
        """The same for these sizes. None where an input that is copied, as results were computed from what it held and the
        graph writes it, is large."""
        if sum(evaluate(n, values) for n in self.copied_bytes) > _MOST_COPIED:
            return None
        return replace(self, values=values)

    def __call__(
        self,
        primals: Tensors,
        cuts: Defined,
        tangents: Defined,
        states: Defined,
    ) -> Gradients:
        gates = _Gates(cuts)
        with torch.enable_grad():
            asked = list(primals if self.has_checkpoints else map(_unhooked, primals))
            # A checkpoint calls the user's modules, which have parameters of their own and know no views of them.
            if self.has_checkpoints and any(map(_is_hooked, primals)):
                raise RuntimeError(
                    "smelt: a second derivative through a checkpoint, of a tensor with hooks, which would run twice"
                )
            seen = list(asked)
            for i in self.rewritten:
                if i not in self.copied:  # no result was computed from it
                    asked[i] = primals[i].detach().requires_grad_(i in self.sources)
                seen[i] = asked[i].clone()
            with _drawing_from(self.draws, states), self._as_captured():
                results = list(self._forward(gates, *seen))  # type: ignore[arg-type]
            defined = [(result, t) for result, t in zip(results, tangents) if t is not None]
            gradients = torch.autograd.grad(
                [result for result, _ in defined],
                [*(asked[i] for i in self.sources), *(gates.opened[i] for i in range(len(self.cuts)))],
                [tangent for _, tangent in defined],
                create_graph=True,
                allow_unused=True,
            )
            gates.are_open = True
            return (*gradients, *results)

    @functools.cached_property
    def _forward(self) -> GraphFunction:
        if not self.values:
            return GraphFunction(_gated(self.graph, self.results, self.cuts))
        graph, copy_of = copy_at(self.graph, self.values)
        results, cuts = (
            [place_at(place, copy_of) for place in places] for places in (self.results, self.cuts)
        )
        return GraphFunction(_gated(graph, results, cuts))

    @contextmanager
    def _as_captured(self) -> Iterator[None]:
        """Torch's settings are those under which the graph was captured."""
        before = torch_settings.read()
        torch_settings.put(self.settings)
        try:
            yield
        finally:
            torch_settings.put(before)


# --------------------------------------------------------------------------------------------------------- gates


class _Gates:
    """The gates of one run, in the order of `DoubleBackward.cuts`. `cuts` are the real outputs there, None where gone;
    `opened` what the graph goes on with, by position. They let gradients through once `are_open`."""

    def __init__(self, cuts: Defined) -> None:
        self.cuts = cuts
        self.opened: dict[int, torch.Tensor] = {}
        self.are_open = False


class _Gate(torch.autograd.Function):
    """`tensor`, with its history; in the memory of `again`, the same tensor of this run, if that is written later."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gates: _Gates, again: torch.Tensor | None) -> torch.Tensor:
        ctx.gates = gates
        return tensor.view_as(tensor) if again is None else again.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return (gradient if ctx.gates.are_open else None), None, None


def _through_gate(
    gates: _Gates, tensor: torch.Tensor, indices: Sequence[int], written_later: bool, views: Sequence[Any]
) -> tuple[Any, ...]:
    """What the run goes on with in place of `tensor`, and of those of `views` that look at it."""
    again = tensor.detach() if written_later else None
    passed = tensor
    with torch.enable_grad():
        for index in indices:
            real = gates.cuts[index]
            passed = _Gate.apply(passed if real is None else real, gates, again)  # type: ignore[no-untyped-call]
            gates.opened[index] = passed
        return (passed, *(_seen_in(passed, tensor, view) for view in views))


def _seen_in(passed: torch.Tensor, tensor: torch.Tensor, view: Any) -> Any:
    if not isinstance(view, torch.Tensor) or view._base is not tensor or not view.requires_grad:
        return view
    if view.dtype != tensor.dtype:
        return view  # its gradients go past the gate
    offset = view.storage_offset() - tensor.storage_offset() + passed.storage_offset()
    return with_bits(passed.as_strided(view.size(), view.stride(), offset), view)


def _gated(graph: Graph, results: Sequence[TorchPlace], cuts: Sequence[TorchPlace]) -> Graph:
    """`graph` with another input before the others, the `_Gates`, and `results` as its outputs."""
    copy, copy_of = graph_passes.copied(graph.nodes[:-1], graph.constants)
    gates = Node("placeholder", "gates", (), {}, "gates")
    nodes = [gates]
    hidden = {copy_of[place.node]: place for place in (*results, *cuts) if place.by_view}
    tensor_of: dict[Node, Node] = {}  # what the nodes in `hidden` look at
    passed: dict[Node, Node] = {}
    at_place: dict[
        TorchPlace, list[int]
    ] = {}  # an input that is written is a cut, and so is what is copied into it
    for i, place in enumerate(cuts):
        at_place.setdefault(place, []).append(i)
    cut = {copy_of[place.node] for place in cuts}
    last_read = {n: at for at, node in enumerate(copy) for n in argument_nodes(node)}

    def place_of(place: TorchPlace) -> Node:
        node = copy_of[place.node]
        return tensor_of[node] if place.by_view else node

    for at, node in enumerate([*copy]):
        node.args, node.kwargs = (map_nodes(a, lambda n: passed.get(n, n)) for a in (node.args, node.kwargs))
        nodes.append(node)
        if node in hidden:
            tensor_of[node] = Node("call_function", base_of, (node,), {}, f"{node.name}_base", node.spec)
            nodes.append(tensor_of[node])
        for place, indices in at_place.items():
            if copy_of[place.settled] is not node:
                continue
            read = [n for n in copy.nodes[: at + 1] if last_read.get(n, -1) > at or n in cut]
            through = [place_of(place), *(n for n in read if n is not place_of(place))]
            tensor, *views = (passed.get(n, n) for n in through)
            args = (gates, tensor, indices, place.written_later, views)
            gate = Node("call_function", _through_gate, args, {}, f"gate_{indices[0]}")
            nodes.append(gate)
            for k, n in enumerate(through):
                passed[n] = Node("call_function", operator.getitem, (gate, k), {}, f"{gate.name}_{k}", n.spec)
                nodes.append(passed[n])
    given = tuple(place_of(place) for place in results)
    output = Node("output", "output", (given,), {}, "output", tuple(n.spec for n in given))
    copy.level = graph.level
    copy.nodes = [*nodes, output]
    return copy


# -------------------------------------------------------------------------------------------------------- inputs


@contextmanager
def _drawing_from(devices: tuple[torch.device, ...], states: Defined) -> Iterator[None]:
    """torch's generators on `devices` are in `states`, and then in those that they were in."""
    if not devices:
        yield
        return
    with torch.random.fork_rng([d for d in devices if d.type != "cpu"]):
        for device, state in zip(devices, states, strict=True):
            if state is None:
                raise RuntimeError(
                    "smelt: a second derivative of what drew random numbers while it was captured into a CUDA graph"
                )
            if device.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, device)
        yield


def _is_hooked(primal: torch.Tensor) -> bool:
    return isinstance(primal, torch.Tensor) and (bool(primal._backward_hooks) or primal.retains_grad)


def _unhooked(primal: torch.Tensor) -> torch.Tensor:
    """`primal` as a view, whose gradient is asked for in its place: the hooks of `primal` (and what keeps its gradient) run
    once, where the engine that called the node takes that gradient on. What the program finds on a tensor it finds here."""
    if not isinstance(primal, torch.Tensor) or not primal.requires_grad:  # it may be a number
        return primal
    view = primal.view_as(primal)
    vars(view).update(vars(primal))
    if isinstance(primal, torch.nn.Parameter):
        view._is_param = True  # type: ignore[attr-defined]
    return view
