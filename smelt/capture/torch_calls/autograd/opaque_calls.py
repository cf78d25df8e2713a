"""Opaque calls: a custom `autograd.Function` or a checkpoint is one call of the torch-level graph.

The compiled graph calls the user's code eagerly, so that autograd runs its forward and backward. The trace runs that code on
fakes, so that what it reads is guarded. The code may not mutate the environment, since effects are replayed after the
graph. The user's objects that the graph holds must stay unchanged (`check_held`).
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, unsupported
from smelt.capture.base.native_functions import INTERPRETED
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING, NULL, FunctionType, MethodType, is_identity
from smelt.capture.environment import container_contents
from smelt.capture.environment.side_effects import Advance, Call
from smelt.capture.semantics import cells
from smelt.capture.semantics.calls.calls import CALLERS
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS

# A foreign backend may compile the graph that it receives, with such a call, like any function.
INTERPRETED.update(f for f in vars(OpaqueCall).values() if type(f) is FunctionType)


@contextmanager
def natively(vm: VM, function: object) -> Iterator[None]:
    """Within the context, `function` runs natively when native code calls it: the VM does not interpret it."""
    before, vm.frames.running_natively = vm.frames.running_natively, function
    try:
        yield
    finally:
        vm.frames.running_natively = before


def run_opaque(
    vm: VM, function: Callable[..., object], args: Args, kwargs: Kwargs, run: Callable[[], object]
) -> object:
    """Record `function(*args, **kwargs)` as one torch-level call; return its results on fakes, which `run` computes.

    Raises Unsupported where the graph cannot repeat the call: it mutates environment objects, or follows such a mutation, or
    holds an object that the program created. After a mutation, a call may still be recorded for a joint graph, which runs
    the call's operators instead of the call.
    """
    views = [container_contents.native_view(vm.env, value) for value in args]
    named = {name: container_contents.native_view(vm.env, value) for name, value in kwargs.items()}
    target = OpaqueCall(function, views, named, lambda f: _is_fresh(vm, f))
    if vm.contexts.tokens or any(type(e) not in (Call, Advance) for e in vm.env.log.effects()):
        plain = vm.trace.numbers.symbols is None  # else each number would need its own graph
        if not (vm.trace.autograd.wants_joint and plain):
            raise unsupported(
                f"{_name(function)} after a change of an environment object", UNSUPPORTED_EFFECT
            )
        target.repeatable = False
    for value in (*args, *kwargs.values()):
        _hold_containers(vm, target, value)
    for value in (*views, *named.values()):
        _hold(vm, value)
    before = vm.env.log.changed
    out = vm.trace.torch_recorder.run_opaque(target, run)
    if vm.env.log.changed != before:
        raise unsupported(f"{_name(function)} changes an environment object", UNSUPPORTED_EFFECT)
    return out


def _call_opaque(vm: VM, fn: OpaqueCall, args: Args, kwargs: Kwargs) -> object:
    """Interpret an opaque call of a graph that a foreign backend compiles."""
    vm.frames.call_site = None
    vm.env.facts.use_identity(fn)
    filled, named = fn.arguments(tuple(args))
    return vm.call(fn.function, filled, named)


CALLERS[OpaqueCall] = _call_opaque


def _name(target: object) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _is_size(value: object) -> bool:
    """Whether `value` is a number that is computed from tensor sizes: the graph passes it on like a tensor."""
    return type(value) in NUMBERS and cast(Symbol, cast(torch.SymInt, value).node).size is not None


def _is_fresh(vm: VM, x: FunctionType | types.CellType) -> bool:
    return id(x) not in vm.env.sources


def _hold_containers(vm: VM, target: OpaqueCall, value: object) -> None:
    """Note what the containers in an argument hold. The graph copies them for each call, so it would miss a later change."""
    if type(value) in (list, dict):
        vm.held.containers.append((target, cast("list[object]", value), _items(vm, value)))
    for item in _items(vm, value):
        if all(held is not target or container is not item for held, container, _ in vm.held.containers):
            _hold_containers(vm, target, item)


def _items(vm: VM, value: object) -> list[object]:
    """The items of a list or tuple, or the keys and values of a dictionary, as the trace sees them."""
    contents = vm.env.overlay.now(value)
    if type(contents) is dict:
        return [*contents, *contents.values()]
    return list(contents) if isinstance(contents, (list, tuple)) else []


def _hold(vm: VM, value: object, depth: int = 0) -> None:
    """Guard the identity of an argument of an opaque call, which the graph will hold. Raises Unsupported for an object that
    the program created, unless each call of the graph creates it again."""
    kind = type(value)
    if kind is FakeTensor or kind in LEAF_TYPES or _is_size(value):
        return
    if type(value) is FunctionType and _is_fresh(vm, value):
        _hold_function(vm, value, depth)
    elif id(value) in vm.env.sources and kind not in (list, tuple, dict):
        vm.env.facts.use_identity(value)
    elif is_identity(value):
        if isinstance(value, type) and vm.env.sources.is_created_class(value):
            raise unsupported(
                f"the class {value.__qualname__} created inside the function", UNSUPPORTED_OBJECT
            )
    elif kind in _CONTENTS:
        for item in _CONTENTS[kind](value):
            _hold(vm, item, depth)
    else:
        raise unsupported(
            f"a {kind.__qualname__} created inside the function is held by a graph", UNSUPPORTED_OBJECT
        )


_CONTENTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    list: lambda x: x,
    tuple: lambda x: x,
    dict: lambda x: (*x, *x.values()),
    functools.partial: lambda x: (x.func, *x.args, *x.keywords.values()),
    MethodType: lambda x: (x.__func__, x.__self__),
}


def _hold_function(vm: VM, created: FunctionType, depth: int) -> None:
    """Hold a function that the program created. Its variables must stay unchanged."""
    written = {
        i.argval
        for i in dis.get_instructions(created.__code__)
        if i.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    if depth > _MAX_DEPTH or not written.isdisjoint(created.__code__.co_freevars):
        raise unsupported(
            "a function that a graph holds refers to itself or sets a variable", UNSUPPORTED_OBJECT
        )
    for cell in created.__closure__ or ():
        if not _is_fresh(vm, cell) and not cells.is_cell_written(vm, cell) and cells.has_contents(vm, cell):
            _hold(vm, cells.read_cell_object(vm, cell), depth + 1)
            continue
        held = _contents(vm, cell)
        if held is NULL:
            raise unsupported("a function that a graph holds has an empty variable", UNSUPPORTED_OBJECT)
        _hold(vm, held, depth + 1)
        vm.held.cells.append((cell, held))
    for default in (*(created.__defaults__ or ()), *(created.__kwdefaults__ or {}).values()):
        _hold(vm, default, depth + 1)


_MAX_DEPTH = 8  # of references between functions that the program created


def _contents(vm: VM, cell: types.CellType) -> object:
    held = vm.env.overlay.cell(cell)
    return NULL if held is MISSING else held


def check_held(vm: VM) -> None:
    """Raise Unsupported where a variable of a function, or the contents of a container, that a graph holds changed after the
    call."""
    for cell, held in vm.held.cells:
        if _contents(vm, cell) is not held:
            raise unsupported(
                "a variable of a function that a graph holds is changed later", UNSUPPORTED_EFFECT
            )
    for target, container, items in vm.held.containers:
        now = _items(vm, container)
        if len(now) != len(items) or any(a is not b for a, b in zip(now, items)):
            if not vm.trace.autograd.wants_joint:
                raise unsupported("a container that a graph holds is changed later", UNSUPPORTED_EFFECT)
            target.repeatable = False
