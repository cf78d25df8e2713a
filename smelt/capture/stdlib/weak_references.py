"""Weak references: the lifetime of an object depends on the whole program, of which capture sees a part.

Objects that the program creates and drops are dropped during capture too, except tensors and others that `Sources` or the
trace retains; a frame that an exception left holds its variables as long as a traceback holds the frame. Environment objects
live until the compiled frame replays what changed. Where the program could observe that, the graph breaks, so that the frame
replays it before, or the call runs eagerly.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import FUNCTIONS, Args, Handler, Kwargs, builtin, unsupported
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    MISSING,
    CellType,
    FunctionType,
    is_constant,
    is_identity,
    is_lookup_key,
    items_of,
)
from smelt.capture.base.vm_frames import WeakCallback
from smelt.capture.environment import wrap_values
from smelt.capture.environment.mutation_log import Overwritten
from smelt.capture.graph_breaks import finalizers
from smelt.capture.graph_breaks.continuation_stack import is_continuation_stack
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.semantics.attributes.instance_attributes import READ_EFFECTS
from smelt.capture.semantics.calls.calls import CALLERS
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.object_lifetimes import lifetimes_of
from smelt.guards.source import Source, SourceKind


def _eager_fallback(detail: str) -> Unsupported:
    """An error for programs that observe lifetimes; no graph break, as a resume function's caller keeps objects alive."""
    error = unsupported(detail)
    error.breaks = False
    return error


# ------------------------------------------------------------------------------------------------- creation


