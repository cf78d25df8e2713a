"""Attributes of instances: `object.__getattribute__`, descriptors, and the dictionaries of an `nn.Module`.

One function for each way in which a class's attribute is found (`lookup.py`)."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from smelt.capture.base.type_info import (
    ABSENT,
    CACHED_PROPERTY,
    CLASS_METHOD,
    FUNCTION,
    NATIVE_DATA,
    NON_DATA,
    PROPERTY,
    PYTHON_DATA,
    STATIC_METHOD,
    VALUE,
    TypeInfo,
)
from smelt.capture.base.values import MISSING, FunctionType, MethodType, Sentinel, instance_dict
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, wrapping
from smelt.capture.protocol import cells
from smelt.capture.protocol.attributes.lookup import descriptor_method

_SHADOWED = (
    FUNCTION,
    CLASS_METHOD,
    STATIC_METHOD,
    NON_DATA,
    VALUE,
)  # an instance attribute would win over these


MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_module_getattr = nn.Module.__getattr__


def load_generic(vm: VM, obj: Any, name: str, use_getattr: bool = True) -> Any:
    """`object.__getattribute__`, then the class's `__getattr__`."""
    memo = vm.outside.memo.by_id.get(id(obj))
    if memo is not None:
        value = memo.get(name, MISSING)
        if value is not MISSING:
            return value
    cls = type(obj)
    info = vm.type_info(cls)
    vm.outside.facts.use_class(cls)
    how, found, owner = info.find(name)
    data = DATA_LOADERS.get(how)
    if data is not None:
        return data(vm, obj, name, found)
    own = instance_dict(obj)
    if own is not None:
        if name in own:
            return instance_value(vm, obj, name, own[name])
        origin = vm.outside.origins.get(id(obj))
        if how in _SHADOWED and origin is not None and vm.outside.log.was_absent(obj, name):
            vm.outside.facts.guard("not_in_dict", origin, name, key=name)
    if how is not ABSENT:
        return CLASS_LOADERS[how](vm, obj, name, found, owner)
    if use_getattr and info.getattr is not MISSING:
        return _through_getattr(vm, obj, name, info, own)
    return _no_attribute(vm, obj, name, own)


def instance_value(vm: VM, obj: Any, name: str, value: Any) -> Any:
    outside = vm.outside
    origin = outside.origins.get(id(obj))
    if origin is None:
        return wrapping.fake(outside, value)
    if not outside.log.is_original_attribute(obj, name, value):
        return value
    result = wrapping.wrap(outside, value, origin.child("attr", name))
    outside.memo.of(obj)[name] = result
    return result


def _through_getattr(vm: VM, obj: Any, name: str, info: TypeInfo, own: dict[str, Any] | None) -> Any:
    if info.getattr is _module_getattr and own is not None:
        return module_entry(vm, obj, name, own)
    if type(info.getattr) is FunctionType:
        if own is not None and id(obj) in vm.outside.origins and vm.outside.log.was_absent(obj, name):
            vm.outside.facts.guard("not_in_dict", vm.outside.origins[id(obj)], name, key=name)
        return vm.call_function(info.getattr, (obj, name))
    return vm.call(info.getattr, (obj, name), {})


def module_entry(vm: VM, obj: Any, name: str, own: dict[str, Any]) -> Any:
    """A parameter, buffer or submodule of an nn.Module."""
    outside = vm.outside
    for key in MODULE_DICTS:
        entries = own.get(key)
        if entries is not None and name in entries:
            value = entries[name]
            origin = outside.origins.get(id(obj))
            if origin is None:
                return wrapping.fake(outside, value)
            if not outside.log.is_original(entries, name, value):
                return value
            result = wrapping.wrap(outside, value, origin.child("param", name))
            outside.memo.of(obj)[name] = result
            return result
    return _no_attribute(vm, obj, name, own)


def _no_attribute(vm: VM, obj: Any, name: str, own: dict[str, Any] | None) -> Any:
    origin = vm.outside.origins.get(id(obj))
    if own is not None and origin is not None and vm.outside.log.was_absent(obj, name):
        parts = [own[k] for k in MODULE_DICTS if isinstance(own.get(k), dict)]
        if all(k != name for part in parts for k, _ in vm.outside.log.contents(part)):
            vm.outside.facts.guard("no_attr", origin, name, key=name)
    error = AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj)
    raise error


def set_instance(vm: VM, obj: Any, name: str, value: Any) -> None:
    """Stores in the instance itself, for real; the undo log remembers."""
    if type(obj) is types.CellType and id(obj) in vm.outside.origins:
        vm.outside.log.touch_cell(obj)
    changes.touch(vm.outside, obj)
    changes.note_store(vm.outside, obj, "attr", name, value)
    memo = vm.outside.memo.by_id.get(id(obj))
    if memo is not None:
        memo.clear() if name == "__class__" else memo.pop(name, None)
    object.__setattr__(obj, name, value)


