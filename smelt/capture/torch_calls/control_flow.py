"""Conditions and loops within the graph: `torch.cond`, `while_loop`, and statements (`conditional_jumps.py`).

The VM runs both branches of a data-dependent condition, to guard what they read. Cheap branches that cannot raise are both
computed, and each element of the results is selected. So are they under `vmap`, where eager computes both for a condition
of its batch. Others become subgraphs, of which one runs (`subgraph_capture.py`). Ints that the branches of a `torch.cond`
return become unbacked numbers, read from a tensor that selects one of them.

Eager runs branches through torch's compiler, which refuses those with side effects. Where branches have side effects, the
frame is captured again without subgraphs (`Attempt.selects`), and the graph breaks at the condition. The same holds for the
functions of a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TypeVar, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import SUBSTITUTED_CALLS, SUBSTITUTES, Args, Kwargs, function
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.reconstruction.reconstruction_order import contents_of_created
from smelt.capture.semantics import held_numbers
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.torch_calls import subgraph_capture, unbacked_reads
from smelt.capture.torch_calls.joined_values import (
    INTS,
    Number,
    NumberPair,
    Pair,
    check_containers,
    check_layouts,
    pairs_of,
)
from smelt.capture.torch_calls.subgraph_capture import RecordedFunction, TapePosition, cut_out, mark
from smelt.capture.torch_calls.subgraph_nodes import are_cheap, record
from smelt.capture.vm.vm import VM
from smelt.errors import RefusedOperator
from smelt.graph import torch_settings
from smelt.graph.ir import Node
from smelt.graph.subgraphs import Choice, Loop, Program, Rule, has_gradients
from smelt.guards.source import Source
from smelt.ops.may_raise import must_run
from smelt.reasons import UNSUPPORTED_CALL, Reason
from smelt.torch_private import (
    VMAP,
    all_transforms,
    is_functorch_wrapped_tensor,
    level_of,
    maybe_current_level,
)
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison


@dataclass
class RecordedPair:
    """Two functions that are being recorded. `arguments`: the functions and their arguments; `reached`: these, and the
    values that the program has stored into environment objects; `contents`: those of the reachable objects that the program
    has created. `refusal`: the previous reason to refuse mutations. `marks`: the tape before the first and the second
    function. `condition`: which of them runs, as a tensor."""

    arguments: tuple[object, ...]
    reached: list[object]
    contents: list[object]
    refusal: str
    marks: list[TapePosition]
    condition: torch.Tensor | None = None


def begin_recording(vm: VM, *arguments: object) -> RecordedPair:
    """Begin to record two functions, of which one may not run, on these arguments."""
    vm.assumptions.choosing += 1
    log, variables = vm.env.log, vm.contexts.variables
    stored = [v for e in log.effects() for v in vars(e).values() if v is not e.target and v is not MISSING]
    reached = [*arguments, *stored, *variables.values()]
    contents = _contents(vm, reached)
    refusal, log.refusal = log.refusal, "one prints, or changes an object outside"
    return RecordedPair(arguments, reached, contents, refusal, [mark(vm.trace)])


def _contents(vm: VM, reached: Sequence[object]) -> list[object]:
    """The contents of each reachable object that the program has created, except tensors of an open transform."""

    def source_of(x: object) -> Source | None:
        is_wrapper = type(x) is torch.Tensor and is_functorch_wrapped_tensor(x)
        return _WRAPPER if is_wrapper else vm.env.sources.find(x)

    return contents_of_created(source_of, reached)


_WRAPPER = Source("const", "a tensor of a transform", None)


def may_record(vm: VM) -> bool:
    """Whether functions may be recorded that may not run."""
    if maybe_current_level() is not None:
        raise subgraph_capture.refuse("a higher-order operator inside of a transform of torch.func")
    return vm.assumptions.selects and not vm.trace.call.is_opaque


def check_quiet(vm: VM, functions: RecordedPair) -> None:
    """Raise Unsupported where the functions had side effects."""
    settings = {torch_settings.read(), *(m.settings for m in functions.marks)}
    contents = _contents(vm, functions.reached)
    if len(settings) > 1 or vm.contexts.tokens or contents != functions.contents:
        raise subgraph_capture.refuse("subgraphs with side effects")
    vm.env.log.refusal = functions.refusal


@function(cast(FunctionType, polyfills.next_function))
def _next(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Mark the end of the first function."""
    (functions,) = args
    assert isinstance(functions, RecordedPair)
    functions.marks.append(mark(vm.trace))


