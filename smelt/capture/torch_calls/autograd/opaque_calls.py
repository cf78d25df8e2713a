"""Opaque calls: a custom `autograd.Function` and a checkpoint are one call each of the torch-level graph.

The compiled graph calls the user's code for real, so that its forward and backward are autograd's own. The trace runs that
code on fakes, so that what it reads is guarded. It may change nothing outside: an effect is replayed after the graph, when
the call has happened. What the graph holds of the user's objects must stay as it is (`check_held`).
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
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING, NULL, FunctionType, MethodType, is_identity
from smelt.capture.environment.side_effects import Advance, Call
from smelt.capture.semantics import cells
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS


@contextmanager
def natively(vm: VM, function: object) -> Iterator[None]:
    """Inside, native code that calls `function` has it run for real instead of interpreted by the machine."""
    before, vm.frames.running_natively = vm.frames.running_natively, function
    try:
        yield
    finally:
        vm.frames.running_natively = before


def run_opaque(
    vm: VM, function: Callable[..., object], args: Args, kwargs: Kwargs, run: Callable[[], object]
) -> object:
    """Records `function(*args, **kwargs)` as one torch-level call and returns its results on fakes, which `run` computes.

    Raises Unsupported where the call could not be repeated by the graph: it changes environment objects, or comes after a
    change of one, or holds an object that the program made. What comes after a change may be a call of which there will be a
    joint graph: then its operators run, and the call itself does not.
    """
    target = OpaqueCall(function, args, kwargs, lambda f: _is_fresh(vm, f))
    if vm.contexts.tokens or any(type(e) not in (Call, Advance) for e in vm.env.log.effects()):
        plain = vm.trace.numbers.symbols is None  # else each number would have a graph of its own
        if not (vm.trace.autograd.wants_joint and plain):
            raise unsupported(f"{_name(function)} after a change of an environment object", UNSUPPORTED_EFFECT)
        target.repeatable = False
    for value in (*args, *kwargs.values()):
        _hold(vm, value)
    before = vm.env.log.changed
    out = vm.trace.torch_recorder.run_opaque(target, run)
    if vm.env.log.changed != before:
        raise unsupported(f"{_name(function)} changes an environment object", UNSUPPORTED_EFFECT)
    return out


def _name(target: object) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _is_size(value: object) -> bool:
    """Whether `value` is a number that is computed from sizes of tensors: a graph hands it on, as it does tensors."""
    return type(value) in NUMBERS and cast(Symbol, cast(torch.SymInt, value).node).size is not None


def _is_fresh(vm: VM, made: FunctionType | types.CellType) -> bool:
    return id(made) not in vm.env.sources


def _hold(vm: VM, value: object, depth: int = 0) -> None:
    """The graph is going to hold an argument of an opaque call: guards which object it is. Raises Unsupported for an
    object that the program made, unless each call of the graph makes it anew."""
    kind = type(value)
    if kind is FakeTensor or kind in LEAF_TYPES or _is_size(value):
        return
    if type(value) is FunctionType and _is_fresh(vm, value):
        _hold_function(vm, value, depth)
    elif id(value) in vm.env.sources and kind not in (list, tuple, dict):
        vm.env.facts.use_identity(value)
    elif is_identity(value):
        if isinstance(value, type) and vm.env.sources.is_created_class(value):
            raise unsupported(f"the class {value.__qualname__} made inside the function", UNSUPPORTED_OBJECT)
    elif kind in _PARTS:
        for part in _PARTS[kind](value):
            _hold(vm, part, depth)
    else:
        raise unsupported(
            f"a {kind.__qualname__} made inside the function is held by a graph", UNSUPPORTED_OBJECT
        )


_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    list: lambda x: x,
    tuple: lambda x: x,
    dict: lambda x: (*x, *x.values()),
    functools.partial: lambda x: (x.func, *x.args, *x.keywords.values()),
    MethodType: lambda x: (x.__func__, x.__self__),
}


def _hold_function(vm: VM, made: FunctionType, depth: int) -> None:
    """A function that the trace made. Its variables must stay as they are now."""
    written = {
        i.argval for i in dis.get_instructions(made.__code__) if i.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    if depth > _DEPTH or not written.isdisjoint(made.__code__.co_freevars):
        raise unsupported(
            "a function that a graph holds refers to itself or sets a variable", UNSUPPORTED_OBJECT
        )
    for cell in made.__closure__ or ():
        if not _is_fresh(vm, cell) and not cells.is_cell_written(vm, cell) and cells.has_contents(vm, cell):
            _hold(vm, cells.read_cell_object(vm, cell), depth + 1)
            continue
        held = _contents(vm, cell)
        if held is NULL:
            raise unsupported("a function that a graph holds has an empty variable", UNSUPPORTED_OBJECT)
        _hold(vm, held, depth + 1)
        vm.held.cells.append((cell, held))
    for part in (*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values()):
        _hold(vm, part, depth + 1)


_DEPTH = 8  # how deep functions that the trace made may refer to each other


def _contents(vm: VM, cell: types.CellType) -> object:
    held = vm.env.overlay.cell(cell)
    return NULL if held is MISSING else held


def check_held(vm: VM) -> None:
    """Raises Unsupported where a variable of a function that a graph holds was changed after the call."""
    for cell, held in vm.held.cells:
        if _contents(vm, cell) is not held:
            raise unsupported(
                "a variable of a function that a graph holds is changed later", UNSUPPORTED_EFFECT
            )
