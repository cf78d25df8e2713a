"""Descriptors called by name, and the functions of functools that are descriptors or choose by class.

`function.__get__`, `property.__set__` and their like are C functions that would start the user's code unseen. The functions
that `functools.singledispatch` makes live in functools but hold and call the user's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from smelt.capture.base.handlers import CODES, Handler, builtin, function, method, unsupported
from smelt.capture.base.native_functions import nested_codes
from smelt.capture.base.values import FunctionType, MethodType
from smelt.capture.machine.vm import VM
from smelt.capture.outside import contents, wrapping
from smelt.capture.protocol import attributes

# --------------------------------------------------------------------------------------------- called by name


@builtin(FunctionType.__get__)
def _function_get(vm: VM, args: Any, kwargs: Any) -> Any:
    function, obj = args[:2]
    return function if obj is None else MethodType(function, obj)


@builtin(property.__get__)
def _property_get(vm: VM, args: Any, kwargs: Any) -> Any:
    found, obj = args[:2]
    return found if obj is None else attributes.load_property(vm, obj, found)


@builtin(property.__set__)
def _property_set(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.store_property(vm, args[1], args[0], args[2])


@builtin(property.__delete__)
def _property_delete(vm: VM, args: Any, kwargs: Any) -> None:
    attributes.delete_property(vm, args[1], args[0])


@builtin(classmethod.__get__)
def _classmethod_get(vm: VM, args: Any, kwargs: Any) -> Any:
    found, obj, *cls = args
    return MethodType(found.__func__, cls[0] if cls and cls[0] is not None else vm.class_of(obj))


@builtin(staticmethod.__get__)
def _staticmethod_get(vm: VM, args: Any, kwargs: Any) -> Any:
    return args[0].__func__


def _with_accessor(name: str) -> Handler:
    return lambda vm, found, accessor: getattr(found, name)(accessor)


for _name in ("getter", "setter", "deleter"):
    method(property, _name)(_with_accessor(_name))


# ------------------------------------------------------------------------------------- functools.singledispatch


def _code(outer: Any, name: str) -> types.CodeType:
    return next(code for code in nested_codes(outer.__code__) if code.co_name == name)


def _cell(function: FunctionType, name: str) -> Any:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents


def _implementation(vm: VM, dispatch: FunctionType, cls: type) -> Any:
    """What `dispatch(cls)` finds among the registered functions, which are guarded."""
    registry = _cell(dispatch, "registry")
    if id(dispatch) in vm.outside.origins:
        at = dispatch.__code__.co_freevars.index("registry")
        wrapping.wrap(vm.outside, registry, vm.outside.origins.const(dispatch).child("cell", at))
        contents.open(vm.outside, registry)
    vm.outside.facts.use_class(cls)
    return dispatch(cls)


def _dispatch(vm: VM, fn: FunctionType, args: Any, kwargs: Any) -> Any:
    return _implementation(vm, fn, args[0])


def _wrapper(vm: VM, fn: FunctionType, args: Any, kwargs: Any) -> Any:
    if not args:
        return fn(*args, **kwargs)  # raises
    dispatch = _cell(fn, "dispatch")
    if id(fn) in vm.outside.origins:
        vm.outside.origins.const(dispatch)
    chosen = _implementation(vm, dispatch, attributes.load_attr(vm, args[0], "__class__"))
    return vm.call(chosen, args, kwargs)


def _register(vm: VM, fn: FunctionType, args: Any, kwargs: Any) -> Any:
    if any(
        id(cell.cell_contents) in vm.outside.origins for cell in fn.__closure__ or () if cell_is_full(cell)
    ):
        raise unsupported(f"{fn.__qualname__} of a function from outside")
    return fn(*args, **kwargs)


def cell_is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


CODES[_code(functools.singledispatch, "dispatch")] = _dispatch
CODES[_code(functools.singledispatch, "wrapper")] = _wrapper
CODES[_code(functools.singledispatch, "register")] = _register


@function(functools.singledispatch)
def _single_dispatch(vm: VM, args: Any, kwargs: Any) -> Any:
    return functools.singledispatch(*args, **kwargs)


def _lambdas(outer: Any) -> Iterator[types.CodeType]:
    return (code for code in nested_codes(outer.__code__) if code.co_name == "<lambda>")


for _found in _lambdas(functools.singledispatch):
    CODES[_found] = _register