# ---- branches


def _is_condition(vm: VM, pred: object) -> bool:
    if type(pred) is not FakeTensor or pred.dtype is not torch.bool or pred.device.type != "cpu":
        return False
    return pred.numel() == 1 and vm.trace.constants.value(pred) is None


def _is_on_comparison(args: Args, kwargs: Kwargs) -> bool:
    return type(args[0] if args else kwargs.get("pred")) is UnbackedComparison


# For a Python bool, `torch.cond` calls one branch. An unbacked comparison is such a bool.
_COND = ("torch._higher_order_ops.cond", "cond")
SUBSTITUTES[_COND] = cast(FunctionType, polyfills.cond_on_bool)
SUBSTITUTED_CALLS[_COND] = _is_on_comparison


@function(cast(FunctionType, polyfills.begin_choice))
def _begin(vm: VM, args: Args, kwargs: Kwargs) -> RecordedPair | None:
    """Begin to record both branches, if `pred` is data-dependent and they may be recorded."""
    pred, *operands = args
    if type(pred) is not UnbackedComparison or vm.assumptions.selects:
        pred = as_condition(vm, pred)
    if not isinstance(pred, torch.Tensor):
        return None
    if not _is_in_vmap(vm, pred) and not (may_record(vm) and _is_condition(vm, pred)):
        return None
    functions = begin_recording(vm, *operands)
    functions.condition = pred
    return functions


def as_condition(vm: VM, value: object) -> object:
    """`value`, an unbacked comparison or a tensor of one element, as a tensor of bools."""
    if type(value) is UnbackedComparison:
        return vm.call_native(_COMPARED[value.op], held_numbers.compared_tensors(vm, *value.operands))
    if type(value) is FakeTensor and value.dtype is not torch.bool and value.elem.numel() == 1:
        return vm.call_native(torch.Tensor.bool, (value,))
    return value


_COMPARED = {"lt": torch.lt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne}


def _is_in_vmap(vm: VM, pred: torch.Tensor) -> bool:
    """Whether all open transforms are `vmap`, and `pred` is one condition for the batch of the innermost or for each of its
    elements."""
    transforms = all_transforms() or ()
    if not transforms or any(transform.key() != VMAP for transform in transforms) or pred.numel() != 1:
        return False
    if not vm.assumptions.selects or vm.trace.call.is_opaque or pred.dtype is not torch.bool:
        return False
    return _is_condition(vm, pred) or level_of(pred) == maybe_current_level()


def _choose_in_vmap(
    vm: VM, first: TapePosition, pred: torch.Tensor, if_true: object, if_false: object
) -> object:
    """Select the elements of the results of two branches, one tensor each."""
    if not isinstance(if_true, torch.Tensor) or not isinstance(if_false, torch.Tensor):
        raise subgraph_capture.refuse("branches under vmap that do not return one tensor")
    if (if_true.dtype, if_true.shape) != (if_false.dtype, if_false.shape):
        raise subgraph_capture.refuse("branches with results of different types or shapes")
    added = [entry.node for entry in vm.trace.tape.entries[first.entries :]]
    if any(map(must_run, added)):
        raise subgraph_capture.refuse("branches under vmap with side effects")
    if type(pred) is FakeTensor:  # eager computes one branch
        if not are_cheap(added) or if_true.requires_grad or if_false.requires_grad:
            raise subgraph_capture.refuse("a higher-order operator inside of a transform of torch.func")
    vm.assumptions.choosing -= 1
    return vm.call_native(torch.where, (vm.call_native(torch.Tensor.reshape, (pred, ())), if_true, if_false))


