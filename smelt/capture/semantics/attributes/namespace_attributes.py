"""Attributes of modules, functions, partials and generators."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import cast

from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.type_lookup import NATIVE_DATA
from smelt.capture.base.value_kinds import MISSING, FunctionType, MethodType, module_dict, module_name
from smelt.capture.base.vm_frames import Coroutine, Generator
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.semantics import scopes
from smelt.capture.semantics.attributes.annotations import annotations_of, check_annotations
from smelt.capture.semantics.attributes.instance_attributes import (
    CLASS_LOADERS,
    DATA_LOADERS,
    load_by_getattribute,
)
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason


def load_module_attr(vm: VM, module: types.ModuleType, name: str) -> object:
    """An attribute of a Python module, through the `__getattribute__` of its class if that is written in Python."""
    if not is_native_module(module_name(module)):
        _guard_module_class(vm, module)
    info = vm.type_info(type(module))
    if info.getattribute is not None:
        vm.env.facts.use_lookups(type(module))
        return load_by_getattribute(vm, module, name, info, info.getattribute)
    return load_from_module(vm, module, name)


def load_from_module(vm: VM, module: types.ModuleType, name: str) -> object:
    """`ModuleType.__getattribute__`, guarded by the value. The `__dict__` of a module is the dictionary of `globals()`."""
    env, own = vm.env, module_dict(module)
    if name == "__dict__":
        return scopes.expose_globals(vm, own)
    found = _load_by_module_class(vm, module, name) if type(module) is not types.ModuleType else MISSING
    if found is not MISSING:
        return found
    if env.log.has_written_name(own, name):
        value = env.overlay.name(own, name)
        if value is MISSING:
            raise AttributeError(
                f"module {module_name(module)!r} has no attribute {name!r}", name=name, obj=module
            )
        return value
    memo = env.memo.reads_of(module)
    value = memo.get(name, MISSING)
    if value is MISSING:
        if name in own:
            value = wrap_values.wrap(env, own[name], env.sources.find_or_const(module).child("attr", name))
        else:
            value = _load_missing(vm, module, name)
            if name in own:  # a lazily loaded submodule
                value = wrap_values.wrap(env, value, env.sources.find_or_const(module).child("attr", name))
        memo[name] = value
    return value


def _guard_module_class(vm: VM, module: types.ModuleType) -> None:
    """Guard the class of a module, which can be reassigned."""
    source = vm.env.sources.find_or_const(module).child("type", None)
    vm.env.facts.guard("id", source, type(module))


def _load_by_module_class(vm: VM, module: types.ModuleType, name: str) -> object:
    """Result of Python code in a module's own class for `name`; MISSING if there is none."""
    cls = type(module)
    if is_native_module(cls.__module__) and not cls.__module__.startswith("torch.backends"):
        return MISSING
    info = vm.type_info(cls)
    vm.env.facts.use_lookups(cls)
    how, found, owner = info.find(name)
    if how in DATA_LOADERS and how is not NATIVE_DATA:
        return DATA_LOADERS[how](vm, module, name, found)
    if how in CLASS_LOADERS and name not in module_dict(module) and owner is not object:
        return CLASS_LOADERS[how](vm, module, name, found, owner)
    return MISSING


def _load_missing(vm: VM, module: types.ModuleType, name: str) -> object:
    """Result of a module's `__getattr__`; guards that the module dictionary lacks the name."""
    env, own = vm.env, module_dict(module)
    own_getattr = own.get("__getattr__")
    try:
        if type(own_getattr) is FunctionType and not is_native_module(module_name(module)):
            return vm.call(load_from_module(vm, module, "__getattr__"), (name,), {})
        if name == "__annotations__":
            check_annotations(env, module)
        return getattr(module, name)
    except AttributeError:
        if name != "__name__" and "__name__" in own:
            load_from_module(vm, module, "__name__")  # the error message contains the module's name
        raise
    finally:
        if name not in own:
            env.facts.guard("not_in_dict", env.sources.find_or_const(module), name, key=name)
        if own_getattr is None:
            env.facts.guard(
                "not_in_dict", env.sources.find_or_const(module), "__getattr__", key="__getattr__"
            )


