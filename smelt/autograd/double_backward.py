"""Second derivatives: the torch-level graph is replayed under autograd, which then records how gradients are computed.

The replay needs the graph's inputs, unchanged. The autograd node has weak references to them, so it costs no memory; a
caller that wants a second derivative with respect to a tensor holds it anyway. Random numbers are drawn again from the
saved state of the generator. Inputs that the graph itself writes (the statistics of a batch norm) are replaced by
others: if a result was computed from their former values (the vectors of a spectral norm), by copies that the node
holds, where these are small.

An output that others are computed from has an autograd node of its own. There the graph is cut (`_Gate`): gradients of
the others end at that output, as the program holds it, and the history of these gradients continues through it.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.autograd.graph import Node as AutogradNode
from torch.autograd.graph import get_gradient_edge

from smelt.autograd.node_data import may_copy
from smelt.autograd.save_costs import nbytes
from smelt.graph import graph_passes, torch_settings
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, copy_at, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.graph.torch_settings import TorchSettings
from smelt.ops.registry import row
from smelt.shapes.expr import Size, Values
from smelt.torch_private import OpOverload
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.torch_level_index import TorchLevelTensor, in_copied_graph
from smelt.tracing.fake.memory_aliases import with_conj_neg_bits
from smelt.tracing.functionalize.recorded_writes import base_of
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.traced import Traced

Gradients = Sequence[torch.Tensor | None]
Tensors = tuple[torch.Tensor, ...]
Defined = tuple[torch.Tensor | None, ...]

_LONGEST_HISTORY = 256  # nodes to look at, at each call


def double_backward(traced: Traced, joint: Joint) -> DoubleBackward | None:
    """The double backward of a graph, unless it must copy large inputs (`DoubleBackward.at`). None for graphs that
    cannot be replayed: results without a torch-level node; other effects; calls of user code that would see other
    objects; gradients of inputs that are removed."""
    opaque = [n.target for n in traced.torch_graph if type(n.target) is OpaqueCall]
    checkpoints = [call for call in opaque if call.is_checkpoint]
    rewritten = tuple(sorted(traced.mutated))
    copied = tuple(sorted(_primals_read(joint) & set(rewritten)))
    effectful = [n for n in traced.aten_graph if graph_passes.has_effect(n)]
    draws = {
        _generator_device(t.device): None for n in effectful if _draws(n) for t in leaves(n.spec, TensorSpec)
    }
    repeatable = (
        all(_draws(n) or n.target is WRITE_INPUT for n in effectful)
        and all(call.repeatable for call in opaque)
        and joint.flags.repeatable
    )
    known = joint.torch_level_tensors
    tensors = {i: tensor for i in joint.tangents if known and (tensor := known[i]) is not None}
    nodes = {node for tensor in tensors.values() for node in (tensor.node, tensor.history_node)}
    if not repeatable or len(tensors) < len(joint.tangents) or not nodes <= {*traced.torch_graph}:
        return None
    return DoubleBackward(
        traced.torch_graph,
        tuple(tensors[i] for i in joint.tangents),
        tuple(tensors[i] for i in joint.cuts),
        joint.gradients,
        rewritten,
        copied,
        tuple(draws),
        bool(checkpoints),
        torch_settings.read(),
        tuple(nbytes(joint.graph.placeholders[i].spec) for i in copied),
    )


def _draws(node: Node) -> bool:
    """Whether the node only draws random numbers with torch's generator."""
    if type(node.target) is not OpOverload or not effects(node.target).random or effects(node.target).writes:
        return False
    return not leaves((node.args, node.kwargs), torch.Generator)


def _generator_device(device: torch.device) -> torch.device:
    """The device of the generator that `device` draws from. A simulated GPU has none of its own."""
    return device if device.type == "cuda" and torch.cuda.default_generators else torch.device("cpu")


def _primals_read(joint: Joint) -> set[int]:
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