@function(cast(FunctionType, polyfills.choose))
def _choose(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The result of one branch or the other. Raises Unsupported where it may differ from eager's."""
    functions, _, *results = args
    assert isinstance(functions, RecordedPair) and functions.condition is not None
    check_quiet(vm, functions)
    if maybe_current_level() is not None:
        return _choose_in_vmap(vm, functions.marks[0], functions.condition, *results)
    return join(vm, functions, *results)


def join(
    vm: VM,
    functions: RecordedPair,
    if_true: object,
    if_false: object,
    *,
    is_statement: bool = False,
    exists: Callable[[object], bool] = lambda container: False,
) -> object:
    """One value for the results of two functions, which the graph computes or selects. Raises Unsupported where it may
    differ from eager's.

    `is_statement`: the functions are the branches of a statement. A result may be a tensor that exists before them, and
    gradients reach only the operands that eager's reach. `exists`: whether a container exists before the branches, so that
    the program can tell it from another one."""
    (first, second), pred = functions.marks, cast(FakeTensor, functions.condition)
    tape = vm.trace.tape.entries
    added = [entry.node for entry in tape[first.entries :]]
    found_pairs = pairs_of(
        if_true, if_false, same=is_statement, numbers=is_statement and vm.assumptions.joins_numbers
    )
    pairs, number_pairs = _distinct(found_pairs.tensors), _distinct(found_pairs.numbers)
    if is_statement:
        check_containers(if_true, if_false, exists)
    before = ExistingTensors(vm, first.entries)
    if any(map(before.shares, itertools.chain(*pairs))) and not (is_statement and vm.trace.copies.allowed):
        later = ", which later code writes or compares" if is_statement else ""
        raise subgraph_capture.refuse(f"they return an existing tensor{later}")
    if is_statement:
        check_layouts(pairs)
        _check_joinable(pairs, before)
        subgraph_capture.check_nodes(vm.trace.tape.torch.graph.nodes[first.torch :])
    written = {call.base.storage_key for call in vm.trace.writes.calls[first.writes :]} & before.storages
    found_at = [[before.alternatives(f, pred) for f in pair] for pair in pairs]
    if not written and are_cheap(added) and all(itertools.starmap(_is_selectable, pairs)):
        chosen = [_selected(vm, pred, a, b) for a, b in pairs]
        numbers = [_selected(vm, pred, *(_tensor_of(vm, n, pred) for n in pair)) for pair in number_pairs]
    elif pred.device.type != "cpu":
        raise subgraph_capture.refuse("they are too large for a condition on a GPU")
    else:
        if not all(before.holds(f) or f.storage_key not in before.storages for f in itertools.chain(*pairs)):
            raise subgraph_capture.refuse("branches whose results are views of other tensors")
        for side in (0, 1):
            _drop_inner_alternatives(before, [pair[side] for pair in pairs], [at[side] for at in found_at])
        # conditions that one branch computes are its results, too
        conditions = [[c for at in found_at for c, _ in at[side] if c is not pred] for side in (0, 1)]
        more = [
            [*conditions[0], *[pred] * len(conditions[1])],
            [*[pred] * len(conditions[0]), *conditions[1]],
        ]
        end = mark(vm.trace)
        held = [[_constant_of(vm, pair[side]) for pair in number_pairs] for side in (0, 1)]
        results = [[*(pair[side] for pair in pairs), *more[side], *held[side]] for side in (0, 1)]
        other = RecordedFunction(cut_out(vm.trace, second, end), results[1])
        branches = RecordedFunction(cut_out(vm.trace, first), results[0]), other
        rule, n_numbers = Choice(is_statement), len(number_pairs)
        chosen = _as_node(vm, rule, branches, [pred], written=written, numbers=n_numbers)
        numbers = chosen[len(chosen) - n_numbers :]
        new: Iterator[FakeTensor] = iter(chosen[len(pairs) :])
        for side in (0, 1):
            for at in found_at:
                at[side] = [(c if c is pred else next(new), f) for c, f in at[side]]
    for result, (a, b) in zip(chosen, pairs):
        if is_statement and result.requires_grad is not (a.requires_grad or b.requires_grad):
            raise subgraph_capture.refuse("without gradients, they give a tensor that requires them")
    for result, (if_true_at, if_false_at) in zip(chosen, found_at):
        if if_true_at or if_false_at:
            set_alternatives(vm, result, pred, if_true_at, if_false_at)
    found: dict[tuple[int, int], object] = {(id(a), id(b)): result for (a, b), result in zip(pairs, chosen)}
    for pair, tensor in zip(number_pairs, numbers):
        found[id(pair[0]), id(pair[1])] = NumberProxy(tensor, max(map(_most, pair)))
    if number_pairs:
        vm.conditional_jumps.joined_numbers = vm.env.numbers.has_proxies = True
    joined = _joined(vm, pred, found, if_true, if_false)
    vm.assumptions.choosing -= 1
    return joined


def discard(vm: VM, functions: RecordedPair) -> None:
    """Remove what was recorded since the first of the functions, which are recorded no longer."""
    cut_out(vm.trace, functions.marks[0])
    vm.env.log.refusal = functions.refusal
    vm.assumptions.choosing -= 1


class ExistingTensors:
    """The tensors that exist before two branches: of the first `count` entries of the tape, and more."""

    def __init__(self, vm: VM, count: int, more: Iterable[FakeTensor] = ()) -> None:
        found = vm.conditional_jumps.recorded.up_to(vm.trace.tape.entries, count)
        added = [*more, *vm.trace.inputs]
        self._ids = found.ids | {id(f) for f in added}
        self.storages = found.storages | {f.storage_key for f in added}

    def holds(self, fake: FakeTensor) -> bool:
        """Whether it is one of them."""
        return id(fake) in self._ids

    def shares(self, fake: FakeTensor) -> bool:
        """Whether it may share memory with one of them, in eager."""
        return fake.storage_key in self.storages or bool(fake.alternatives)

    def alternatives(self, fake: FakeTensor, pred: FakeTensor) -> list[tuple[FakeTensor, FakeTensor]]:
        """The tensors that the result of a branch may be, each with its condition; `pred` for one that it always is."""
        if fake.storage_key in self.storages:
            return [(pred, fake)]
        return [*fake.alternatives]


def _check_joinable(pairs: Sequence[tuple[FakeTensor, FakeTensor]], before: ExistingTensors) -> None:
    """Raise Unsupported where the program could distinguish one tensor for both branches from the tensor of either."""
    for side in zip(*pairs):
        new = [f.storage_key for f in side if not before.shares(f)]
        if len(set(new)) < len(new):
            raise subgraph_capture.refuse("branches with results that share memory")
    for a, b in pairs:
        if any(class_of_fake(f) is not torch.Tensor or has_attributes(f) for f in (a, b)):
            raise subgraph_capture.refuse("their results are parameters, or tensors with attributes")
        if any(f.spec.offset != 0 and not before.shares(f) for f in (a, b)):
            raise subgraph_capture.refuse("their results are parts of other tensors")
        for one, other in ((a, b), (b, a)):
            if one.requires_grad and not other.requires_grad and not before.holds(other):
                raise subgraph_capture.refuse("only one result requires gradients")
    differentiated = [a.requires_grad or b.requires_grad for a, b in pairs if has_gradients(a.dtype)]
    if any(differentiated) and not all(differentiated):
        raise subgraph_capture.refuse("only some of their results require gradients")


def has_attributes(fake: FakeTensor) -> bool:
    """Whether the program has set attributes of a tensor."""
    return any(name != "_is_param" for name in fake.__dict__)


def set_alternatives(
    vm: VM,
    result: FakeTensor,
    pred: FakeTensor,
    if_true: Sequence[tuple[FakeTensor, FakeTensor]],
    if_false: Sequence[tuple[FakeTensor, FakeTensor]],
) -> None:
    """Record that eager has tensors that exist before the branches in place of `result`."""
    holds = vm.call_native(torch.Tensor.clone, (vm.call_native(torch.Tensor.reshape, (pred, ())),))
    fails = vm.call_native(torch.logical_not, (holds,))
    alternatives: list[tuple[FakeTensor, FakeTensor]] = []
    for outcome, of_branch in ((holds, if_true), (fails, if_false)):
        for condition, tensor in of_branch:
            both = outcome if condition is pred else vm.call_native(torch.logical_and, (outcome, condition))
            alternatives.append((cast(FakeTensor, both), tensor))
    result.alternatives = tuple(alternatives)
    vm.trace.copies.add(result, [tensor for _, tensor in alternatives])


def _drop_inner_alternatives(
    before: ExistingTensors,
    results: Sequence[FakeTensor],
    found: Sequence[list[tuple[FakeTensor, FakeTensor]]],
) -> None:
    """Drop the alternatives of a branch's results that the branch computes itself. Raises Unsupported where another result
    is such a tensor or may be: they are one tensor in eager."""
    inner = [f for at in found for _, f in at if not before.holds(f)]
    named = [*map(id, results), *map(id, inner)]
    if any(named.count(id(f)) > 1 for f in inner):
        raise subgraph_capture.refuse("branches with results that may be one tensor")
    for at in found:
        at[:] = [(c, f) for c, f in at if before.holds(f)]


P = TypeVar("P", Pair, NumberPair)


def _distinct(pairs: Sequence[P]) -> list[P]:
    return list({(id(pair[0]), id(pair[1])): pair for pair in pairs}.values())


def _tensor_of(vm: VM, number: Number, like: FakeTensor) -> FakeTensor:
    """A number as a 0-d tensor on the device of `like`."""
    if isinstance(number, NumberProxy):
        return cast(FakeTensor, number.tensor)
    options = {"dtype": _HOLDS[type(number)], "device": like.device}
    return cast(FakeTensor, vm.call_native(torch.full, ((), number), options))


def _constant_of(vm: VM, number: Number) -> FakeTensor:
    """A number as a 0-d tensor that no node of the branches computes, unless it is a proxy."""
    if isinstance(number, NumberProxy):
        return cast(FakeTensor, number.tensor)
    with vm.trace.paused():
        value = torch.tensor(number, dtype=_HOLDS[type(number)])
    return vm.trace.tape.add_constant(value)


_HOLDS = {float: torch.float64, int: torch.int64, bool: torch.bool}


def _most(number: Number) -> int:
    """The largest absolute value of an int."""
    return number.most if isinstance(number, NumberProxy) else abs(number) if type(number) is int else 0


def _joined(
    vm: VM, pred: FakeTensor, found: dict[tuple[int, int], object], result: object, other: object
) -> object:
    """`result`, of the first branch, with the tensors `found` for each pair, and with an unbacked number for each int
    that differs in the `other` branch."""
    if (id(result), id(other)) in found:
        return found[id(result), id(other)]
    if result is other:
        return result
    if isinstance(result, tuple):
        return tuple(_joined(vm, pred, found, x, y) for x, y in zip(result, cast("Sequence[object]", other)))
    if isinstance(result, list):
        items = found[id(result), id(other)] = list[object]()
        items += (_joined(vm, pred, found, x, y) for x, y in zip(result, cast("Sequence[object]", other)))
        return items
    if isinstance(result, dict):
        entries = found[id(result), id(other)] = dict[object, object]()
        others = cast("dict[object, object]", other)
        entries.update((key, _joined(vm, pred, found, x, others[key])) for key, x in result.items())
        return entries
    if type(result) not in INTS or (type(result) is type(other) is int and result == other):
        return result
    chosen = _selected(vm, pred, *(held_numbers.tensor_of(vm, number) for number in (result, other)))
    read = unbacked_reads.numbers(vm, chosen)
    if read is None:
        raise subgraph_capture.refuse("branches that return different numbers")
    return read[0]


def _is_selectable(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether they differ at most in their storages and offsets, and need no gradients."""
    specs = [replace(f.spec, offset=0) for f in (a, b)]
    return specs[0] == specs[1] and not a.requires_grad and not b.requires_grad


def _selected(vm: VM, pred: FakeTensor, a: FakeTensor, b: FakeTensor) -> FakeTensor:
    selected = vm.call_native(torch.where, (vm.call_native(torch.Tensor.reshape, (pred, ())), a, b))
    if not isinstance(selected, FakeTensor) or selected.spec.stride != a.spec.stride:
        raise subgraph_capture.refuse("their results have different layouts")
    return selected


def _with_tensors(value: object, tensors: Iterator[FakeTensor]) -> object:
    """`value` with its tensors replaced by `tensors`."""
    if isinstance(value, FakeTensor):
        return next(tensors)
    if isinstance(value, (tuple, list)):
        return type(value)([_with_tensors(x, tensors) for x in value])
    if isinstance(value, dict):
        return {key: _with_tensors(x, tensors) for key, x in value.items()}
    return value


# ---- loops


@function(cast(FunctionType, polyfills.begin_loop))
def _begin_loop(vm: VM, args: Args, kwargs: Kwargs) -> RecordedPair | None:
    """Begin to record the functions of a loop, if they may be subgraphs."""
    carried = args[2]
    if not may_record(vm) or not isinstance(carried, (tuple, list)):
        return None
    if not carried or not all(type(f) is FakeTensor and f.subclass is None for f in carried):
        return None
    if torch.is_grad_enabled() and any(f.requires_grad for f in carried):
        return None
    return begin_recording(vm, *args)


@function(cast(FunctionType, polyfills.loop_values))
def _loop_values(vm: VM, args: Args, kwargs: Kwargs) -> tuple[FakeTensor, ...]:
    """The arguments for recording the functions of a loop: proxies with the layouts of the carried tensors."""
    (functions,) = args
    assert isinstance(functions, RecordedPair)
    return proxies(vm, cast("Sequence[FakeTensor]", functions.arguments[2]))


def proxies(vm: VM, carried: Sequence[FakeTensor], differentiable: bool = False) -> tuple[FakeTensor, ...]:
    """Proxies with the layouts of the carried tensors, while a loop is recorded. `differentiable`: those of float types
    require gradients."""
    return tuple(
        subgraph_capture.proxy_like(vm.trace, f, differentiable and has_gradients(f.dtype)) for f in carried
    )


@function(cast(FunctionType, polyfills.end_loop))
def _end_loop(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The final values of a loop."""
    functions, values, condition, results = args
    assert isinstance(functions, RecordedPair)
    check_quiet(vm, functions)
    carried = cast("Sequence[FakeTensor]", functions.arguments[2])
    if not _is_condition(vm, condition):
        raise subgraph_capture.refuse("a loop whose condition is not a data-dependent tensor")
    next_values = [b for _, b in pairs_of(results, results).tensors]
    _check_same_metadata(carried, next_values, "a loop")
    end = mark(vm.trace)
    step = RecordedFunction(cut_out(vm.trace, functions.marks[1], end), next_values)
    test = RecordedFunction(cut_out(vm.trace, functions.marks[0]), [cast(FakeTensor, condition)])
    proxies = cast("Sequence[FakeTensor]", values)
    final = _as_node(vm, Loop(len(carried)), (test, step), carried, proxies)
    vm.assumptions.choosing -= 1
    return _with_tensors(results, iter(final))


@function(cast(FunctionType, polyfills.check_carry))
def _check_carry(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """Compare the carried values before and after a step of a scan, whose other results are tensors."""
    before, after, outputs = (cast("Sequence[object]", values) for values in args)
    _check_same_metadata(before, after, "a scan")
    _check_same_metadata(outputs, outputs, "a scan")


def _check_same_metadata(before: Sequence[object], after: Sequence[object], what: str) -> None:
    """Raise RefusedOperator if the values `after` a step are not tensors of the types and layouts of those `before`."""
    specs = [
        [subgraph_capture.with_own_storage(x.spec) if type(x) is FakeTensor else None for x in values]
        for values in (before, after)
    ]
    if specs[0] != specs[1] or None in specs[0]:
        raise RefusedOperator(
            Reason(UNSUPPORTED_CALL, f"{what} whose values change their type or layout, which torch refuses")
        )


def _as_node(
    vm: VM,
    rule: Rule,
    functions: tuple[RecordedFunction, RecordedFunction],
    first: Sequence[FakeTensor],
    proxies: Sequence[FakeTensor] = (),
    written: Collection[int] = (),
    numbers: int = 0,
) -> list[FakeTensor]:
    """Record a program on the tensors `first` and all operands that its two functions read; return its results. The operands
    in the storages `written` take the values that the functions leave in them. `numbers`: how many of the last results stand
    for Python's numbers."""
    program, operands, targets = program_of(vm, rule, functions, first, proxies, written, numbers)
    results = record(vm.trace, program, operands)
    for target, value in zip(targets, results):
        vm.call_native(torch.Tensor.copy_, (target, value))
    return results[len(targets) :]


def program_of(
    vm: VM,
    rule: Rule,
    functions: tuple[RecordedFunction, RecordedFunction],
    first: Sequence[FakeTensor],
    proxies: Sequence[FakeTensor] = (),
    written: Collection[int] = (),
    numbers: int = 0,
    held: Mapping[Node, FakeTensor] | None = None,
) -> tuple[Program, list[object], list[FakeTensor]]:
    """A program on the tensors `first` and all operands that its two functions read, these operands, and the tensors whose
    last values are its first results: those in the storages `written`. `held`: the proxies that hold the numbers which the
    functions take."""
    trace = vm.trace
    own = [f.torch_node for f in proxies if f.torch_node is not None]
    holders = {n: f.torch_node for n, f in (held or {}).items() if f.torch_node is not None}
    for result in itertools.chain(*(each.results for each in functions)):
        if result.torch_node is None:  # an input that nothing has read
            trace.inputs.torch_node(result)
    operands = subgraph_capture.operands(trace, functions, [*own, *holders])
    placeholders = [*own, *operands.nodes]
    targets = _written_operands(trace, operands.tensors, written)
    nodes = [f.torch_node for f in targets if f.torch_node is not None]
    graphs = tuple(
        replace(f, results=[*targets, *f.results]).graph(placeholders, nodes, holders) for f in functions
    )
    return Program(rule, graphs, numbers), [*first, *operands.tensors, *operands.numbers], targets


def _written_operands(
    trace: Trace, operands: Sequence[FakeTensor], written: Collection[int]
) -> list[FakeTensor]:
    """The operands in the storages `written`. Raises Unsupported where several share one, or where autograd records the
    write: its history and the version of an environment tensor change only in one branch."""
    found = [f for f in operands if f.storage_key in written]
    if len({f.storage_key for f in found}) < len(found):
        raise subgraph_capture.refuse("branches that write a tensor which shares memory with another")
    if any(f.requires_grad for f in found) and torch.is_grad_enabled():
        raise subgraph_capture.refuse("branches that write a tensor in place, with gradients enabled")
    if any(trace.inputs.in_storage(f.storage_key) for f in found) and not torch.is_inference_mode_enabled():
        raise subgraph_capture.refuse("branches that write an input, whose version eager changes in one only")
    return found