def load_function_attr(vm: VM, function: FunctionType, name: str) -> object:
    """An attribute of a Python function. Code and defaults share one guard; `__globals__` is `globals()`."""
    env = vm.env
    if name == "__globals__":
        return scopes.expose_globals(vm, function.__globals__)
    if name == "__annotations__":
        annotations_of(vm, function)
    if env.sources.find(function) is None:
        return getattr(function, name)
    own = env.overlay.instance_dict(function) or {}
    if name in own and not env.log.is_original_attribute(function, name, own[name]):
        return own[name]
    if name not in own and all(name not in k.__dict__ for k in FunctionType.__mro__):
        if env.log.was_absent(function, name):
            env.facts.guard("not_in_dict", env.sources.const(function), name, key=name)
        raise AttributeError(f"'function' object has no attribute {name!r}", name=name, obj=function)
    value = own[name] if name in own else getattr(function, name)
    if name == "__dict__":
        return environment_mutations.read_instance_dict(env, function, function.__dict__)
    if name in (
        "__kwdefaults__",
        "__annotations__",
        "__annotate__",
        "__closure__",
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
    ):
        return wrap_values.wrap(env, value, env.sources.const(function).child("member", name))
    if name in own:
        return wrap_values.wrap(env, value, env.sources.const(function).child("attr", name))
    env.facts.use_function(function)
    if name in _MUTABLE_FUNCTION_ATTRS:
        return wrap_values.wrap(
            env, value, env.sources.const(function).child("member", name), decided=name != "__annotations__"
        )
    return wrap_values.to_fake(env, value)


_MUTABLE_FUNCTION_ATTRS = ("__kwdefaults__", "__defaults__", "__annotations__")


def load_bound_part(vm: VM, method: MethodType, name: str) -> object:
    """`__func__` or `__self__` of a bound method."""
    source = vm.env.sources.get(id(method))
    value = getattr(method, name)
    return value if source is None else wrap_values.wrap(vm.env, value, source.child("member", name))


def partial_parts(
    vm: VM, partial: functools.partial[object]
) -> tuple[object, tuple[object, ...], dict[str, object]]:
    """Function, arguments and keyword arguments of a partial, guarded for an environment partial."""
    source = vm.env.sources.get(id(partial))
    if source is None:
        return partial.func, partial.args, partial.keywords
    function, args, keywords = (
        wrap_values.wrap(vm.env, getattr(partial, name), source.child("member", name))
        for name in ("func", "args", "keywords")
    )
    return function, cast("tuple[object, ...]", args), _keyword_values(vm, keywords)


def _keyword_values(vm: VM, keywords: dict[str, object]) -> dict[str, object]:
    """The keyword arguments of an environment partial, each guarded by itself, so that numbers stay symbolic."""
    source = vm.env.sources.get(id(keywords))
    if source is None or keywords in vm.env.log:
        return container_contents.native_view(vm.env, keywords, deep=False)
    vm.env.facts.guard("keys", source, tuple(keywords))
    return {name: vm.wrap_item(keywords, name, value) for name, value in keywords.items()}


PLACEHOLDER = getattr(functools, "Placeholder", MISSING)  # filled by the call's arguments; from 3.14 on


def fill_placeholders(bound: Sequence[object], args: Sequence[object]) -> tuple[object, ...]:
    """Arguments of a partial's call: `args` fill the placeholders in `bound` first."""
    remaining = iter(args)
    return (*(next(remaining, a) if a is PLACEHOLDER else a for a in bound), *remaining)


def load_coroutine(vm: VM, obj: Coroutine, name: str) -> object:
    """An attribute of a coroutine that the VM runs."""
    if name in ("__name__", "__qualname__"):
        return getattr(obj.frame.function, name)
    if name == "__class__":
        return types.CoroutineType
    raise Unsupported(Reason(UNSUPPORTED_CALL, f"{name} of a coroutine"))


def load_generator(vm: VM, obj: Generator, name: str) -> object:
    """An attribute of a generator that the VM runs, as a real generator has it."""
    if name in ("send", "throw", "close", "__next__", "__iter__"):
        return getattr(obj, name)
    if name in ("__name__", "__qualname__"):
        return getattr(obj.frame.function, name)
    if name == "__class__":
        return types.GeneratorType
    if name in ("gi_running", "gi_suspended", "gi_yieldfrom"):
        return getattr(obj, name[3:])
    if any(name in cls.__dict__ for cls in types.GeneratorType.__mro__):
        raise Unsupported(Reason(UNSUPPORTED_CALL, f"{name} of a generator"))
    raise AttributeError(f"'generator' object has no attribute {name!r}", name=name, obj=obj)
