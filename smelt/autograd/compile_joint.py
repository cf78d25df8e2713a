"""A joint graph becomes a callable: the forward, its autograd node, and a backward on demand.

The forward compiles at once, a backward when the first gradient arrives: `_native.Differentiable` then asks for it, once for
each set of tangents that are defined, and for a few sets of gradients that are requested alone (`torch.autograd.grad`).
Results that are views (of inputs, of each other) are taken outside the node, where
autograd sees them as views (`mutation_view_epilogue.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from smelt import _native, events
from smelt.autograd.double_backward import DoubleBackward, double_backward
from smelt.autograd.freed_graph_outputs import mark_freed
from smelt.autograd.gradient_liveness import needed_for
from smelt.autograd.mutation_view_epilogue import EpilogueStep, apply_epilogue, epilogue_steps
from smelt.autograd.node_data import HistoryData, Layout, NodeData, SavedValue, Substitute
from smelt.autograd.partition import Partition, Saved, partition
from smelt.autograd.save_costs import NO_HINTS, Hints
from smelt.autograd.undefined_tangents import without_gradients, without_tangents
from smelt.autograd.unsegmented_backward import Reach, unsegmented
from smelt.config import Config
from smelt.errors import NeedsFixedSize
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_overrides import edited
from smelt.graph.ir import Graph, TensorSpec, argument_nodes
from smelt.recompile_limits import LocalSpecializations
from smelt.runtime.fork_locks import backward_lock
from smelt.runtime.gc_pause import collections_postponed
from smelt.shapes.expr import Sym, Values
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace_at_sizes import sources_at, traced_at
from smelt.tracing.record.traced import Role, Traced

# Compiles a forward or a backward: (graph, indices of donated inputs, its symbols, which one it is) -> the callable for
# concrete sizes.
CompileGraph = Callable[[Graph, frozenset[int], tuple[Sym, ...], Role], Callable[[Values], Compiled]]
RunEagerly = Callable[[Graph, frozenset[int]], Compiled]


@dataclass(frozen=True)
class Part:
    """Which backward: without the tangents `undefined`, as far as `reach` says, and without the gradients `omitted`."""

    undefined: frozenset[int]
    reach: int = Reach.SEGMENT
    omitted: frozenset[int] = frozenset()

    @property
    def role(self) -> Role:
        """The role of its plan, which depends on whether deterministic algorithms are requested now."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        undefined, omitted = tuple(sorted(self.undefined)), tuple(sorted(self.omitted))
        return "backward", undefined, int(self.reach), omitted, deterministic


def compile_joint(
    traced: Traced,
    joint: Joint,
    config: Config,
    compile_graph: CompileGraph,
    run_eagerly: RunEagerly,
    lay_out: Callable[[Partition], Partition] = lambda parts: parts,
    devices: Iterable[torch.device] = (),
    hints: Hints = NO_HINTS,
) -> Callable[..., Compiled]:
    """Cuts a joint graph once and compiles its forward. Raises NeedsFixedSize where no code of the forward is valid for all
    sizes.

    Args:
        joint: the joint graph of `traced`, after the passes.
        compile_graph: compiles the forward, and later backwards.
        run_eagerly: runs a graph of concrete sizes whose compilation fails when a backward needs it.
        lay_out: the layout of saved values that the device prefers.
        devices: the devices of the graph's tensors.
        hints: the symbols of the graph, and the sizes that the cut assumes.

    Returns `at(values, on_load)`: the callable for concrete sizes, from a tuple of the graph's inputs to its outputs, which
    is one node for autograd. `on_load` receives each compiled graph of it, those of backwards when they are compiled.
    """
    node = _node(traced, joint, config, lay_out, hints, devices)
    if traced.on_node is not None:
        traced.on_node(node)
    traced = replace(traced, joint=joint)
    joint, parts = node.joint, node.parts
    symbols = tuple(hints)
    forward = compile_graph(parts.forward, frozenset(), symbols, ("forward",))
    # by part, and whether deterministic algorithms are requested; needs `backward_lock`
    symbolic: dict[tuple[Part, bool], Callable[[Values], Compiled] | None] = {}

    # When a backward compiles, capture can no longer specialize its sizes: without code for all sizes it does so itself.
    specializations = LocalSpecializations(config)

    def symbolic_backward(part: Part) -> Callable[[Values], Compiled] | None:
        """The backward for all sizes; None where there is no code for it."""
        key = part, torch.are_deterministic_algorithms_enabled()
        if key not in symbolic:
            try:
                symbolic[key] = compile_graph(*backward_part(joint, parts, part), symbols, part.role)
            except NeedsFixedSize:
                symbolic[key] = None
        return symbolic[key]

    def backward_at(values: Values, part: Part) -> tuple[Graph, frozenset[int]]:
        if not values:
            return backward_part(joint, parts, part)
        concrete = traced_at(traced, values).joint
        assert concrete is not None
        cut = replace(parts, backward=substitute(parts.backward, values))
        return backward_part(concrete, cut, part)

    def at(values: Values, on_load: Callable[[Compiled], object] = lambda compiled: None) -> Compiled:
        def load(part: Part) -> Compiled:
            loader = symbolic_backward(part) if values else None
            if loader is not None:
                return loader(values)
            graph, donated = backward_at(values, part)
            if values and not specializations.allow_another():
                return run_eagerly(graph, donated)
            return compile_graph(graph, donated, (), part.role)({})

        def compile_backward(part: Part) -> Compiled:
            compiled = traced.compile_deferred(
                lambda: load(part), lambda: run_eagerly(*backward_at(values, part))
            )
            on_load(compiled)
            return compiled

        loaded = forward(values)
        on_load(loaded)
        return _assemble(traced, node, loaded, compile_backward, values)

    return at


