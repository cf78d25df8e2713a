"""`torch.cond` and `while_loop` as parts of the graph.

Both branches of a condition that only the graph knows are run by the machine, for guards. Where they do nothing but compute
a little, cannot raise and need no gradient, both are computed and each element of the results is chosen (of a branch that
is not taken, the gradient would be NaN times zero). Else they become graphs of their own, of which one runs
(`subgraph_capture.py`). Eager has torch's compiler look at them, which refuses branches that do more than compute.
Where they do, the frame is captured again without (`Attempt.selects`), and the graph breaks at the condition. So it is
with the functions of a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.autograd.recompute_classes import class_of
from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING
from smelt.capture.reconstruction.reconstruction_order import contents_of_created
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.torch_calls import subgraph_capture
from smelt.capture.torch_calls.subgraph_capture import TapePosition, Part, mark, cut_out
from smelt.capture.torch_calls.subgraph_nodes import record
from smelt.capture.vm.vm import VM
from smelt.graph import torch_settings
from smelt.graph.ir import Node
from smelt.graph.subgraphs import Choice, Loop, Program, Rule
from smelt.ops.may_raise import must_run
from smelt.torch_private import maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in

_MOST = 32  # nodes of both branches
_CHEAP = frozenset(("view", "creation", "pointwise", "transcendental", "movement", "reduction", "input"))


@dataclass
class _Functions:
    """Two functions that are being recorded. `given`: what they are and are called with; `reached`: these, and what the
    program has put into environment objects. `holds`: the contents of objects that the program has made, of those that are
    reached. `closed`: why nothing outside may change, before. `marks`: before the first, and before the second."""

    given: tuple[object, ...]
    reached: list[object]
    holds: list[object]
    closed: str
    marks: list[TapePosition]


def _begun(vm: VM, *given: object) -> _Functions:
    vm.assumptions.choosing += 1
    log, variables = vm.env.log, vm.contexts.variables
    stored = [v for e in log.effects() for v in vars(e).values() if v is not e.target and v is not MISSING]
    reached = [*given, *stored, *variables.values()]
    holds = contents_of_created(vm.env.sources.find, reached)
    closed, log.refusal = log.refusal, "a function of an operator of higher order changes an outside object"
    return _Functions(given, reached, holds, closed, [mark(vm.trace)])


def _may_record(vm: VM) -> bool:
    """Whether functions may be recorded that might not run."""
    if maybe_current_level() is not None:
        raise subgraph_capture.refuse("an operator of higher order inside of a transform of torch.func")
    return vm.assumptions.selects and not vm.trace.call.is_opaque


def _check_quiet(vm: VM, functions: _Functions) -> None:
    """Raises Unsupported where the functions did more than compute."""
    settings = {torch_settings.read(), *(m.settings for m in functions.marks)}
    holds = contents_of_created(vm.env.sources.find, functions.reached)
    if len(settings) > 1 or vm.contexts.tokens or holds != functions.holds:
        raise subgraph_capture.refuse("functions of an operator of higher order that do more than compute")
    vm.env.log.refusal = functions.closed


@function(cast(FunctionType, polyfills.next_function))
def _next(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """The first function has run."""
    (functions,) = args
    assert isinstance(functions, _Functions)
    functions.marks.append(mark(vm.trace))


# ---- branches


def _is_condition(vm: VM, pred: object) -> bool:
    if type(pred) is not FakeTensor or pred.dtype is not torch.bool or pred.device.type != "cpu":
        return False
    return pred.numel() == 1 and vm.trace.constants.value(pred) is None


@function(cast(FunctionType, polyfills.begin_choice))
def _begin(vm: VM, args: Args, kwargs: Kwargs) -> _Functions | None:
    """What is known before the branches run, if `pred` is a condition that only the graph knows, and both may be tried."""
    pred, *given = args
    if not isinstance(pred, torch.Tensor):
        return None
    return _begun(vm, *given) if _may_record(vm) and _is_condition(vm, pred) else None


@function(cast(FunctionType, polyfills.choose))
def _choose(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The result of one branch or the other. Raises Unsupported, while a choice is open, where that is not what eager
    gives."""
    functions, pred, *results = args
    assert isinstance(functions, _Functions)
    _check_quiet(vm, functions)
    first, second = functions.marks
    added = [entry.node for entry in vm.trace.tape.entries[first.entries :]]
    before = {f.storage_key for entry in vm.trace.tape.entries[: first.entries] for f in fakes_in(entry.out)}
    before.update(f.storage_key for f in vm.trace.inputs)
    pairs = _pairs(results[0], results[1])
    if any({a.storage_key, b.storage_key} & before for a, b in pairs):
        raise subgraph_capture.refuse("branches that give what they were given")
    if len(added) <= _MOST and all(map(_is_small, added)) and all(itertools.starmap(_is_alike, pairs)):
        chosen = [_selected(vm, cast(FakeTensor, pred), a, b) for a, b in pairs]
    else:
        end = mark(vm.trace)
        after = Part(cut_out(vm.trace, second, end), [b for _, b in pairs])
        parts = Part(cut_out(vm.trace, first), [a for a, _ in pairs]), after
        chosen = _as_node(vm, Choice(), parts, [cast(FakeTensor, pred)])
    vm.assumptions.choosing -= 1
    return _rebuilt(results[0], iter(chosen))


