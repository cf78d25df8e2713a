"""Recording of a backward: autograd computes gradients on fakes after the recorded forward."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import Node
from smelt.graph.sample_sizes import syms_of
from smelt.graph.tensor_specs import empty_like_spec
from smelt.ops.symbolic_results import results
from smelt.ops.symbolic_rules import EMPTY_LIKE
from smelt.torch_private import DisableTorchDispatch, run_engine
from smelt.tracing.backward.autograd_graph import computation_order, reachable_edges
from smelt.tracing.backward.backward_rules import replace_backwards
from smelt.tracing.backward.freed_graphs import freed_values
from smelt.tracing.backward.grad_flags import GradFlags, all_requiring_grad
from smelt.tracing.backward.joint import RecordedBackward
from smelt.tracing.backward.not_differentiable import NotDifferentiable, refuse
from smelt.tracing.backward.shared_saves import saved_inputs, saved_outputs, shared_saves
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in, wrap
from smelt.tracing.record.current_call import backward_node
from smelt.tracing.record.recorded_results import fresh_fake
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.trace_outputs import (
    EpilogueTensor,
    OutputSource,
    epilogue_tensors,
    is_no_grad_view,
    output_sources,
)
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.symbolic_fake_results import spec_of_fake


def record_backward(parts: TraceParts, outputs: Sequence[FakeTensor]) -> RecordedBackward:
    """Record the gradients of `outputs` after the forward. The trace must still be entered. Raises
    NotDifferentiable."""
    try:
        return _record(parts, outputs)
    except Unsupported:
        raise
    except RuntimeError as error:  # autograd's error for a view that it has invalidated
        _check_fixed(parts, error)
        raise refuse(str(error)) from error


def _check_fixed(parts: TraceParts, error: Exception) -> None:
    """Raise NeedsFixedSize where the trace has symbolic sizes: C++ code may raise because of them alone."""
    if parts.numbers.sizes:
        raise NeedsFixedSize(
            f"a backward raises {str(error).partition(chr(10))[0]}", parts.numbers.sizes
        ) from error


_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)


def _record(parts: TraceParts, outputs: Sequence[FakeTensor]) -> RecordedBackward:
    _check_differentiable(parts, outputs)
    inputs, autograd, tape = parts.inputs, parts.autograd, parts.tape
    flags = GradFlags.of(autograd, inputs)
    written = tuple(f for f in inputs if f.grad_fn is not inputs.first_history.get(id(f)))
    values, results, epilogue, candidates = _joint_outputs(parts, outputs, written)
    parts.wrapper_gradients.check_results([v.grad_fn for v in candidates if v.grad_fn is not None])
    freed = freed_values(values, inputs, inputs.first_history) if autograd.differentiated else ()
    if any(s.value >= len(values) - len(written) for s in freed):
        raise refuse("an input is written with a gradient whose graph is freed")
    if freed and epilogue:
        raise refuse("a view of results whose graph is freed, which others are computed from")
    freed_indices = {s.value for s in freed}
    with_tangent = tuple(i for i, v in enumerate(candidates) if v.requires_grad and i not in freed_indices)
    sources = tuple(f for i, f in enumerate(inputs) if id(f) in inputs.first_history or i in flags.enabled)
    tangents = tuple(_tangent(inputs, candidates[i]) for i in with_tangent)
    for k, tangent in enumerate(tangents):
        parts.backward.add_tangent(tangent, f"tangents_{k + 1}")
    start = len(tape.entries), len(tape.aten.graph.nodes)
    cuts, roots = _cuts_and_roots(inputs, candidates, len(values), with_tangent)
    tangent_order = _in_computation_order(inputs, candidates, with_tangent)
    nodes = [candidates[i].grad_fn for i in with_tangent]
    outside = inputs.first_history.values()
    saved = (
        saved_inputs(nodes, outside, inputs),
        saved_outputs(nodes, outside, values),
    )  # the engine frees them
    gradients: Sequence[Any] = [None] * (len(sources) + len(cuts))
    if tangents and sources:
        arrived: list[int] = []
        with _recording_arrival(sources, arrived):
            gradients = _run_engine(
                parts, candidates, roots, dict(zip(with_tangent, tangents)), sources, cuts
            )
        order = _arrival_order(sources, arrived)
        sources = tuple(sources[i] for i in order)
        gradients = [*(gradients[i] for i in order), *gradients[len(sources) :]]
    sources, gradients = _without_wrappers(parts, sources, gradients, [candidates[i] for i in with_tangent])
    if any(g is not None and type(g) is not FakeTensor for g in gradients):
        raise refuse("a gradient is not a tensor of the trace")
    calls = () if autograd.custom is None else tuple(autograd.custom.called)
    reads_saved = () if autograd.custom is None else autograd.custom.reads_saved
    cut_edges = {(candidates[i].grad_fn, candidates[i].output_nr) for i in cuts}
    conflicts = shared_saves(nodes, outside, reads_saved, cut_edges)
    return RecordedBackward(
        values,
        results,
        written,
        tangents,
        with_tangent,
        sources,
        tuple(gradients),
        cuts,
        start,
        flags,
        calls,
        conflicts,
        *saved,
        freed,
        epilogue,
        candidates[len(values) :],
        tuple(with_tangent.index(i) for i in tangent_order),
    )


def _without_wrappers(
    parts: TraceParts,
    sources: tuple[FakeTensor, ...],
    gradients: Sequence[Any],
    results: Sequence[FakeTensor],
) -> tuple[tuple[FakeTensor, ...], Sequence[Any]]:
    """`sources` and `gradients` with gradient inputs in place of plain tensors whose gradient is a wrapper. Raises
    NotDifferentiable if several results are computed from one: the gradient may be plain for some of them."""
    wrappers, found = parts.wrapper_gradients, list(zip(sources, gradients))
    if all(g is None or type(g) is FakeTensor for _, g in found):
        return sources, gradients
    if parts.autograd.flag_calls:  # the gradient inputs exist before the flags are set
        raise refuse("`requires_grad` is set, and the gradient of a tensor is a wrapper subclass")
    pairs: list[tuple[FakeTensor, Any]] = []
    for source, gradient in found:
        is_wrapper = id(gradient) in parts.call.wrappers
        if is_wrapper and wrappers.count_results(_computed_from(parts.inputs, source, results)) > 1:
            raise refuse("several results of a tensor whose gradient is a wrapper subclass")
        pairs += wrappers.enter_plain(source, gradient) if is_wrapper else [(source, gradient)]
    return tuple(source for source, _ in pairs), [*(g for _, g in pairs), *gradients[len(sources) :]]


def _computed_from(inputs: Inputs, source: FakeTensor, results: Sequence[FakeTensor]) -> list[FakeTensor]:
    """The results from which autograd's graph leads to an input."""
    history = inputs.first_history.get(id(source))

    def leads_there(node: Any) -> bool:
        return getattr(node, "variable", None) is source if history is None else node is history

    return [
        r
        for r in results
        if any(map(leads_there, (r.grad_fn, *(n for n, _ in reachable_edges([r.grad_fn])))))
    ]


