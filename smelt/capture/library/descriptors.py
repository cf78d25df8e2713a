"""Descriptors called by name, and the functions of functools that are descriptors or choose by class.

`function.__get__`, `property.__set__` and their like are C functions that would start the user's code unseen. The functions
that `functools.singledispatch` makes live in functools but hold and call the user's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import cast

from smelt.capture.base.handlers import CODES, Args, Handler, Kwargs, builtin, function, method, unsupported
from smelt.capture.base.native_functions import nested_codes
from smelt.capture.base.values import FunctionType, MethodType
from smelt.capture.machine.vm import VM
from smelt.capture.outside import contents, wrapping
from smelt.capture.protocol import attributes

# --------------------------------------------------------------------------------------------- called by name


@builtin(FunctionType.__get__)
def _function_get(vm: VM, args: tuple[FunctionType, object], kwargs: Kwargs) -> object:
    function, obj = args[:2]
    return function if obj is None else MethodType(function, obj)


@builtin(property.__get__)
def _property_get(vm: VM, args: tuple[property, object], kwargs: Kwargs) -> object:
    found, obj = args[:2]
    return found if obj is None else attributes.load_property(vm, obj, found)


@builtin(property.__set__)
def _property_set(vm: VM, args: tuple[property, object, object], kwargs: Kwargs) -> None:
    attributes.store_property(vm, args[1], args[0], args[2])


@builtin(property.__delete__)
def _property_delete(vm: VM, args: tuple[property, object], kwargs: Kwargs) -> None:
    attributes.delete_property(vm, args[1], args[0])


@builtin(classmethod.__get__)
def _classmethod_get(vm: VM, args: tuple[object, ...], kwargs: Kwargs) -> object:
    found, obj, *cls = args
    return MethodType(
        cast("classmethod", found).__func__, cls[0] if cls and cls[0] is not None else vm.class_of(obj)
    )


@builtin(staticmethod.__get__)
def _staticmethod_get(vm: VM, args: tuple[staticmethod, object], kwargs: Kwargs) -> object:
    return cast(object, args[0].__func__)


def _with_accessor(name: str) -> Handler:
    return lambda vm, found, accessor: getattr(found, name)(accessor)


for _name in ("getter", "setter", "deleter"):
    method(property, _name)(_with_accessor(_name))


# ------------------------------------------------------------------------------------- functools.singledispatch


def _code(outer: FunctionType, name: str) -> types.CodeType:
    return next(code for code in nested_codes(outer.__code__) if code.co_name == name)


def _cell(function: FunctionType, name: str) -> object:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents


def _implementation(vm: VM, dispatch: FunctionType, cls: type) -> object:
    """The registered function that `dispatch(cls)` chooses; the registry is guarded."""
    registry = cast("dict[object, object]", _cell(dispatch, "registry"))
    if id(dispatch) in vm.outside.origins:
        at = dispatch.__code__.co_freevars.index("registry")
        wrapping.wrap(vm.outside, registry, vm.outside.origins.const(dispatch).child("cell", at))
        contents.open(vm.outside, registry)
    vm.outside.facts.use_class(cls)
    return dispatch(cls)


def _dispatch(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    return _implementation(vm, fn, cast(type, args[0]))


def _wrapper(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return fn(*args, **kwargs)  # raises
    dispatch = cast(FunctionType, _cell(fn, "dispatch"))
    if id(fn) in vm.outside.origins:
        vm.outside.origins.const(dispatch)
    chosen = _implementation(vm, dispatch, cast(type, attributes.load_attr(vm, args[0], "__class__")))
    return vm.call(chosen, args, kwargs)


def _register(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    if any(id(cell.cell_contents) in vm.outside.origins for cell in fn.__closure__ or () if _is_full(cell)):
        raise unsupported(f"{fn.__qualname__} of a function from outside")
    return fn(*args, **kwargs)


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


_SOURCE = cast(FunctionType, functools.singledispatch)
_make_dispatching: Callable[..., object] = functools.singledispatch
CODES[_code(_SOURCE, "dispatch")] = _dispatch
CODES[_code(_SOURCE, "wrapper")] = _wrapper
CODES[_code(_SOURCE, "register")] = _register


@function(functools.singledispatch)
def _single_dispatch(vm: VM, args: tuple[Callable[..., object]], kwargs: Kwargs) -> object:
    return _make_dispatching(*args, **kwargs)


def _lambdas(outer: FunctionType) -> Iterator[types.CodeType]:
    return (code for code in nested_codes(outer.__code__) if code.co_name == "<lambda>")


for _found in _lambdas(_SOURCE):
    CODES[_found] = _register