def _is_small(node: Node) -> bool:
    return class_of(node).name in _CHEAP and not must_run(node)


def _is_alike(a: FakeTensor, b: FakeTensor) -> bool:
    return a.spec == b.spec and not a.requires_grad and not b.requires_grad


def _selected(vm: VM, pred: FakeTensor, a: FakeTensor, b: FakeTensor) -> FakeTensor:
    made = vm.call_native(torch.where, (vm.call_native(torch.Tensor.reshape, (pred, ())), a, b))
    if not isinstance(made, FakeTensor) or made.spec != a.spec:
        raise subgraph_capture.refuse("branches with tensors of such layouts")
    return made


def _pairs(a: object, b: object) -> list[tuple[FakeTensor, FakeTensor]]:
    """The tensors of two results that are alike in all else. Raises Unsupported."""
    if isinstance(a, FakeTensor) and isinstance(b, FakeTensor):
        if a.subclass is None and b.subclass is None:
            return [(a, b)]
    if isinstance(a, (tuple, list)) and type(a) is type(b) and type(a) in (tuple, list):
        others = cast("Sequence[object]", b)
        if len(a) == len(others):
            return [pair for x, y in zip(a, others) for pair in _pairs(x, y)]
    if type(a) is dict and type(b) is dict and list(a) == list(b):
        return [pair for key in a for pair in _pairs(a[key], b[key])]
    if type(a) is type(b) and type(a) in LEAF_TYPES and a == b:
        return []
    raise subgraph_capture.refuse("functions with other results")


def _rebuilt(value: object, tensors: Iterator[FakeTensor]) -> object:
    """`value` with these tensors in the place of its own."""
    if isinstance(value, FakeTensor):
        return next(tensors)
    if isinstance(value, (tuple, list)):
        return type(value)([_rebuilt(x, tensors) for x in value])
    if isinstance(value, dict):
        return {key: _rebuilt(x, tensors) for key, x in value.items()}
    return value


# ---- loops


@function(cast(FunctionType, polyfills.begin_loop))
def _begin_loop(vm: VM, args: Args, kwargs: Kwargs) -> _Functions | None:
    """What is known before the functions of a loop run, if it may be a part of the graph."""
    carried = args[2]
    if not _may_record(vm) or not isinstance(carried, (tuple, list)):
        return None
    if not carried or not all(type(f) is FakeTensor and f.subclass is None for f in carried):
        return None
    if torch.is_grad_enabled() and any(f.requires_grad for f in carried):
        return None
    return _begun(vm, *args)


@function(cast(FunctionType, polyfills.loop_values))
def _loop_values(vm: VM, args: Args, kwargs: Kwargs) -> tuple[FakeTensor, ...]:
    """What the functions of the loop are called with: any values of these shapes."""
    (functions,) = args
    assert isinstance(functions, _Functions)
    carried = cast("Sequence[FakeTensor]", functions.given[2])
    return tuple(subgraph_capture.stand_in(vm.trace, f) for f in carried)


@function(cast(FunctionType, polyfills.end_loop))
def _end_loop(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The values that the loop ends with."""
    functions, values, goes_on, results = args
    assert isinstance(functions, _Functions)
    _check_quiet(vm, functions)
    carried = cast("Sequence[FakeTensor]", functions.given[2])
    if not _is_condition(vm, goes_on):
        raise subgraph_capture.refuse("a loop whose condition is no tensor")
    given = [b for _, b in _pairs(results, results)]
    if [subgraph_capture.alone(f.spec) for f in carried] != [subgraph_capture.alone(f.spec) for f in given]:
        raise subgraph_capture.refuse("a loop whose values change their type or layout")
    end = mark(vm.trace)
    step = Part(cut_out(vm.trace, functions.marks[1], end), given)
    test = Part(cut_out(vm.trace, functions.marks[0]), [cast(FakeTensor, goes_on)])
    stand_ins = cast("Sequence[FakeTensor]", values)
    made = _as_node(vm, Loop(len(carried)), (test, step), carried, stand_ins)
    vm.assumptions.choosing -= 1
    return _rebuilt(results, iter(made))


def _as_node(
    vm: VM,
    rule: Rule,
    parts: tuple[Part, Part],
    first: Sequence[FakeTensor],
    stand_ins: Sequence[FakeTensor] = (),
) -> list[FakeTensor]:
    """The results of a program that is given the tensors `first`, and all that its functions read."""
    trace = vm.trace
    own = [f.torch_node for f in stand_ins if f.torch_node is not None]
    operands = subgraph_capture.operands(trace, parts, own)
    placeholders = [*own, *(f.torch_node for f in operands if f.torch_node is not None)]
    graphs = tuple(part.graph(placeholders) for part in parts)
    return record(trace, Program(rule, graphs), [*first, *operands])
