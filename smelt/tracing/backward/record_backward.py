"""Recording a backward: autograd is asked for gradients on fakes, behind the recorded forward."""

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
from smelt.tracing.backward.shared_saves import shared_saves
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in, wrap
from smelt.tracing.record.current_call import backward_node
from smelt.tracing.record.recorded_results import fresh_fake
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.trace_outputs import OutputSource, EpilogueTensor, is_no_grad_view, output_sources, epilogue_tensors
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.symbolic_fake_results import spec_of_fake


def record_backward(parts: TraceParts, outputs: Sequence[FakeTensor]) -> RecordedBackward:
    """Records the gradients of `outputs` behind the forward. The trace must still be entered. Raises NotDifferentiable."""
    try:
        return _record(parts, outputs)
    except Unsupported:
        raise
    except RuntimeError as error:  # what autograd says of a view on which it has given up
        _check_fixed(parts, error)
        raise refuse(str(error)) from error


def _check_fixed(parts: TraceParts, error: Exception) -> None:
    """C++ code may raise of symbolic sizes alone."""
    if parts.numbers.sizes:
        raise NeedsFixedSize(
            f"a backward raises {str(error).partition(chr(10))[0]}", parts.numbers.sizes
        ) from error


_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)


def _record(parts: TraceParts, outputs: Sequence[FakeTensor]) -> RecordedBackward:
    _check(parts, outputs)
    inputs, autograd, tape = parts.inputs, parts.autograd, parts.tape
    flags = GradFlags.of(autograd, inputs)
    written = tuple(f for f in inputs if f.grad_fn is not inputs.first_history.get(id(f)))
    values, found, taken, places = _placed(parts, outputs, written)
    freed = freed_values(values, inputs, inputs.first_history) if autograd.differentiated else ()
    if any(s.value >= len(values) - len(written) for s in freed):
        raise refuse("an input is written with a gradient whose graph is freed")
    if freed and taken:
        raise refuse("a view of results whose graph is freed, which others are computed from")
    gone = {s.value for s in freed}
    with_tangent = tuple(i for i, v in enumerate(places) if v.requires_grad and i not in gone)
    sources = tuple(f for i, f in enumerate(inputs) if id(f) in inputs.first_history or i in flags.enabled)
    tangents = tuple(_tangent(inputs, places[i]) for i in with_tangent)
    for k, tangent in enumerate(tangents):
        parts.backward.add_tangent(tangent, f"tangents_{k + 1}")
    start = len(tape.entries), len(tape.aten.graph.nodes)
    cuts, ends = _cuts(inputs, places, len(values), with_tangent)
    computed = _in_order(inputs, places, with_tangent)
    gradients: Sequence[Any] = [None] * (len(sources) + len(cuts))
    if tangents and sources:
        arrived: list[int] = []
        with _noting(sources, arrived):
            gradients = _run_engine(parts, places, ends, dict(zip(with_tangent, tangents)), sources, cuts)
        order = _order(sources, arrived)
        sources = tuple(sources[i] for i in order)
        gradients = [*(gradients[i] for i in order), *gradients[len(sources) :]]
    if any(g is not None and type(g) is not FakeTensor for g in gradients):
        raise refuse("a gradient is not a tensor of the trace")
    calls = () if autograd.custom is None else tuple(autograd.custom.called)
    reads_saved = () if autograd.custom is None else autograd.custom.reads_saved
    nodes = [places[i].grad_fn for i in with_tangent]
    conflicts = shared_saves(nodes, inputs.first_history.values(), reads_saved)
    return RecordedBackward(
        values,
        found,
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
        freed,
        taken,
        places[len(values) :],
        tuple(with_tangent.index(i) for i in computed),
    )