def _constructor_handler(reference: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args:
            return reference(*args, **kwargs)
        target, *callback = args
        if vm.env.sources.is_created_function(cast(FunctionType, target)):
            raise _eager_fallback("a weak reference to a function created in the call")
        if callback and callback[0] is not None and id(target) in vm.env.sources:
            raise _eager_fallback("a callback for the end of an object of the environment")
        if _is_created_tensor(vm, target) and (reference is weakref.proxy or callback):
            raise _eager_fallback("a weak proxy of, or a callback for, a tensor created in the call")
        callbacks = [None if fn is None else WeakCallback(vm, fn) for fn in callback]
        return vm.call_native(reference, [target, *callbacks], kwargs)

    return handler


@builtin(weakref.WeakMethod)
def _weak_method(vm: VM, args: Args, kwargs: Kwargs) -> object:
    raise unsupported("a weak reference to a method, which also references the function weakly")


for _reference in (weakref.ref, weakref.proxy):
    builtin(_reference)(_constructor_handler(_reference))


def _insertion_handler(fn: FunctionType) -> Handler:
    """Handler of a method that adds its argument to a weak container."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        values = [x for value in args[1:] for x in (value, *_contents(value))]
        if any(_is_created_tensor(vm, x) for x in values):
            raise _eager_fallback(f"{fn.__qualname__} of a tensor created in the call")
        mortal = [x for x in values if _may_die(vm, x)]
        if mortal:
            detail = f"{fn.__qualname__} of an object of the environment"
            in_environment = id(args[0]) in vm.env.sources and all(_is_held_by_others(vm, x) for x in mortal)
            raise unsupported(detail) if in_environment else _eager_fallback(detail)
        return interpret(vm, fn, args, kwargs)

    return handler


def _may_die(vm: VM, x: object) -> bool:
    return id(x) in vm.env.sources and not is_constant(x) and not is_identity(x)


def _is_held_by_others(vm: VM, x: object) -> bool:
    """Whether the captured function got `x` from an object that lives on when a resume function drops its variables."""
    frame, source = vm.frames.root, vm.env.sources[id(x)].root
    if source.kind == "const" or frame is None or frame.code.original is None:
        return True
    return source.key in frame.user_code.co_freevars


def _is_created_tensor(vm: VM, x: object) -> bool:
    return isinstance(x, torch.Tensor) and id(x) not in vm.env.sources


def _contents(x: object) -> list[object]:
    if isinstance(x, dict):
        return [part for pair in items_of(x) for part in pair]
    return items_of(x) if isinstance(x, CONTAINER_BASES) else list(x) if type(x) is tuple else []


for _container in (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
    for _name in ("__init__", "__setitem__", "__ior__", "add", "update", "setdefault"):
        _method = vars(_container).get(_name)
        if type(_method) is FunctionType:
            FUNCTIONS[_method] = _insertion_handler(_method)


# `find_reachable` has checked that the target is an object of the environment
provide(weak_reference=weakref.ref)
RECONSTRUCTION_KINDS[weakref.ref] = ReconstructionKind(
    lambda x: (x(),), lambda x, text: f"weak_reference({text(x())})"
)


# ---------------------------------------------------------------------------------------------- use


def check_callbacks(vm: VM) -> None:
    """Raise Unsupported at the end of the call if an object with a callback is alive: what retains it may be capture. The
    callbacks by which torch's compiler forgets modules that it has seen show a program nothing."""
    callbacks = (reference() for reference in vm.frames.weak_callbacks)
    if any(f is not None and not _is_of_torchs_compiler(f) for f in callbacks):
        raise _eager_fallback("an object that is alive at the end of the call has a callback")


def _is_of_torchs_compiler(callback: WeakCallback) -> bool:
    return str(getattr(callback.function, "__module__", None)).startswith("torch._dynamo.")


def _refuse_callback(vm: VM, reference: object) -> None:
    raise _eager_fallback("the callback of a weak reference is read")


READ_EFFECTS[vars(weakref.ref)["__callback__"]] = _refuse_callback


@builtin(weakref.getweakrefcount, weakref.getweakrefs)
def _refuse_count(vm: VM, args: Args, kwargs: Kwargs) -> object:
    raise _eager_fallback("the weak references to an object are counted")


def _dereference(vm: VM, reference: weakref.ref[object], args: Args, kwargs: Kwargs) -> object:
    """`reference()`."""
    sources = vm.env.sources
    if args or kwargs:
        return reference(*args, **kwargs)
    found = reference()
    if id(reference) in sources:
        if found is not None and not _is_held(vm, found) and not _is_held_elsewhere(vm, found):
            error = unsupported("a weak reference to an object of which the call changed a holder")
            error.continues = True
            raise error
        return wrap_values.wrap(vm.env, found, sources[id(reference)].child("call", None))
    if found is not None and id(found) in sources and not _is_held(vm, found):
        raise _eager_fallback("a weak reference to an object of the environment that may be dead")
    if _is_created_tensor(vm, found) and not any(value is found for value in _variables(vm)):
        raise _eager_fallback("a weak reference to a tensor created in the call that may be dead")
    return found


CALLERS[weakref.ref] = _dereference


def _is_held(vm: VM, x: object) -> bool:
    """Whether eager still holds the environment object `x`: in a variable, or in an unchanged object that is itself held."""
    if any(value is x for value in _variables(vm)):
        return True
    env = vm.env
    source = lifetimes_of(env.facts.guards).sources.get(id(x)) or env.sources.get(id(x))
    if source is None or source.base is None or env.log.changes_cells:
        return source is not None and source.kind == "const" and (is_identity(x) or type(x) is dict)
    owner = env.sources.object_at(source.base)
    if isinstance(owner, weakref.ref):
        return False
    changed = owner is None or owner in env.log or env.log.has_written_any_name(owner)
    return not changed and _is_held(vm, owner)


def _is_held_elsewhere(vm: VM, x: object) -> bool:
    """Whether `x`, which the environment held before the call, cannot have lost its last reference in any call that the
    guards accept: neither where the trace stored or deleted something, nor as an argument of a resume function, whose caller
    still holds it."""
    root = vm.frames.root
    if root is not None and root.code.original is not None:
        held = {id(v) for v in _variables(vm)}
        arguments = (v for v in vm.env.wrapped.objects.values() if vm.env.sources[id(v)].kind == "arg")
        if any(id(v) not in held for v in arguments):
            return False
    return all(_guard_no_holder(vm, item, x) for item in vm.env.log.overwritten())


def _guard_no_holder(vm: VM, item: Overwritten, x: object) -> bool:
    """Guard that nothing was there before the call, or a leaf or tensor, which cannot hold `x`; False if no guard can.
    Raises Unsupported for a key or an element of a set: guards hold those."""
    if item.kind == "element" and is_constant(item.before):
        return True
    if item.kind == "element" and vm.assumptions.may_break:
        raise _eager_fallback("a weak reference to an object of which the call changed a dictionary or set")
    if item.kind == "member":  # tensors and flags
        return not isinstance(x, torch.Tensor)
    source, guard = vm.env.sources.get(id(item.owner)), vm.env.facts.guard
    if item.kind == "iterator" and type(item.owner) in _NUMBER_ITERATORS:
        return True
    if source is not None and item.kind in _KINDS and is_lookup_key(item.name):
        kind, absence = _KINDS[item.kind]
        if item.before is MISSING and absence:
            absent = item.name if absence == "not_in_dict" else (item.name, False)
            guard(absence, source, absent, key=item.name)
            return True
        checks = list(_checks(source.child(kind, item.name), item.before, isinstance(x, torch.Tensor)))
        if None not in checks:
            for check in checks:
                guard(*cast("tuple[str, Source, object]", check))
            return True
    # No guard holds for later calls. Without graph breaks, what it is in this call decides.
    return not vm.assumptions.may_break and not any(held is x for held in finalizers.held_by(item.before))


# The kind of source of what was overwritten, and the guard that nothing was there.
_KINDS: dict[str, tuple[SourceKind, str]] = {
    "attribute": ("attr", "not_in_dict"),
    "slot": ("member", "slot"),
    "key": ("item", "contains"),
    "item": ("item", ""),
    "global": ("item", "contains"),
    "cell": ("member", ""),
}
_NUMBER_ITERATORS = (type(iter(range(0))), type(iter(range(1 << 70))), itertools.count, type(iter("")))
_MOST_ITEMS = 8


def _checks(source: Source, value: object, for_tensor: bool) -> Iterator[tuple[str, Source, object] | None]:
    """Guards that the value at `source` holds nothing but leaves and tensors (`for_tensor`: no tensors); None if it does."""
    is_tensor = type(value) in (torch.Tensor, torch.nn.Parameter)
    if type(value) in LEAF_TYPES or (is_tensor and not for_tensor):
        yield "type", source, type(value)
    elif (
        type(value) in (tuple, list) and len(parts := list(cast("tuple[object, ...]", value))) <= _MOST_ITEMS
    ):
        yield "type", source, type(value)
        yield "len", source, len(parts)
        for i, part in enumerate(parts):
            yield from _checks(source.child("item", i), part, for_tensor)
    else:
        yield None


def _variables(vm: VM) -> Iterator[object]:
    """Values in the user's running frames."""
    frame = vm.frame
    while frame is not None:
        for value in () if is_continuation_stack(frame.function) else (*frame.locals, *frame.stack):
            yield value
            if type(value) is CellType:
                yield vm.env.overlay.cell(value)
        frame = frame.parent