def _joint_outputs(
    parts: TraceParts, outputs: Sequence[FakeTensor], written: Sequence[FakeTensor]
) -> tuple[
    tuple[FakeTensor, ...], tuple[OutputSource, ...], tuple[EpilogueTensor, ...], tuple[FakeTensor, ...]
]:
    """The values of the joint graph, with the inputs `written` last; the sources of the outputs; the epilogue; and all
    candidates for a tangent: the values, then the epilogue's fakes. Raises NotDifferentiable."""
    inputs, tape = parts.inputs, parts.tape
    values, results, _ = output_sources(tape, inputs, outputs)
    fakes = epilogue_tensors(parts.autograd, tape, inputs, outputs, values, written)
    views: tuple[OutputSource, ...] = ()
    if fakes:
        values, results, views = output_sources(tape, inputs, outputs, fakes)
    first = len(values)
    written_value = {id(f): first + i for i, f in enumerate(written)}
    values = (*values, *written)
    nodes = [f.grad_fn for f in fakes]
    epilogue = tuple(
        EpilogueTensor(s, nodes.index(f.grad_fn), written_value.get(id(f))) for f, s in zip(fakes, views)
    )
    return values, results, epilogue, (*values, *fakes)


def _run_engine(
    parts: TraceParts,
    candidates: Sequence[FakeTensor],
    roots: Collection[int],
    tangents: Mapping[int, FakeTensor],
    sources: Sequence[FakeTensor],
    cuts: Sequence[int],
) -> list[Any]:
    """Have autograd compute gradients from `roots` on, which the trace records: of the sources, then of the cuts."""
    # a user's backward may raise any exception
    is_torch_s = parts.autograd.custom is None and not parts.wrapper_gradients.is_used
    errors = _ERRORS if is_torch_s else (Exception,)
    inflow: dict[int, Any] = dict.fromkeys(cuts)
    backwards = _backward_nodes(parts)
    with (
        parts.backward.recording(backwards),
        replace_backwards(backwards),
        _cut_at(candidates, {i: t for i, t in tangents.items() if i not in roots}, inflow),
        all_requiring_grad(sources),
    ):
        try:
            # What `torch.autograd.grad` calls, which would import sympy for symbolic sizes.
            gradients = parts.backward.run(
                functools.partial(
                    run_engine,
                    tuple(candidates[i] for i in tangents if i in roots),
                    tuple(t for i, t in tangents.items() if i in roots),
                    keep_graph=False,
                    create_graph=False,
                    inputs=tuple(_edge(parts.inputs, f) for f in sources),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
            )
        except NeedsFixedSize:
            raise
        except Unsupported as error:
            raise NotDifferentiable(error.reason) from error
        except errors as error:
            _check_fixed(parts, error)
            raise refuse(f"its backward raises {type(error).__name__}: {error}") from error
    return [*gradients, *inflow.values()]


_HOOK_KEYS = itertools.count(-1, -1)  # keys that no handle of torch has


@contextmanager
def _hooked(hooks: Iterable[tuple[FakeTensor, Callable[[Any], FakeTensor | None]]]) -> Iterator[None]:
    """Context in which these tensors have these hooks. `register_hook` would increment a handle counter of its class,
    which programs can see."""
    added: list[tuple[dict[int, Any], int]] = []
    for fake, hook in hooks:
        if fake._backward_hooks is None:
            fake._backward_hooks = OrderedDict()
            if fake.grad_fn is not None:
                fake.grad_fn._register_hook_dict(fake)
        key = next(_HOOK_KEYS)
        fake._backward_hooks[key] = hook
        added.append((fake._backward_hooks, key))
    try:
        yield
    finally:
        for table, key in added:
            del table[key]


def _recording_arrival(sources: Sequence[FakeTensor], arrived: list[int]) -> AbstractContextManager[None]:
    """Context that appends to `arrived` the indices of leaves of `sources` in the order in which they get gradients."""
    leaves = ((i, fake) for i, fake in enumerate(sources) if fake.is_leaf and fake.requires_grad)
    return _hooked((fake, functools.partial(_append_arrival, arrived, i)) for i, fake in leaves)


def _append_arrival(arrived: list[int], index: int, gradient: Any) -> None:
    arrived.append(index)


def _arrival_order(sources: Sequence[FakeTensor], arrived: Sequence[int]) -> list[int]:
    """Indices of `sources`: leaves first, in the order in which they got gradients; then the others in their order."""
    rank = {index: k for k, index in enumerate(arrived)}
    return sorted(range(len(sources)), key=lambda i: (not sources[i].is_leaf, rank.get(i, len(sources)), i))


def _cuts_and_roots(
    inputs: Inputs, candidates: Sequence[FakeTensor], n_values: int, with_tangent: Sequence[int]
) -> tuple[tuple[int, ...], frozenset[int]]:
    """(cuts, roots). Cuts: the values that others are computed from, and the epilogue's tensors, which follow the values, in
    the order of their computation. Autograd must have a node for each: the program may query their gradients, hook them, or
    change what flows through them. Roots: members of `with_tangent` that contribute to none of the others."""
    edge = {i: (candidates[i].grad_fn, candidates[i].output_nr) for i in with_tangent}
    nodes = [node for node, _ in edge.values()]
    read = reachable_edges(nodes)
    epilogue = {edge[i] for i in with_tangent if i >= n_values}
    cuts = [i for i in with_tangent if edge[i] in epilogue or edge[i] in read]
    roots = frozenset(
        i for i in with_tangent if edge[i] not in read and (i >= n_values or edge[i] not in epilogue)
    )
    return _in_computation_order(inputs, candidates, cuts), roots


def _in_computation_order(
    inputs: Inputs, candidates: Sequence[FakeTensor], members: Sequence[int]
) -> tuple[int, ...]:
    """`members`, indices of `candidates`, in the order of their computation."""
    if len(members) < 2:
        return tuple(members)
    order = computation_order([candidates[i].grad_fn for i in members], inputs.first_history.values())
    return tuple(sorted(members, key=lambda i: order.get(candidates[i].grad_fn, (-1, 0))))


def _cut_at(
    candidates: Sequence[FakeTensor], tangents: Mapping[int, FakeTensor], inflow: dict[int, Any]
) -> AbstractContextManager[None]:
    """Context in which the gradients that flow into the keys of `tangents` are stored in `inflow`, and their tangents, which
    will hold all of it, flow on instead."""
    cut = reversed(list(tangents.items()))  # a value copied into an input comes before that input
    return _hooked((candidates[i], functools.partial(_replace, inflow, i, t)) for i, t in cut)


def _replace(inflow: dict[int, Any], value: int, tangent: FakeTensor, gradient: Any) -> FakeTensor | None:
    inflow[value] = gradient
    return None if gradient is None else tangent  # some views of one operator may have no gradient


_DEVICES = ("cpu", "cuda")


def _check_differentiable(parts: TraceParts, outputs: Sequence[FakeTensor]) -> None:
    inputs, first_history = parts.inputs, parts.inputs.first_history
    if torch.is_anomaly_enabled():
        raise refuse("anomaly detection is enabled")
    if parts.wrapper_gradients.is_used and parts.autograd.custom is not None:
        raise refuse("a custom function and gradients through a wrapper subclass")
    if any(f.device.type not in _DEVICES for f in inputs):
        raise refuse("a tensor that is neither on a CPU nor on CUDA")
    if any(node.target is forward_ad.enter_dual_level for node in parts.tape.torch.graph):
        raise refuse("forward-mode differentiation")
    inference = parts.torch_recorder.first_state[1]
    for fake in inputs:
        changed = fake.grad_fn is not first_history.get(id(fake))
        if changed and fake.storage_key not in parts.writes.storages:
            raise refuse("the autograd state of an input changes")
    for fake in outputs:
        keeps = fake.is_leaf or fake.retains_grad  # reading `grad` of others warns
        if keeps and not inputs.holds(fake) and fake.grad is not None:
            raise refuse("a tensor with a gradient is returned")
        if fake.is_inference() is not inference:
            raise refuse("an inference tensor is returned")
        if fake.requires_grad and fake.is_leaf and not inputs.holds(fake) and not is_no_grad_view(fake):
            raise refuse("a leaf made inside is returned")


def _edge(inputs: Inputs, fake: FakeTensor) -> FakeTensor | GradientEdge:
    history = inputs.first_history.get(id(fake))
    return fake if history is None else GradientEdge(history, 0)


def _tangent(inputs: Inputs, value: FakeTensor) -> FakeTensor:
    """A fake tangent with the dense layout of its value."""
    with DisableTorchDispatch():
        if syms_of(value.spec):
            return fresh_fake(inputs, results(EMPTY_LIKE, (value,), {}, value.device, spec_of_fake))
        # From an uninitialized CPU tensor: torch computes it in slow Python code for meta tensors.
        dense = torch.empty_like(empty_like_spec(value.spec, torch.device("cpu")))
        elem = torch.empty_strided(dense.size(), dense.stride(), dtype=dense.dtype, device="meta")
        return wrap(elem, value.device)


def _backward_nodes(parts: TraceParts) -> dict[Any, Node]:
    """The stand-in for each autograd node, with the source and line of the call that it differentiates."""
    nodes: dict[Any, Node] = {}
    for entry in parts.tape.entries:
        for fake in fakes_in(entry.out):
            if fake._is_view() and fake.storage_key in parts.writes.storages:
                continue  # autograd may have invalidated it, or replay the view through unnamed tensors
            if fake.grad_fn is not None and fake.grad_fn not in nodes:
                nodes[fake.grad_fn] = backward_node(entry.node)
    return nodes