def _placed(
    parts: TraceParts, outputs: Sequence[FakeTensor], written: Sequence[FakeTensor]
) -> tuple[tuple[FakeTensor, ...], tuple[OutputSource, ...], tuple[EpilogueTensor, ...], tuple[FakeTensor, ...]]:
    """The values of the joint graph, what of `written` is to be written among them last; how the outputs are had; what is
    taken; all that has a tangent: the values, and then what is taken. Raises NotDifferentiable."""
    inputs, tape = parts.inputs, parts.tape
    values, found, _ = output_sources(tape, inputs, outputs)
    passed = epilogue_tensors(parts.autograd, tape, inputs, outputs, values, written)
    views: tuple[OutputSource, ...] = ()
    if passed:
        values, found, views = output_sources(tape, inputs, outputs, passed)
    first = len(values)
    place = {id(f): first + i for i, f in enumerate(written)}
    values = (*values, *written)
    nodes = [f.grad_fn for f in passed]
    taken = tuple(EpilogueTensor(s, nodes.index(f.grad_fn), place.get(id(f))) for f, s in zip(passed, views))
    return values, found, taken, (*values, *passed)


def _run_engine(
    parts: TraceParts,
    places: Sequence[FakeTensor],
    ends: Collection[int],
    tangents: Mapping[int, FakeTensor],
    sources: Sequence[FakeTensor],
    cuts: Sequence[int],
) -> list[Any]:
    """Has autograd compute gradients, which the trace records, from `ends` on: of the sources, then of the cuts."""
    errors = (
        _ERRORS if parts.autograd.custom is None else (Exception,)
    )  # a backward of the user's may raise any
    through: dict[int, Any] = dict.fromkeys(cuts)
    backwards = _backwards(parts)
    with (
        parts.backward.recording(backwards),
        replace_backwards(backwards),
        _cut_at(places, {i: t for i, t in tangents.items() if i not in ends}, through),
        all_requiring_grad(sources),
    ):
        try:
            # `torch.autograd.grad` calls this; calling that would import sympy, for symbolic sizes.
            gradients = parts.backward.run(
                functools.partial(
                    run_engine,
                    tuple(places[i] for i in tangents if i in ends),
                    tuple(t for i, t in tangents.items() if i in ends),
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
    return [*gradients, *through.values()]


_OWN_HOOKS = itertools.count(-1, -1)  # numbers that no handle has


@contextmanager
def _hooked(hooks: Iterable[tuple[FakeTensor, Callable[[Any], FakeTensor | None]]]) -> Iterator[None]:
    """Inside, these hooks are on these tensors. `register_hook` counts its handles in their class, which programs see."""
    added: list[tuple[dict[int, Any], int]] = []
    for fake, hook in hooks:
        if fake._backward_hooks is None:
            fake._backward_hooks = OrderedDict()
            if fake.grad_fn is not None:
                fake.grad_fn._register_hook_dict(fake)
        key = next(_OWN_HOOKS)
        fake._backward_hooks[key] = hook
        added.append((fake._backward_hooks, key))
    try:
        yield
    finally:
        for table, key in added:
            del table[key]


def _noting(sources: Sequence[FakeTensor], arrived: list[int]) -> AbstractContextManager[None]:
    """While the backward is recorded: which leaves of `sources` are given their gradients, in order."""
    leaves = ((i, fake) for i, fake in enumerate(sources) if fake.is_leaf and fake.requires_grad)
    return _hooked((fake, functools.partial(_note, arrived, i)) for i, fake in leaves)


def _note(arrived: list[int], index: int, gradient: Any) -> None:
    arrived.append(index)


def _order(sources: Sequence[FakeTensor], arrived: Sequence[int]) -> list[int]:
    """Leaves come first, in the order in which they were given their gradients; others as they are."""
    place = {index: at for at, index in enumerate(arrived)}
    return sorted(range(len(sources)), key=lambda i: (not sources[i].is_leaf, place.get(i, len(sources)), i))


def _cuts(
    inputs: Inputs, places: Sequence[FakeTensor], n: int, with_tangent: Sequence[int]
) -> tuple[tuple[int, ...], frozenset[int]]:
    """The first `n` of `places` that others are computed from, and all that is taken, which follows. Autograd must know them
    as such: the program may ask for their gradients, put hooks on them, or change what flows through them. In the order of
    their computation. And those of all that have a tangent that nothing with a tangent is computed from."""
    at = {i: (places[i].grad_fn, places[i].output_nr) for i in with_tangent}
    nodes = [node for node, _ in at.values()]
    read = reachable_edges(nodes)
    taken = {at[i] for i in with_tangent if i >= n}
    found = [i for i in with_tangent if at[i] in taken or at[i] in read]
    ends = frozenset(i for i in with_tangent if at[i] not in read and (i >= n or at[i] not in taken))
    return _in_order(inputs, places, found), ends


def _in_order(inputs: Inputs, places: Sequence[FakeTensor], members: Sequence[int]) -> tuple[int, ...]:
    """These of `places` in the order of their computation."""
    if len(members) < 2:
        return tuple(members)
    order = computation_order([places[i].grad_fn for i in members], inputs.first_history.values())
    return tuple(sorted(members, key=lambda i: order.get(places[i].grad_fn, (-1, 0))))


def _cut_at(
    places: Sequence[FakeTensor], tangents: Mapping[int, FakeTensor], through: dict[int, Any]
) -> AbstractContextManager[None]:
    """While the backward is recorded, what flows into the places that `tangents` has as keys is put into `through`, and
    their tangents, which will hold all of it, flow on instead."""
    cut = reversed(list(tangents.items()))  # what is copied into an input comes before that input
    return _hooked((places[i], functools.partial(_replace, through, i, t)) for i, t in cut)


def _replace(through: dict[int, Any], value: int, tangent: FakeTensor, gradient: Any) -> FakeTensor | None:
    through[value] = gradient
    return None if gradient is None else tangent  # of views that one operator gave, some may have none


_DEVICES = ("cpu", "cuda")


def _check(parts: TraceParts, outputs: Sequence[FakeTensor]) -> None:
    inputs, first_history = parts.inputs, parts.inputs.first_history
    if torch.is_anomaly_enabled():
        raise refuse("autograd looks for anomalies")
    if any(f.device.type not in _DEVICES for f in inputs):
        raise refuse("a tensor that is neither on a CPU nor on CUDA")
    if any(node.target is forward_ad.enter_dual_level for node in parts.tape.torch.graph):
        raise refuse("forward-mode differentiation")
    inference = parts.torch_recorder.first_state[1]
    for fake in inputs:
        changed = fake.grad_fn is not first_history.get(id(fake))
        if changed and fake.storage_key not in parts.writes.storages:
            raise refuse("what autograd knows of an input changes")
    for fake in outputs:
        keeps = fake.is_leaf or fake.retains_grad  # others must not be asked
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
    """A fake laid out as the value it belongs to, densely."""
    with DisableTorchDispatch():
        if syms_of(value.spec):
            return fresh_fake(inputs, results(EMPTY_LIKE, (value,), {}, value.device, spec_of_fake))
        # An uninitialized CPU tensor answers this: for meta tensors slow Python code of torch does.
        dense = torch.empty_like(empty_like_spec(value.spec, torch.device("cpu")))
        elem = torch.empty_strided(dense.size(), dense.stride(), dtype=dense.dtype, device="meta")
        return wrap(elem, value.device)


def _backwards(parts: TraceParts) -> dict[Any, Node]:
    """What stands for each node of autograd's graph: it knows the call whose gradients that computes, and its line."""
    found: dict[Any, Node] = {}
    for made in parts.tape.entries:
        for fake in fakes_in(made.out):
            if fake._is_view() and fake.storage_key in parts.writes.storages:
                continue  # autograd may have given it up, or take the view again, through tensors that nobody names
            if fake.grad_fn is not None and fake.grad_fn not in found:
                found[fake.grad_fn] = backward_node(made.node)
    return found
