"""From a joint graph to what a compiled frame calls: the forward, its node in autograd's graph, a backward on demand.

The forward is compiled now, the backward when the first gradient arrives: `_native.Differentiable` then asks for it, once
for each set of tangents that are defined. Results that are views (of inputs, of each other) are taken outside of the node,
where autograd sees them as views (`results`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch

from smelt import _native, events
from smelt.autograd.double_backward import DoubleBackward, double_backward
from smelt.autograd.freed_graph_outputs import mark_freed
from smelt.autograd.joint_overrides import edited_joint
from smelt.autograd.mutation_view_epilogue import EpilogueStep, apply_epilogue, epilogue_steps
from smelt.autograd.partition import Partition, partition
from smelt.autograd.save_costs import NO_HINTS, Hints
from smelt.autograd.undefined_tangents import without_tangents
from smelt.autograd.unsegmented_backward import unsegmented
from smelt.config import Config
from smelt.errors import NeedsFixedSize
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_overrides import edited
from smelt.graph.ir import Graph, TensorSpec, argument_nodes
from smelt.graph.substitute_sizes import at_sizes
from smelt.graph.tensor_specs import at_numbers
from smelt.runtime.fork_locks import BACKWARD, hold_at_fork
from smelt.runtime.gc_pause import collections_postponed
from smelt.shapes.expr import Values
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace_at_sizes import sources_at, traced_at
from smelt.tracing.record.traced import Traced

_lock = hold_at_fork(threading.RLock(), BACKWARD)


T = TypeVar("T")
CompileGraph = Callable[[Graph, frozenset[int]], Compiled]


def compile_joint(
    traced: Traced,
    joint: Joint,
    config: Config,
    compile_graph: CompileGraph,
    eager_fallback: CompileGraph,
    lay_out: Callable[[Partition], Partition] = lambda parts: parts,
    devices: Iterable[torch.device] = (),
) -> Compiled:
    """A callable from a tuple of the graph's inputs to its outputs, which autograd knows as one node.

    Args:
        joint: that of `traced`.
        compile_graph: makes an aten graph (of the forward, later of the backward) callable on a tuple of its inputs; those
            at the positions named are left to it.
        eager_fallback: the same of what cannot be compiled when a backward needs it.
        lay_out: how a device wants what is saved to lie in memory.
        devices: where the graph's tensors are.
    """
    node = _node(traced, joint, config, lay_out, NO_HINTS, devices)
    joint, parts = node.joint, node.parts
    forward = compile_graph(parts.forward, frozenset())

    def compile_backward(undefined: frozenset[int], whole: bool) -> Compiled:
        backward = _backward(joint, parts, undefined, whole)
        return traced.compile_deferred(lambda: compile_graph(*backward), lambda: eager_fallback(*backward))

    return _put_together(traced, node, forward, compile_backward, {})


def joint_by_sizes(
    traced: Traced,
    joint: Joint,
    config: Config,
    prepare: Callable[[Graph, frozenset[int]], T],
    eager_fallback: CompileGraph,
    devices: Iterable[torch.device] = (),
) -> Callable[..., Compiled]:
    """The same for a trace whose sizes have symbols: it is cut once, for the sizes that the trace saw, and its parts are
    prepared once, those of the backward when they are needed. Raises NeedsFixedSize where the forward cannot be prepared.

    Args:
        prepare: what is made of a part for all sizes; the inputs at the positions named are left to it.
        eager_fallback: what runs a backward that fails to be compiled.

    Returns what makes an instance, of numbers, of what makes a prepared part callable for them, and of what compiles a part
    of fixed sizes, for backwards that cannot be prepared; and whether those that can are.
    """
    hints = {s: source.hint for s, source in traced.sizes.items()}
    node = _node(traced, joint, config, lambda parts: parts, hints, devices)
    joint, parts = node.joint, node.parts
    forward = prepare(parts.forward, frozenset())
    backwards: dict[tuple[frozenset[int], bool], T | None] = {}  # None: it cannot be prepared. Needs `_lock`

    def prepared(undefined: frozenset[int], whole: bool) -> T | None:
        key = undefined, whole
        if key not in backwards:
            try:
                backwards[key] = prepare(*_backward(joint, parts, undefined, whole))
            except NeedsFixedSize:
                backwards[key] = None
        return backwards[key]

    def instance(
        values: Values, load: Callable[[T], Compiled], compile_graph: CompileGraph, all_prepared: bool = True
    ) -> Compiled:
        def backward_at(undefined: frozenset[int], whole: bool) -> tuple[Graph, frozenset[int]]:
            given = traced_at(traced, values).joint
            assert given is not None
            fixed = replace(parts, backward=at_sizes(parts.backward, values))
            return _backward(given, fixed, undefined, whole)

        def compiled(undefined: frozenset[int], whole: bool) -> Compiled:
            made = prepared(undefined, whole) if all_prepared else None
            return compile_graph(*backward_at(undefined, whole)) if made is None else load(made)

        def compile_backward(undefined: frozenset[int], whole: bool) -> Compiled:
            return traced.compile_deferred(
                lambda: compiled(undefined, whole), lambda: eager_fallback(*backward_at(undefined, whole))
            )

        return _put_together(traced, node, load(forward), compile_backward, values)

    return instance


def _node(
    traced: Traced,
    captured: Joint,
    config: Config,
    lay_out: Callable[[Partition], Partition],
    hints: Hints,
    devices: Iterable[torch.device],
) -> _Node:
    """The joint graph, or what a user has made of it, cut."""
    joint = edited_joint(captured)
    start = time.perf_counter()
    parts = lay_out(partition(joint, config, hints))
    seconds = time.perf_counter() - start
    events.emit("partition", seconds=seconds, saved=len(parts.saved), joint=joint, parts=parts)
    forward, backward = edited("forward", parts.forward), edited("backward", parts.backward)
    is_own = joint is captured and forward is parts.forward and backward is parts.backward
    parts = replace(parts, forward=forward, backward=backward)
    # What differentiates again runs the torch-level graph, which nobody has edited.
    with_history = double_backward(traced, joint) if is_own else None
    return _Node(joint, parts, _flow(joint, parts), with_history, _gpus(devices))


def _backward(
    joint: Joint, parts: Partition, undefined: frozenset[int], whole: bool
) -> tuple[Graph, frozenset[int]]:
    """The graph where these tangents are undefined, and the inputs that are left to it."""
    graph = unsegmented(parts.backward, joint) if whole else parts.backward
    graph = without_tangents(graph, undefined)
    return graph, parts.donated(graph)


def _put_together(
    traced: Traced,
    node: _Node,
    forward: Compiled,
    compile_backward: Callable[[frozenset[int], bool], Compiled],
    values: Values,
) -> Compiled:
    """`values`: the sizes that it is for, where the trace's have symbols."""
    joint = sources_at(node.joint, values)
    # before the node saves what the forward wrote, with the version that it has then
    forward = traced.counters.preserve_input_counters(forward)
    if joint.tangents:
        forward = node.around(forward, compile_backward, epilogue_steps(joint), values)
    return apply_epilogue(mark_freed(forward, joint.freed), joint, torch.is_grad_enabled())