def _arguments(node: Node) -> Iterable[Node]:
    """The nodes that a node's values are computed from; of several results, the first one."""
    unread = row(node.target).unread
    if unread is None:
        return argument_nodes(node)
    positions = unread(*node.args)
    return leaves([a for i, a in enumerate(node.args) if i not in positions], Node)


@dataclass(frozen=True)
class DoubleBackward:
    """Maps the graph's inputs, the outputs that others are computed from (None if dead), the tangents (None if
    undefined), and the states of torch's generators on the devices in `draws` to the gradients, with a history,
    followed by the results of the replay. Where a formula reads a result (that of `exp`), the autograd node continues
    the history through the output that the program holds.

    `rewritten`: inputs that the graph writes. Those in `copied` are passed as copies from before the write; the values
    of the others do not matter. The graph is specialized to its sizes on the first run.
    """

    graph: Graph
    results: tuple[TorchLevelTensor, ...]  # per tangent
    cuts: tuple[TorchLevelTensor, ...]
    sources: tuple[int, ...]
    rewritten: tuple[int, ...]
    copied: tuple[int, ...]
    draws: tuple[torch.device, ...]
    has_checkpoints: bool
    settings: TorchSettings
    copied_bytes: tuple[Size, ...]
    values: Values = field(default_factory=dict)  # concrete sizes, where the graph has symbols

    def at(self, values: Values) -> DoubleBackward | None:
        """The double backward for these sizes. None where the inputs to copy are large."""
        if not may_copy(self.copied_bytes, values):
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
            sources = list(primals) if self.has_checkpoints else _ends(primals, cuts)
            read = tuple(sources)
            # A checkpoint calls the user's modules, which use their parameters, not views of them.
            if self.has_checkpoints and any(map(_is_hooked, primals)):
                raise RuntimeError(
                    "smelt: a second derivative through a checkpoint, of a tensor with hooks, which would run twice"
                )
            if self.has_checkpoints and _depend_on_another(primals):
                raise RuntimeError(
                    "smelt: a second derivative through a checkpoint, of an input that another input is computed from"
                )
            arguments = list(sources)
            for i in self.rewritten:
                if i not in self.copied:  # no result was computed from it
                    sources[i] = primals[i].detach().requires_grad_(i in self.sources)
                arguments[i] = sources[i].clone()
            with _generators_in(self.draws, states), self._as_captured():
                results = list(self._forward(gates, *arguments))  # type: ignore[arg-type]
            defined = [(result, t) for result, t in zip(results, tangents) if t is not None]
            gradients = torch.autograd.grad(
                [result for result, _ in defined],
                [*(sources[i] for i in self.sources), *(gates.opened[i] for i in range(len(self.cuts)))],
                [tangent for _, tangent in defined],
                create_graph=True,
                allow_unused=True,
            )
            gates.are_open = True
            _forbid_set_data(gradients, primals, read, (*primals, *cuts, *tangents))
            return (*gradients, *results)

    @functools.cached_property
    def _forward(self) -> GraphFunction:
        if not self.values:
            return GraphFunction(_gated(self.graph, self.results, self.cuts))
        graph, copy_of = copy_at(self.graph, self.values)
        results, cuts = (
            [in_copied_graph(tensor, copy_of) for tensor in tensors] for tensors in (self.results, self.cuts)
        )
        return GraphFunction(_gated(graph, results, cuts))

    @contextmanager
    def _as_captured(self) -> Iterator[None]:
        """Context with the torch settings under which the graph was captured."""
        before = torch_settings.read()
        torch_settings.put(self.settings)
        try:
            yield
        finally:
            torch_settings.put(before)


# --------------------------------------------------------------------------------------------------------- gates


class _Gates:
    """The gates of one replay, in the order of `DoubleBackward.cuts`. `cuts`: the real outputs, None if dead;
    `opened`: the tensors that the graph continues with, by position. Gradients pass once `are_open`."""

    def __init__(self, cuts: Defined) -> None:
        self.cuts = cuts
        self.opened: dict[int, torch.Tensor] = {}
        self.are_open = False


