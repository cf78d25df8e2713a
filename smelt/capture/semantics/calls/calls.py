"""Calls, dispatched by the type of the callable (`CALLERS`).

`python_functions.py` executes Python functions, `native_calls.py` native calls, `class_construction.py` classes and
`nn_module_calls.py` `nn.Module`s. This module has the callables that delegate to another callable: bound methods, partials,
objects with `__call__`.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import types
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import CYTHON_FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.base.native_functions import PURE_TYPES
from smelt.capture.base.type_lookup import ABSENT, FUNCTION, NON_DATA
from smelt.capture.base.value_kinds import FunctionType, MethodType
from smelt.capture.base.vm_frames import Operands
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls.class_construction import construct
from smelt.capture.semantics.calls.lru_caches import call_lru_cached
from smelt.capture.semantics.calls.native_calls import (
    call_builtin,
    call_descriptor,
    call_method_wrapper,
    registered_or_native,
    run_native,
)
from smelt.capture.semantics.calls.nn_module_calls import call_module
from smelt.capture.semantics.calls.python_functions import call_function
from smelt.capture.semantics.calls.torchscript import call_script, call_script_module, refuse_script_method
from smelt.capture.vm.vm import VM
from smelt.torch_private import OpOverload, OpOverloadPacket, ScriptFunction, ScriptMethod

_module_call = nn.Module.__call__


def call(vm: VM, fn: object, args: Args, kwargs: Kwargs) -> object:
    """`fn(*args, **kwargs)`, dispatched by the type of `fn`."""
    caller = CALLERS.get(type(fn))
    if caller is not None:
        return caller(vm, fn, args, kwargs)
    if isinstance(fn, type):
        return construct(vm, fn, args, kwargs)
    return call_object(vm, fn, args, kwargs)


def call_method(vm: VM, fn: MethodType, args: Args, kwargs: Kwargs) -> object:
    """Call of a bound method: of its function, with the bound object prepended."""
    if id(fn) in vm.env.sources:
        function, owner = (attributes.load_bound_part(vm, fn, n) for n in ("__func__", "__self__"))
    else:
        function, owner = fn.__func__, fn.__self__
    if type(args) is Operands:
        args.insert(0, owner)
    else:
        args = (owner, *args)
    return call(vm, function, args, kwargs)


def call_partial(vm: VM, fn: functools.partial[object], args: Args, kwargs: Kwargs) -> object:
    """`functools.partial(...)(...)`. The contents of an environment partial are guarded."""
    target, bound, keywords = attributes.partial_parts(vm, fn)
    placeholders = sum(a is attributes.PLACEHOLDER for a in bound)
    if len(args) < placeholders:
        raise TypeError(
            f"missing positional arguments in 'partial' call; expected at least {placeholders}, got {len(args)}"
        )
    arguments = attributes.fill_placeholders(bound, args) if placeholders else (*bound, *args)
    return call(vm, target, arguments, {**keywords, **kwargs} if keywords else kwargs)


def call_getter(
    vm: VM, fn: operator.attrgetter[object] | operator.itemgetter[object], args: Args, kwargs: Kwargs
) -> object:
    """`operator.attrgetter(...)(obj)` and `operator.itemgetter(...)(obj)`."""
    vm.frames.call_site = None
    vm.env.facts.use_content(fn)
    keys = fn.__reduce__()[1]
    (obj,) = args
    if isinstance(fn, operator.attrgetter):
        values = [
            functools.reduce(lambda o, n: attributes.load_attr(vm, o, n), path.split("."), obj)
            for path in keys
        ]
    else:
        values = [vm.subscript(obj, key) for key in keys]
    return values[0] if len(values) == 1 else tuple(values)


def call_methodcaller(vm: VM, fn: operator.methodcaller, args: Args, kwargs: Kwargs) -> object:
    """`operator.methodcaller(...)(obj)`."""
    vm.frames.call_site = None
    vm.env.facts.use_content(fn)
    (obj,) = args
    target, bound = cast("tuple[object, tuple[str, ...]]", fn.__reduce__())
    if isinstance(target, functools.partial):  # the method has keyword arguments
        return call(vm, attributes.load_attr(vm, obj, target.args[0]), bound, dict(target.keywords))
    return call(vm, attributes.load_attr(vm, obj, bound[0]), bound[1:], {})


def call_alias(vm: VM, fn: types.GenericAlias, args: Args, kwargs: Kwargs) -> object:
    """`C[int](...)`: an instance of the class, with the alias as its `__orig_class__` if it can store it."""
    vm.frames.call_site = None
    instance = call(vm, attributes.load_attr(vm, fn, "__origin__"), args, kwargs)
    with contextlib.suppress(AttributeError, TypeError):
        attributes.store_attr(vm, instance, "__orig_class__", fn)
    return instance


def call_object(vm: VM, obj: object, args: Args, kwargs: Kwargs) -> object:
    """Call of an instance through the `__call__` of its class. Raises TypeError if there is none."""
    how, found, _ = vm.type_info(type(obj)).find("__call__")
    vm.env.facts.use_lookups(type(obj))
    if type(found) is _native.Wrapped:  # of a compiled class
        found, how = found._smelt_original, FUNCTION
    if isinstance(obj, torch.jit.ScriptModule):
        return call_script_module(vm, obj, args, kwargs)
    if found is _module_call or (how is FUNCTION and found.__module__ == "smelt.callables"):
        # a compiled module inside another: one graph
        return call_module(vm, cast(nn.Module, obj), args, kwargs)
    original = getattr(obj, "_smelt_original", None) if type(obj).__module__ == "smelt._native" else None
    if original is not None:
        return call(vm, original, args, kwargs)
    if how is FUNCTION:
        return call_function(vm, found, (obj, *args), kwargs)
    if how is ABSENT:
        raise TypeError(f"{vm.class_of(obj).__name__!r} object is not callable")
    if how is not NON_DATA:
        call_site = vm.frames.take_call_site()
        found = attributes.load_attr(vm, obj, "__call__")
        vm.frames.call_site = call_site
        return call(vm, found, args, kwargs)
    kind = (type(obj).__module__, type(obj).__name__)
    if kind == ("builtins", "instancemethod"):  # of pybind: a property's getter
        return call(vm, cast("types.MethodType", obj).__func__, args, kwargs)
    if kind in _NUMPY_FUNCTIONS:
        return registered_or_native(cast("Callable[..., object]", obj))(vm, args, kwargs)
    if kind[0].startswith("torch") or type(obj) in PURE_TYPES:
        return run_native(vm, cast("Callable[..., object]", obj), args, kwargs)
    if kind[1] == "cython_function_or_method" and obj.__module__ in CYTHON_FUNCTIONS:
        vm.frames.call_site = None
        return CYTHON_FUNCTIONS[obj.__module__](vm, obj, args, kwargs)
    raise unsupported(f"calling a {type(obj).__qualname__}")


_NUMPY_FUNCTIONS = {("numpy", "ufunc"), ("numpy", "_ArrayFunctionDispatcher")}

CALLERS: dict[type, Callable[..., object]] = {
    FunctionType: call_function, MethodType: call_method, types.BuiltinFunctionType: call_builtin,
    types.MethodDescriptorType: call_descriptor, types.WrapperDescriptorType: call_descriptor,
    types.ClassMethodDescriptorType: call_descriptor, types.MethodWrapperType: call_method_wrapper,
    type(re.compile("").match): call_builtin, functools.partial: call_partial,
    functools._lru_cache_wrapper: call_lru_cached, type: construct, types.GenericAlias: call_alias,
    OpOverloadPacket: run_native, OpOverload: run_native, ScriptFunction: call_script,
    ScriptMethod: refuse_script_method, operator.attrgetter: call_getter, operator.methodcaller: call_methodcaller,
    operator.itemgetter: call_getter,
}  # fmt: skip