@dataclass(frozen=True)
class _Node:
    """What nodes of autograd's for a joint graph have in common, whatever their sizes are."""

    joint: Joint
    parts: Partition
    flow: _Flow
    with_history: DoubleBackward | None
    gpus: Sequence[torch.device]

    def around(
        self,
        forward: Compiled,
        compile_backward: Callable[[frozenset[int], bool], Compiled],
        taken: Sequence[EpilogueStep],
        values: Values,
    ) -> Compiled:
        """The node for these sizes. `taken`: how what is taken outside of it is made."""
        joint = self.joint
        with_history = self.with_history and self.with_history.at(values)
        return _native.Differentiable(
            {
                "forward": forward,
                "n_outputs": joint.n_outputs,
                "differentiable": self._differentiable(values),
                "gradients": joint.gradients,
                "leaves": joint.leaves,
                "through": joint.cuts,
                "taken": taken,
                "groups": self._groups,
                "contributors": self.flow.contributors,
                "conflicts": joint.conflicts,
                "saved": self._saved,
                "backward": partial(_compiled_backward, joint, compile_backward),
                "name": "SmeltBackward",
                "lock": _lock,
                "double_backward": with_history,
                "devices": self.gpus if len(self.gpus) > 1 else (),
                "draws": () if with_history is None else with_history.draws,
                "rewritten": () if with_history is None else with_history.rewritten,
                "copied": () if with_history is None else with_history.copied,
            }
        )

    def _differentiable(self, values: Values) -> list[tuple[Any, ...]]:
        """The outputs with tangents, and the layout of these as the backward was recorded."""
        specs = [at_numbers(spec, values) for spec in self._tangents]
        return [(i, s.shape, s.stride, s.dtype) for i, s in zip(self.joint.tangents, specs, strict=True)]

    @cached_property
    def _tangents(self) -> list[TensorSpec]:
        placeholders = self.joint.graph.placeholders[self.joint.n_primals :]
        return [p.spec for p in placeholders[: len(self.joint.tangents)]]

    @cached_property
    def _groups(self) -> list[tuple[list[int], bool]]:
        return _groups(self.joint)

    @cached_property
    def _saved(self) -> list[tuple[str, int, list[int]]]:
        return [(s.kind, s.index, r) for s, r in zip(self.parts.saved, self.flow.readers)]