class _Gate(torch.autograd.Function):
    """`tensor` with its history; in the memory of `replayed`, its counterpart in the replay, if that is written
    later."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gates: _Gates, replayed: torch.Tensor | None) -> torch.Tensor:
        ctx.gates = gates
        return tensor.view_as(tensor) if replayed is None else replayed.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return (gradient if ctx.gates.are_open else None), None, None


def _through_gate(
    gates: _Gates, tensor: torch.Tensor, indices: Sequence[int], written_later: bool, views: Sequence[Any]
) -> tuple[Any, ...]:
    """The tensors that the replay continues with: `tensor` after its gates, and `views`, those of `tensor` re-derived
    from the result."""
    replayed = tensor.detach() if written_later else None
    passed = tensor
    with torch.enable_grad():
        for index in indices:
            real = gates.cuts[index]
            passed = _Gate.apply(passed if real is None else real, gates, replayed)  # type: ignore[no-untyped-call]
            gates.opened[index] = passed
        return (passed, *(_view_of_gated(passed, tensor, view) for view in views))


def _view_of_gated(passed: torch.Tensor, tensor: torch.Tensor, view: Any) -> Any:
    if not isinstance(view, torch.Tensor) or view._base is not tensor or not view.requires_grad:
        return view
    if view.dtype != tensor.dtype:
        return view  # its gradients bypass the gate
    offset = view.storage_offset() - tensor.storage_offset() + passed.storage_offset()
    return with_conj_neg_bits(passed.as_strided(view.size(), view.stride(), offset), view)


def _gated(graph: Graph, results: Sequence[TorchLevelTensor], cuts: Sequence[TorchLevelTensor]) -> Graph:
    """`graph` with the `_Gates` as a first input and `results` as its outputs."""
    copy, copy_of = graph_passes.copied(graph.nodes[:-1], graph.constants)
    gates = Node("placeholder", "gates", (), {}, "gates")
    nodes = [gates]
    hidden = {copy_of[tensor.node]: tensor for tensor in (*results, *cuts) if tensor.by_view}
    hidden_base: dict[Node, Node] = {}  # node in `hidden` -> its base
    passed: dict[Node, Node] = {}
    # a written input is a cut, and so is the value copied into it
    cut_indices: dict[TorchLevelTensor, list[int]] = {}
    for i, tensor in enumerate(cuts):
        cut_indices.setdefault(tensor, []).append(i)
    cut = {copy_of[tensor.node] for tensor in cuts}
    last_read = {n: position for position, node in enumerate(copy) for n in argument_nodes(node)}

    def node_of(tensor: TorchLevelTensor) -> Node:
        node = copy_of[tensor.node]
        return hidden_base[node] if tensor.by_view else node

    for position, node in enumerate([*copy]):
        node.args, node.kwargs = (map_nodes(a, lambda n: passed.get(n, n)) for a in (node.args, node.kwargs))
        nodes.append(node)
        if node in hidden:
            hidden_base[node] = Node("call_function", base_of, (node,), {}, f"{node.name}_base", node.spec)
            nodes.append(hidden_base[node])
        for tensor, indices in cut_indices.items():
            if copy_of[tensor.history_node] is not node:
                continue
            read = [n for n in copy.nodes[: position + 1] if last_read.get(n, -1) > position or n in cut]
            through = [node_of(tensor), *(n for n in read if n is not node_of(tensor))]
            first, *views = (passed.get(n, n) for n in through)
            args = (gates, first, indices, tensor.written_later, views)
            gate = Node("call_function", _through_gate, args, {}, f"gate_{indices[0]}")
            nodes.append(gate)
            for k, n in enumerate(through):
                passed[n] = Node("call_function", operator.getitem, (gate, k), {}, f"{gate.name}_{k}", n.spec)
                nodes.append(passed[n])
    returned = tuple(map(node_of, results))
    output = Node("output", "output", (returned,), {}, "output", tuple(n.spec for n in returned))
    copy.level = graph.level
    copy.nodes = [*nodes, output]
    return copy


# -------------------------------------------------------------------------------------------------------- inputs


@contextmanager
def _generators_in(devices: tuple[torch.device, ...], states: Defined) -> Iterator[None]:
    """Context with torch's generators on `devices` in `states`; their own states are restored afterwards."""
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