def read_slot(obj: Any, name: str) -> Any:
    """The slot `name` of an instance, without its class's code; MISSING where it is empty."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return MISSING


def _load_property(vm: VM, obj: Any, name: str, found: Any) -> Any:
    return load_property(vm, obj, found)


def load_property(vm: VM, obj: Any, found: property) -> Any:
    if found.fget is None:
        return property.__get__(found, obj)  # raises
    return vm.call(found.fget, (obj,), {})


def store_property(vm: VM, obj: Any, found: property, value: Any) -> None:
    if found.fset is None:
        property.__set__(found, obj, value)  # raises
    vm.call(found.fset, (obj, value), {})


def delete_property(vm: VM, obj: Any, found: property) -> None:
    if found.fdel is None:
        property.__delete__(found, obj)  # raises
    vm.call(found.fdel, (obj,), {})


def _load_native_data(vm: VM, obj: Any, name: str, found: Any) -> Any:
    """Slots, and what C types compute."""
    outside = vm.outside
    if name == "__dict__":
        return changes.own_dict(outside, obj, found.__get__(obj, type(obj)))
    value = found.__get__(obj, type(obj))
    if name == "__class__":
        return vm.class_of(obj)
    if type(obj) is types.CellType and cells.cell_written(vm, obj):
        return value
    origin = outside.origins.get(id(obj))
    computed = type(found) is not types.MemberDescriptorType
    if origin is not None and (computed or outside.log.is_original_attribute(obj, name, value)):
        return wrapping.wrap(outside, value, origin.child("member", name))
    return value


def from_class(vm: VM, found: Any, owner: type, name: str, part: str | None = None) -> Any:
    """An object of the user's that a class holds (a descriptor, what a staticmethod holds): from outside like any other."""
    value = found if part is None else getattr(found, part)
    if type(value) is FunctionType or owner is None or vm.outside.origins.is_made_class(owner):
        return value
    if vm.outside.log.touches(owner, name):
        return value
    origin = vm.outside.origins.const(owner).child("attr", name)
    return wrapping.wrap(
        vm.outside, value, origin if part is None else origin.child("member", part), decided=True
    )


def load_python_data(vm: VM, obj: Any, name: str, found: Any) -> Any:
    if type(found) is enum.property and found is vars(enum.Enum).get(name):
        return load_generic(vm, obj, f"_{name}_")  # value, name: the library's own properties
    found = from_class(vm, found, vm.type_info(type(obj)).find(name)[2], name)
    get = descriptor_method(vm, found, "__get__")
    return vm.call_function(get, (found, obj, type(obj)))


DATA_LOADERS: dict[Sentinel, Callable[..., Any]] = {
    PROPERTY: _load_property,
    NATIVE_DATA: _load_native_data,
    PYTHON_DATA: load_python_data,
}


def load_value(vm: VM, obj: Any, name: str, found: Any, owner: type) -> Any:
    if vm.outside.origins.is_made_class(owner) or vm.outside.log.touches(owner, name):
        return found
    return wrapping.wrap(vm.outside, found, vm.outside.origins.const(owner).child("attr", name), decided=True)


def load_non_data(vm: VM, obj: Any, name: str, found: Any, owner: type) -> Any:
    get = descriptor_method(vm, found, "__get__")
    if type(get) is FunctionType:
        return vm.call_function(get, (from_class(vm, found, owner, name), obj, type(obj)))
    return found.__get__(obj, type(obj))


def _load_cached_property(vm: VM, obj: Any, name: str, found: Any, owner: type) -> Any:
    origin = vm.outside.origins.get(id(obj))
    if origin is not None and vm.outside.log.was_absent(obj, name):
        vm.outside.facts.guard("not_in_dict", origin, name, key=name)
    value = vm.call(found.func, (obj,), {})
    set_instance(vm, obj, found.attrname or name, value)
    return value


def bind_class_method(vm: VM, found: Any, cls: type, owner: type, name: str) -> Any:
    inner = found.__func__
    if type(inner) is FunctionType:
        return MethodType(inner, cls)
    get = descriptor_method(vm, inner, "__get__")
    if get is MISSING:
        return MethodType(from_class(vm, found, owner, name, "__func__"), cls)
    if type(get) is FunctionType:
        return vm.call_function(get, (from_class(vm, found, owner, name, "__func__"), cls, type(cls)))
    return found.__get__(None, cls)


CLASS_LOADERS: dict[Sentinel, Callable[..., Any]] = {
    FUNCTION: lambda vm, obj, name, found, owner: MethodType(found, obj),
    CLASS_METHOD: lambda vm, obj, name, found, owner: bind_class_method(vm, found, type(obj), owner, name),
    STATIC_METHOD: lambda vm, obj, name, found, owner: from_class(vm, found, owner, name, "__func__"),
    VALUE: load_value,
    NON_DATA: load_non_data,
    CACHED_PROPERTY: _load_cached_property,
}