def _node(
    traced: Traced,
    captured: Joint,
    config: Config,
    lay_out: Callable[[Partition], Partition],
    hints: Hints,
    devices: Iterable[torch.device],
) -> JointNode:
    """Cuts the joint graph, or the user's edit of it."""
    joint = edited("joint", captured)
    start = time.perf_counter()
    parts = lay_out(partition(joint, config, hints))
    seconds = time.perf_counter() - start
    events.emit("partition", seconds=seconds, saved=len(parts.saved), joint=joint, parts=parts)
    forward, backward = edited("forward", parts.forward), edited("backward", parts.backward)
    is_captured = joint is captured and forward is parts.forward and backward is parts.backward
    parts = replace(parts, forward=forward, backward=backward)
    # Second derivatives run the torch-level graph, which does not have the user's edits.
    with_history = double_backward(traced, joint) if is_captured else None
    return JointNode.of(joint, parts, with_history, _gpus(devices))


def backward_part(joint: Joint, parts: Partition, part: Part) -> tuple[Graph, frozenset[int]]:
    """A part of the backward, and the indices of its donated inputs."""
    graph = _reaching(joint, parts, part.reach)
    graph = without_gradients(without_tangents(graph, part.undefined), part.omitted)
    return graph, parts.donated(graph)


def _reaching(joint: Joint, parts: Partition, reach: int) -> Graph:
    if reach == Reach.SEGMENT:
        return parts.backward
    return unsegmented(parts.backward, joint, _own_groups(joint)[-1] if reach == Reach.TO_LAST else None)


def _assemble(
    traced: Traced,
    node: JointNode,
    forward: Compiled,
    compile_backward: Callable[[Part], Compiled],
    values: Values,
) -> Compiled:
    """The callable for the sizes `values`: the forward in its autograd node, then the mutation and view epilogue."""
    joint = sources_at(node.joint, values)
    # Inside the node, which saves what the forward wrote with its version at that time.
    forward = traced.counters.preserve_input_counters(forward)
    if joint.tangents:
        forward = node.around(forward, compile_backward, epilogue_steps(joint), values)
    return apply_epilogue(mark_freed(forward, joint.freed), joint, torch.is_grad_enabled())