def _compiled_backward(
    joint: Joint,
    compile_backward: Callable[[frozenset[int], bool], Compiled],
    defined: tuple[bool, ...],
    whole: bool = False,
) -> Compiled:
    undefined = frozenset(k for k, d in enumerate(defined) if not d)
    start = time.perf_counter()
    events.emit("backward-start", joint=joint)
    with collections_postponed():
        made = compile_backward(undefined, whole)
    seconds = time.perf_counter() - start
    events.emit("backward-compiled", seconds=seconds, undefined=len(undefined), joint=joint)
    return made


def _gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    return sorted((d for d in devices if d.type != "cpu"), key=str)


def _groups(joint: Joint) -> list[tuple[list[int], bool]]:
    """The tangents that are computed from together, in the order of computation.

    An output that others are computed from has a group of its own. All others share one, which may do the work of all
    (True): where nobody looks at what flows into the cuts, the backward is one graph. What is taken has nodes of autograd's.
    """
    cuts = _cut_tangents(joint)
    rest = [k for k in joint.tangent_order if k not in cuts]
    own = [k for k in cuts if joint.tangents[k] < joint.n_outputs]
    return [*(([k], False) for k in own), *([(rest, bool(cuts))] if rest else [])]


def _cut_tangents(joint: Joint) -> list[int]:
    return [joint.tangents.index(value) for value in joint.cuts]


@dataclass(frozen=True)
class _Flow:
    """The tangents that contribute to each gradient (of primals, then of cuts), and those whose gradients read each saved
    value. What flows into a cut flows on: it is the tangents of other outputs that contribute what the cut's does."""

    contributors: list[list[int]]
    readers: list[list[int]]


def _flow(joint: Joint, parts: Partition) -> _Flow:
    n, n_gradients = len(joint.tangents), len(joint.gradients) + len(joint.cuts)
    gives: list[set[int]] = []
    reads: list[set[int]] = []
    for k in range(n):
        graph = without_tangents(parts.backward, frozenset(range(n)) - {k})
        gives.append({i for i, g in enumerate(graph.output.args[0]) if g is not None})
        reads.append(_saved_read_by(graph, parts))
    # Of one tangent alone, what it gives is known to be zero; together with another, that is computed.
    together = _saved_read_by(parts.backward, parts).difference(*reads)
    for read in reads:
        read |= together
    cuts = _cut_tangents(joint)
    for k in set(range(n)) - set(cuts):
        for at, cut in reversed(list(enumerate(cuts, len(joint.gradients)))):
            if at in gives[k]:
                gives[k] |= gives[cut]
                reads[k] |= reads[cut]
    for k, output in enumerate(joint.tangents):
        if output >= joint.n_outputs:
            gives[k], reads[k] = set(), set()
    return _Flow(_inverse(gives, n_gradients), _inverse(reads, len(parts.saved)))


def _saved_read_by(graph: Graph, parts: Partition) -> set[int]:
    used = {argument for node in graph for argument in argument_nodes(node)}
    named = {node.name for node in used if node.op == "placeholder"}
    return {i for i, p in enumerate(parts.backward.placeholders[: len(parts.saved)]) if p.name in named}


def _inverse(members: list[set[int]], count: int) -> list[list[int]]:
    """For each i below `count`, which sets have it."""
    return [[k for k, has in enumerate(members) if i in has] for i in range(count)]
