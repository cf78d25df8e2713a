"""Wrappers of `functools` (partials, caches, single dispatch), and `inspect.signature`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import cast

from smelt.capture.base.call_handlers import CODE_HANDLERS, Args, Kwargs, builtin, function, unsupported
from smelt.capture.base.native_functions import nested_codes
from smelt.capture.base.value_kinds import MISSING, FunctionType, cell_value, instance_dict
from smelt.capture.base.vm_frames import VMCallable
from smelt.capture.environment import container_contents, wrap_values
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls import library_reads, python_functions
from smelt.capture.vm.vm import VM

_native_signature: Callable[..., inspect.Signature] = inspect.signature
_native_update_wrapper: Callable[..., object] = functools.update_wrapper
_native_partial: Callable[..., object] = functools.partial
_native_lru_cache: Callable[..., Callable[..., object]] = functools._lru_cache_wrapper


@builtin(functools.partial)
def _partial(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if args and type(args[0]) is functools.partial and not instance_dict(args[0]):
        # the constructor flattens the inner partial: its contents are read, so they are guarded
        function, bound, keywords = attributes.partial_parts(vm, args[0])
        if args[-1] is not attributes.PLACEHOLDER:  # otherwise the constructor raises
            args, kwargs = (function, *attributes.fill_placeholders(bound, args[1:])), {**keywords, **kwargs}
    if args:
        vm.env.facts.use_class(type(args[0]))  # the constructor raises unless it is callable
    return _native_partial(*args, **kwargs)


@builtin(functools._lru_cache_wrapper)
def _lru_cache_wrapper(vm: VM, args: Args, kwargs: Kwargs) -> object:
    cached = _native_lru_cache(*args, **kwargs)
    vm.env.sources.register_created_function(cached)
    return cached


@function(functools.update_wrapper)
def _update_wrapper(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Interpreted if it would change an environment function."""
    if id(args[0]) in vm.env.sources:
        return python_functions.interpret(vm, cast(FunctionType, functools.update_wrapper), args, kwargs)
    return _native_update_wrapper(*args, **kwargs)


@function(inspect.signature)
def _signature(vm: VM, args: Args, kwargs: Kwargs) -> object:
    passed = args[0]
    target = passed.function if type(passed) is VMCallable else passed
    library_reads.use_signature(vm.env, target)
    return _native_signature(target, *args[1:], **kwargs)


# ----------------------------------------------------------------------------------- functools.singledispatch


def _nested_code(outer: FunctionType, name: str) -> types.CodeType:
    return next(code for code in nested_codes(outer.__code__) if code.co_name == name)


def _closure_value(function: FunctionType, name: str) -> object:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents


def _select_implementation(vm: VM, dispatch: FunctionType, cls: type) -> object:
    """The registered function that `dispatch(cls)` selects; the registry is guarded."""
    registry = cast("dict[object, object]", _closure_value(dispatch, "registry"))
    if id(dispatch) in vm.env.sources:
        at = dispatch.__code__.co_freevars.index("registry")
        wrap_values.wrap(vm.env, registry, vm.env.sources.const(dispatch).child("cell", at))
        container_contents.open_for_native(vm.env, registry)
    vm.env.facts.use_class(cls)
    return dispatch(cls)


def _dispatch(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    return _select_implementation(vm, fn, cast(type, args[0]))


def _wrapper(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return fn(*args, **kwargs)  # raises
    dispatch = cast(FunctionType, _closure_value(fn, "dispatch"))
    if id(fn) in vm.env.sources:
        vm.env.sources.const(dispatch)
    chosen = _select_implementation(vm, dispatch, cast(type, attributes.load_attr(vm, args[0], "__class__")))
    return vm.call(chosen, args, kwargs)


def _register(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    contents = map(cell_value, fn.__closure__ or ())
    if any(id(v) in vm.env.sources for v in contents if v is not None and v is not MISSING):
        raise unsupported(f"{fn.__qualname__} of a function of the environment")
    return fn(*args, **kwargs)


_SINGLE_DISPATCH = cast(FunctionType, functools.singledispatch)
_native_single_dispatch: Callable[..., object] = functools.singledispatch
CODE_HANDLERS[_nested_code(_SINGLE_DISPATCH, "dispatch")] = _dispatch
CODE_HANDLERS[_nested_code(_SINGLE_DISPATCH, "wrapper")] = _wrapper
CODE_HANDLERS[_nested_code(_SINGLE_DISPATCH, "register")] = _register


function(functools.singledispatch)(lambda vm, args, kwargs: _native_single_dispatch(*args, **kwargs))


for _found in (code for code in nested_codes(_SINGLE_DISPATCH.__code__) if code.co_name == "<lambda>"):
    CODE_HANDLERS[_found] = _register
