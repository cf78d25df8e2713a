"""Descriptors: constructors, and methods called by name.

`function.__get__`, `property.__set__` and similar are C functions that would run user code unobserved.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import cast

from smelt.capture.base.call_handlers import BUILTINS, Handler, Kwargs, builtin, method
from smelt.capture.base.value_kinds import FunctionType, MethodType
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM

# --------------------------------------------------------------------------------------------- called by name


@builtin(FunctionType.__get__)
def _function_get(vm: VM, args: tuple[FunctionType, object], kwargs: Kwargs) -> object:
    function, obj = args[:2]
    return function if obj is None else MethodType(function, obj)


@builtin(property.__get__)
def _property_get(vm: VM, args: tuple[property, object], kwargs: Kwargs) -> object:
    found, obj = args[:2]
    return found if obj is None else attributes.load_property(vm, obj, found)


builtin(property.__set__)(lambda vm, args, kwargs: attributes.store_property(vm, args[1], args[0], args[2]))
builtin(property.__delete__)(lambda vm, args, kwargs: attributes.delete_property(vm, args[1], args[0]))


@builtin(classmethod.__get__)
def _classmethod_get(vm: VM, args: tuple[object, ...], kwargs: Kwargs) -> object:
    found, obj, *cls = args
    return MethodType(
        cast("classmethod", found).__func__, cls[0] if cls and cls[0] is not None else vm.class_of(obj)
    )


builtin(staticmethod.__get__)(lambda vm, args, kwargs: args[0].__func__)


def _accessor_handler(name: str) -> Handler:
    return lambda vm, found, accessor: vm.call_native(getattr(property, name), (found, accessor))


for _name in ("getter", "setter", "deleter"):
    method(property, _name)(_accessor_handler(_name))


# ------------------------------------------------------------------------------------------------ constructors


def _native_constructor(constructor: Callable[..., object]) -> Handler:
    return lambda vm, args, kwargs: constructor(*args, **kwargs)


# Constructors that only store their arguments.
for _constructor in (property, classmethod, staticmethod, functools.cached_property, types.MethodType):
    BUILTINS[_constructor] = _native_constructor(_constructor)