def _ends(primals: Tensors, cuts: Defined) -> list[torch.Tensor]:
    """What the replay reads: the primals, or views in their place, where gradients must end. Leaves are read themselves:
    the program may assign their data before the second derivative, and eager's formulas read the new data. Not so
    leaves whose hooks would see the gradient, or that another input or a cut is computed from."""
    tensors = [t for t in (*primals, *cuts) if isinstance(t, torch.Tensor) and t.requires_grad]
    times = Counter(map(id, tensors))
    leaves = {id(t): t for t in tensors if t.is_leaf and times[id(t)] == 1 and not _is_hooked(t)}
    others = [node for t in tensors if not t.is_leaf and (node := _node_of(t)) is not None]
    if leaves and others:
        history = [*islice(_history(others), _LONGEST_HISTORY)]
        if len(history) == _LONGEST_HISTORY:
            leaves = {}
        read_as_views = {None, *history}
        leaves = {i: t for i, t in leaves.items() if _node_of(t) not in read_as_views}
    return [p if id(p) in leaves else _unhooked(p) for p in primals]


def _node_of(tensor: torch.Tensor) -> AutogradNode | None:
    """The node that the gradient of `tensor` flows into. None for a view of a tensor with a history that was created in
    no-grad mode: torch calls it a leaf and finds no node."""
    try:
        return get_gradient_edge(tensor).node
    except AssertionError:
        return None


def _history(nodes: Iterable[AutogradNode]) -> Iterator[AutogradNode]:
    """The nodes that gradients flow into from `nodes`."""
    pending = [into for node in nodes for into, _ in node.next_functions]
    seen: set[AutogradNode] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            pending += [into for into, _ in node.next_functions]


def _depend_on_another(primals: Tensors) -> bool:
    """Whether gradients of one primal flow into another one: it is computed from it, or is the same tensor."""
    tensors = [p for p in primals if isinstance(p, torch.Tensor) and p.requires_grad]
    nodes = {node for t in tensors if (node := _node_of(t)) is not None}
    if not nodes.isdisjoint(_history(nodes)):
        return True
    return len({id(t) for t in tensors}) < len(tensors)


def _unhooked(primal: torch.Tensor) -> torch.Tensor:
    """`primal` as a view, whose gradient is computed in its place: the hooks of `primal` (and its retained gradient)
    run once, in the engine that called the node. Attributes of the tensor are copied to the view."""
    if not isinstance(primal, torch.Tensor) or not primal.requires_grad:  # it may be a number
        return primal
    view = primal.view_as(primal)
    vars(view).update(vars(primal))
    if isinstance(primal, torch.nn.Parameter):
        view._is_param = True  # type: ignore[attr-defined]
    return view


def _forbid_set_data(
    gradients: Gradients, primals: Tensors, sources: Sequence[torch.Tensor], ends: Defined
) -> None:
    """Raise where `gradients` are differentiated after the data of a primal was set that was read as a view, which has the
    old memory. `ends`: tensors of the program, whose nodes it may differentiate."""
    views = [(p, view) for p, view in zip(primals, sources) if view is not p and p.layout is torch.strided]
    if not views:
        return

    def check(_: object) -> None:
        if not all(p.is_set_to(view) for p, view in views):
            raise RuntimeError(
                "smelt: the data of a tensor with a history or hooks was set between two derivatives; set it before the "
                "first one, or use smelt.disable on what is differentiated"
            )

    programs = {t.grad_fn for t in ends if isinstance(t, torch.Tensor)}  # a primal may be a number
    for node in {g.grad_fn for g in gradients if g is not None} - programs:
        if node is not None:
            node.register_prehook(check)