@dataclass(frozen=True)
class JointNode:
    """What the autograd nodes of a joint graph have in common for all sizes."""

    joint: Joint
    parts: Partition
    flow: _Flow
    with_history: DoubleBackward | None
    gpus: Sequence[torch.device]

    @classmethod
    def of(
        cls,
        joint: Joint,
        parts: Partition,
        with_history: DoubleBackward | None = None,
        gpus: Sequence[torch.device] = (),
    ) -> JointNode:
        """The node of a joint graph that is cut into `parts`."""
        return cls(joint, parts, _flow(joint, parts), with_history, gpus)

    def around(
        self,
        forward: Compiled,
        compile_backward: Callable[[Part], Compiled],
        taken: Sequence[EpilogueStep],
        values: Values,
    ) -> Compiled:
        """The node for these sizes. `taken`: the steps that compute views and mutated inputs outside the node."""
        with_history = self.with_history and self.with_history.at(values)
        spec: Any = {
            **self.data.spec(values),
            **({} if with_history is None else self._history.spec(values)),
            "devices": self.devices,
            "conditions": self.joint.conditions,
            "forward": forward,
            "taken": taken,
            "backward": partial(_compiled_backward, self.joint, compile_backward),
            "name": "SmeltBackward",
            "lock": backward_lock,
            "double_backward": with_history,
            "substitute": lambda index, requested: self.substitutes[index].at(values, requested),
        }
        return _native.Differentiable(spec)

    @cached_property
    def data(self) -> NodeData:
        """The data that the graph's autograd nodes share."""
        joint = self.joint
        tangents = zip(joint.tangents, map(_layout, self._tangent_specs), strict=True)
        return NodeData(
            joint.n_outputs,
            tuple((i, layout) for i, layout in tangents if layout is not None),
            tuple(joint.gradients),
            joint.leaves,
            tuple(joint.cuts),
            tuple((tuple(tangents), whole, at_last) for tangents, whole, at_last in self._groups),
            _tuples(self.flow.contributors),
            _tuples(self.flow.direct),
            _tuples(joint.conflicts),
            tuple(
                SavedValue(
                    *self._kind_and_index(s),
                    tuple(readers),
                    _layout(s.spec) if s.kind == "primal" else None,
                    s.is_recomputed_from,
                    s.data,
                )
                for s, readers in zip(self.parts.saved, self._readers)
            ),
        )

    def _kind_and_index(self, saved: Saved) -> tuple[str, int]:
        """The kind and the index of a saved value for the node, to which flags are the first temporaries."""
        joint = self.joint
        if saved.kind == "temporary":
            return saved.kind, joint.n_flags + saved.index
        is_flag = saved.kind == "output" and saved.index >= joint.n_outputs
        return ("temporary", saved.index - joint.n_outputs) if is_flag else (saved.kind, saved.index)

    @property
    def history(self) -> HistoryData | None:
        """The data for gradients with a history; None if such gradients are impossible."""
        return None if self.with_history is None else self._history

    @cached_property
    def _history(self) -> HistoryData:
        found = self.with_history
        assert found is not None
        primals = self.joint.graph.placeholders[: self.joint.n_primals]
        layouts = tuple(_layout(p.spec) for p in primals)
        return HistoryData(layouts, found.draws, found.rewritten, found.copied, found.copied_bytes)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The GPUs of the graph, if there are several."""
        return tuple(self.gpus) if len(self.gpus) > 1 else ()

    @cached_property
    def reaches(self) -> list[Graph]:
        """The backward by `Reach`, before tangents and gradients are removed."""
        n = len(Reach) if self.joint.cuts else 1
        return [_reaching(self.joint, self.parts, Reach(reach)) for reach in range(n)]

    @cached_property
    def _tangent_specs(self) -> list[TensorSpec]:
        placeholders = self.joint.graph.placeholders[self.joint.n_primals :]
        return [p.spec for p in placeholders[: len(self.joint.tangents)]]

    @property
    def _groups(self) -> list[tuple[list[int], bool, bool]]:
        """Groups of tangents with one backward each, in the order of computation: `(tangents, whole, ends_at_last)`.

        An output that others are computed from has a group of its own. All others share one. Views and mutated inputs have
        autograd nodes of their own, and no group. A `whole` group may do the work of the groups before it: if no hook reads
        the gradients of the cuts, the backward is one graph. If the last cut gets gradients from elsewhere as well (a loss
        of the model's loss and its logits), it is two: one ends at this cut, and one begins there.
        """
        joint = self.joint
        cuts, own = _cut_tangents(joint), _own_groups(joint)
        rest = [k for k in joint.tangent_order if k not in cuts]
        groups = [([k], k == own[-1] and len(cuts) > 1, False) for k in own]
        return [*groups, *([(rest, bool(cuts), bool(own))] if rest else [])]

    @property
    def _readers(self) -> list[list[int]]:
        """For each saved value the tangents whose gradients read it. The gradients that read an alias of a primal count as
        readers of the primal, from which the alias may follow."""
        readers = [{*read} for read in self.flow.readers]
        primals: dict[int, set[int]] = {}
        for s, read in zip(self.parts.saved, readers):
            if s.kind == "primal":
                primals.setdefault(s.index, read)
            elif s.kind == "alias":
                primals.get(s.index, read).update(read)
        return [sorted(read) for read in readers]

    @cached_property
    def substitutes(self) -> tuple[Substitute, ...]:
        """What stands for each saved value where no requested gradient needs it."""
        needed = needed_for(self.parts.backward, len(self.parts.saved))
        return tuple(
            Substitute(n, _layout(s.spec), s.spec.offset, s.spec.device)
            if isinstance(s.spec, TensorSpec)
            else Substitute(n, None, 0, None)
            for n, s in zip(needed, self.parts.saved)
        )


def _layout(spec: object) -> Layout | None:
    """The layout of a tensor; None of a number."""
    return Layout(spec.shape, spec.stride, spec.dtype) if isinstance(spec, TensorSpec) else None


def _tuples(lists: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, lists))


def _compiled_backward(
    joint: Joint,
    compile_backward: Callable[[Part], Compiled],
    defined: tuple[bool, ...],
    reach: int = Reach.SEGMENT,
    requested: tuple[bool, ...] = (),
) -> Compiled:
    """The backward for these defined tangents and requested gradients (empty: all)."""
    part = Part(_where_not(defined), reach, _where_not(requested))
    with events.compiling("a backward"):
        start = time.perf_counter()
        events.emit("backward-start", joint=joint)
        with collections_postponed():
            compiled = compile_backward(part)
        seconds = time.perf_counter() - start
        events.emit("backward-compiled", seconds=seconds, undefined=len(part.undefined), joint=joint)
    return compiled


def _where_not(flags: Iterable[bool]) -> frozenset[int]:
    return frozenset(i for i, flag in enumerate(flags) if not flag)


def _gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    return sorted((d for d in devices if d.type != "cpu"), key=str)


def _own_groups(joint: Joint) -> list[int]:
    return [k for k in _cut_tangents(joint) if joint.tangents[k] < joint.n_outputs]


def _cut_tangents(joint: Joint) -> list[int]:
    return [joint.tangents.index(value) for value in joint.cuts]


@dataclass(frozen=True)
class _Flow:
    """The tangents that contribute to each gradient (of primals, then of cuts), and the tangents whose gradients read each
    saved value. A gradient that flows into a cut flows on, so a tangent that contributes to the cut's gradient contributes
    to all gradients that the cut's tangent contributes to; `direct`: without those."""

    contributors: list[list[int]]
    direct: list[list[int]]
    readers: list[list[int]]


def _flow(joint: Joint, parts: Partition) -> _Flow:
    n, n_gradients = len(joint.tangents), len(joint.gradients) + len(joint.cuts)
    gives: list[set[int]] = []
    reads: list[set[int]] = []
    for k in range(n):
        graph = without_tangents(parts.backward, frozenset(range(n)) - {k})
        gives.append({i for i, g in enumerate(graph.output.args[0]) if g is not None})
        reads.append(_saved_read_by(graph, parts))
    # A gradient that is zero by itself for one tangent may be computed for two.
    saved_with_others = _saved_read_by(parts.backward, parts).difference(*reads)
    for read in reads:
        read |= saved_with_others
    direct = _inverse(gives, n_gradients)
    cuts = _cut_tangents(joint)
    for k in {*range(n)} - {*cuts} | {*_own_groups(joint)[-1:]}:
        for at, cut in reversed(list(enumerate(cuts, len(joint.gradients)))):
            if at in gives[k]:
                gives[k] |= gives[cut]
                reads[k] |= reads[cut]
    for k, output in enumerate(joint.tangents):
        if output >= joint.n_outputs:
            gives[k], reads[k] = set(), set()
    return _Flow(_inverse(gives, n_gradients), direct, _inverse(reads, len(parts.saved)))


def _saved_read_by(graph: Graph, parts: Partition) -> set[int]:
    used = {argument for node in graph for argument in argument_nodes(node)}
    named = {node.name for node in used if node.op == "placeholder"}
    return {i for i, p in enumerate(parts.backward.placeholders[: len(parts.saved)]) if p.name in named}


def _inverse(members: list[set[int]], count: int) -> list[list[int]]:
    """For each i below `count`, the indices of the sets that contain it."""
    return [[k for k, has in enumerate(members) if i in has] for i in range(count)]
