"""Attributes of instances: `object.__getattribute__` and the kinds of descriptors.

`load_generic` looks a name up as the interpreter does. Two tables define the result by the kind of the class attribute
(`capture/base/type_lookup.py`): `DATA_LOADERS` for descriptors that precede the instance dictionary, `CLASS_LOADERS` for the
others. The dictionaries of an `nn.Module` are in `nn_module_attributes.py`.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import NoReturn, Protocol, cast

from smelt.capture.base.bytecode import PY313
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.native_functions import is_pure_attribute, is_pure_property
from smelt.capture.base.type_lookup import (
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
    fully_qualified_name,
)
from smelt.capture.base.value_kinds import (
    MISSING,
    FunctionType,
    MethodType,
    Sentinel,
    instance_dict,
    is_constant,
)
from smelt.capture.base.vm_frames import with_result_handler
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.environment.overlay import is_slot, read_slot
from smelt.capture.semantics import cells, result_polyfills
from smelt.capture.semantics.attributes import nn_module_attributes
from smelt.capture.semantics.attributes.method_lookup import descriptor_method
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT

# Kinds of class attributes that an instance attribute shadows.
_SHADOWED_KINDS = (FUNCTION, CLASS_METHOD, STATIC_METHOD, NON_DATA, VALUE)
# Kinds whose load may run user code.
_USER_CODE_KINDS = (PROPERTY, PYTHON_DATA, CACHED_PROPERTY, CLASS_METHOD, NON_DATA)


class Descriptor(Protocol):
    """An object whose class defines `__get__`."""

    def __get__(self, obj: object, cls: type | None = None, /) -> object: ...


def load_generic(vm: VM, obj: object, name: str) -> object:
    """`object.__getattribute__`, then the class's `__getattr__`, also after a descriptor's AttributeError."""
    info = vm.type_info(type(obj))
    if info.getattr is MISSING:
        return object_getattribute(vm, obj, name)
    call_site = vm.frames.call_site
    try:
        return object_getattribute(vm, obj, name, use_getattr=True)
    except AttributeError:
        if info.find(name)[0] is ABSENT:  # `__getattr__` itself raised
            raise
    vm.frames.call_site = call_site
    return _through_getattr(vm, obj, name, info, vm.env.overlay.instance_dict(obj))


def object_getattribute(vm: VM, obj: object, name: str, use_getattr: bool = False) -> object:
    """`object.__getattribute__`; with `use_getattr`, the class's `__getattr__` for missing attributes."""
    memo = vm.env.memo.reads.get(id(obj))
    if memo is not None:
        value = memo.get(name, MISSING)
        if value is not MISSING:
            return value
    cls = type(obj)
    info = vm.type_info(cls)
    vm.env.facts.use_lookups(cls)
    how, found, owner = info.find(name)
    if how in _USER_CODE_KINDS and use_getattr:
        _set_getattr_fallback(vm, obj, name, info)
    data = DATA_LOADERS.get(how)
    if data is not None:
        return data(vm, obj, name, found)
    own = vm.env.overlay.instance_dict(obj)
    if own is not None:
        if name in own:
            return wrap_instance_attr(vm, obj, name, own[name])
        source = vm.env.sources.get(id(obj))
        if how in _SHADOWED_KINDS and source is not None and vm.env.log.was_absent(obj, name):
            vm.env.facts.guard("not_in_dict", source, name, key=name)
    if how is not ABSENT:
        return CLASS_LOADERS[how](vm, obj, name, found, owner)
    if use_getattr and info.getattr is not MISSING:
        return _through_getattr(vm, obj, name, info, own)
    return _raise_no_attribute(vm, obj, name, own)


def _set_getattr_fallback(vm: VM, obj: object, name: str, info: TypeInfo) -> None:
    """Set a result handler that calls `__getattr__` if the code about to run raises AttributeError."""
    vm.frames.call_site = with_result_handler(
        vm.frames.call_site,
        result_polyfills.identity,
        info.getattr,
        obj,
        name,
        on_error=result_polyfills.getattr_fallback,
    )


def load_by_getattribute(
    vm: VM, obj: object, name: str, info: TypeInfo, getattribute: FunctionType
) -> object:
    """Load through a `__getattribute__` written in Python, then the class's `__getattr__`."""
    vm.env.facts.use_lookups(info.cls)
    call_site = vm.frames.call_site
    if type(info.getattr) is FunctionType:
        _set_getattr_fallback(vm, obj, name, info)
    try:
        return vm.call_function(getattribute, (obj, name))
    except AttributeError:
        if type(info.getattr) is not FunctionType:
            raise
    vm.frames.call_site = call_site
    return vm.call_function(info.getattr, (obj, name))


def wrap_instance_attr(vm: VM, obj: object, name: str, value: object) -> object:
    """The entry `value` of the instance dictionary under `name` as a VM value; guarded unless the trace stored it."""
    env = vm.env
    source = env.sources.get(id(obj))
    if source is None:
        return wrap_values.to_fake(env, value)
    if not env.log.is_original_attribute(obj, name, value):
        return value
    result = wrap_values.wrap(env, value, source.child("attr", name))
    if obj not in env.log:  # after one change it may change again, also through its dictionary
        env.memo.reads_of(obj)[name] = result
    return result


def _through_getattr(vm: VM, obj: object, name: str, info: TypeInfo, own: dict[str, object] | None) -> object:
    if info.getattr is nn_module_attributes.MODULE_GETATTR and own is not None:
        return load_module_entry(vm, obj, name, own)
    if type(info.getattr) is FunctionType:
        if own is not None and id(obj) in vm.env.sources and vm.env.log.was_absent(obj, name):
            vm.env.facts.guard("not_in_dict", vm.env.sources[id(obj)], name, key=name)
        return vm.call_function(info.getattr, (obj, name))
    return vm.call(info.getattr, (obj, name), {})


def load_module_entry(vm: VM, obj: object, name: str, own: dict[str, object]) -> object:
    """`nn.Module.__getattr__`: a parameter, buffer or submodule of `obj`, whose `__dict__` is `own`."""
    found = nn_module_attributes.load_entry(vm, obj, name, own)
    return _raise_no_attribute(vm, obj, name, own) if found is MISSING else found


def _raise_no_attribute(vm: VM, obj: object, name: str, own: dict[str, object] | None) -> NoReturn:
    if own is not None:
        nn_module_attributes.guard_absent(vm, obj, name, own)
    if not vm.type_info(type(obj)).is_module:
        object.__getattribute__(obj, name)  # raises the class's own message
    raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj)


def store_in_instance(vm: VM, obj: object, name: str, value: object) -> None:
    """Store in the instance itself, or in the overlay of an environment object; MISSING deletes the attribute."""
    env = vm.env
    cell = type(obj) is types.CellType
    environment_mutations.record_mutation(env, obj)
    if value is MISSING:
        environment_mutations.record_deletion(env, obj, name)
    else:
        environment_mutations.record_store(env, obj, "attr", name, value)
    memo = env.memo.reads.get(id(obj))
    if memo is not None:
        memo.clear() if name == "__class__" else memo.pop(name, None)
    if id(obj) not in env.sources:
        object.__delattr__(obj, name) if value is MISSING else object.__setattr__(obj, name, value)
    elif cell and name == "cell_contents":
        env.log.set_cell(cast("types.CellType", obj), value)
    else:
        _store_in_overlay(vm, obj, name, value)


def _store_in_overlay(vm: VM, obj: object, name: str, value: object) -> None:
    how, found, _ = vm.type_info(type(obj)).find(name)
    overlay, own = vm.env.overlay, vm.env.overlay.instance_dict(obj)
    values = own or {}
    held = overlay.slot(obj, name) if is_slot(found) else values.get(name, MISSING)
    vm.env.log.check_held(values.values() if name == "__dict__" else (held,))
    if is_slot(found):
        if value is MISSING and overlay.slot(obj, name) is MISSING:
            _guard_empty_slot(vm, obj, name)
            raise AttributeError(name)
        overlay.set_slot(obj, name, value)
    elif name == "__dict__" and type(value) is dict and id(value) not in vm.env.sources and own is not None:
        names = tuple(instance_dict(obj) or ())  # which the compiled frame deletes
        vm.env.facts.guard("keys", vm.env.sources[id(obj)].child("dict", None), names)
        vm.env.log.mark_replaced(obj)
        overlay.replace_instance_dict(obj, value)
    elif name == "__class__" and value is not MISSING:
        object.__setattr__(obj, name, value)
    elif how is NATIVE_DATA:
        raise unsupported(
            f"{name} of a {type(obj).__qualname__} of the environment is set", UNSUPPORTED_EFFECT
        )
    elif own is None:
        object.__setattr__(obj, name, value)  # raises
    elif value is not MISSING:
        own[name] = value
    elif own.pop(name, MISSING) is MISSING:
        nn_module_attributes.guard_absent(vm, obj, name, own)
        raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}")


def _guard_empty_slot(vm: VM, obj: object, name: str) -> None:
    """Guard that the slot `name` of an environment object is empty, if it was empty before the trace."""
    if id(obj) in vm.env.sources and read_slot(obj, name) is MISSING:
        vm.env.facts.guard("slot", vm.env.sources[id(obj)], (name, False), key=name)


def _load_property(vm: VM, obj: object, name: str, found: property) -> object:
    """The value of a property. One that C++ code of torch computes is guarded if it is a constant."""
    source = vm.env.sources.get(id(obj))
    if source is not None and is_pure_property(type(obj), found):
        value = found.__get__(obj)
        if is_constant(value):
            return wrap_values.wrap(vm.env, value, source.child("member", name))
    return load_property(vm, obj, found)


def load_property(vm: VM, obj: object, found: property) -> object:
    """Call the getter of a property. Raises AttributeError if it has none."""
    if found.fget is None:
        return property.__get__(found, obj)  # raises
    return vm.call(found.fget, (obj,), {})


def store_property(vm: VM, obj: object, found: property, value: object) -> None:
    """Calls the setter of a property. Raises AttributeError if it has none."""
    if found.fset is None:
        property.__set__(found, obj, value)  # raises
    vm.call(found.fset, (obj, value), {})


def delete_property(vm: VM, obj: object, found: property) -> None:
    """Calls the deleter of a property. Raises AttributeError if it has none."""
    if found.fdel is None:
        property.__delete__(found, obj)  # raises
    vm.call(found.fdel, (obj,), {})


def _load_native_data(vm: VM, obj: object, name: str, found: Descriptor) -> object:
    """Value of a slot or of an attribute computed by a C type."""
    env = vm.env
    if name == "__dict__":
        return environment_mutations.read_instance_dict(
            env, obj, cast(dict[str, object], found.__get__(obj, type(obj)))
        )
    if name == "__class__":
        return vm.class_of(obj)
    source = env.sources.get(id(obj))
    if source is not None:
        _check_pure_getter(found, obj, name)
    if type(obj) is types.CellType and cells.is_cell_written(vm, obj):
        value = env.overlay.cell(obj)
        if value is MISSING:
            raise ValueError("Cell is empty")
        return value
    if found in READ_EFFECTS:
        READ_EFFECTS[found](vm, obj)
    if is_slot(found):
        value = env.overlay.slot(obj, name)
    elif source is not None:
        with env.trace.paused():  # a node of autograd creates the tensors that it has saved
            value = found.__get__(obj, type(obj))
    else:
        value = found.__get__(obj, type(obj))
    if value is MISSING:
        _guard_empty_slot(vm, obj, name)
        shown = fully_qualified_name(type(obj)) if PY313 else type(obj).__name__
        raise AttributeError(f"{shown!r} object has no attribute {name!r}", name=name, obj=obj)
    computed = type(found) is not types.MemberDescriptorType
    if source is not None and (computed or env.log.is_original_attribute(obj, name, value)):
        return wrap_values.wrap(env, value, source.child("member", name))
    return value


# Side effects of reading an attribute computed by C code, by its descriptor.
READ_EFFECTS: dict[object, Callable[[VM, object], None]] = {}


def _check_pure_getter(found: object, obj: object, name: str) -> None:
    """Raise Unsupported for an attribute computed by C code that may have side effects."""
    if type(found) is types.GetSetDescriptorType and not is_pure_attribute(found):
        what = f"attribute {name!r} of an environment {type(obj).__qualname__}, whose effects are not known"
        raise unsupported(what)


def wrap_class_attr(vm: VM, found: object, owner: type, name: str, part: str | None = None) -> object:
    """The attribute `name` of the class `owner`, or its `part` (a staticmethod's function), as an environment object."""
    value = found if part is None else getattr(found, part)
    if type(value) is FunctionType or owner is None or vm.env.sources.is_created_class(owner):
        return value
    if vm.env.log.has_written_name(owner, name):
        return value
    source = vm.env.sources.const(owner).child("attr", name)
    return wrap_values.wrap(
        vm.env, value, source if part is None else source.child("member", part), decided=True
    )


def load_python_data(vm: VM, obj: object, name: str, found: object) -> object:
    """Call `__get__` of a data descriptor written in Python."""
    if type(found) is enum.property and found is vars(enum.Enum).get(name):
        return load_generic(vm, obj, f"_{name}_")  # `value` and `name` are properties of the library
    found = wrap_class_attr(vm, found, vm.type_info(type(obj)).find(name)[2], name)
    get = descriptor_method(vm, found, "__get__")
    return vm.call_function(cast(FunctionType, get), (found, obj, type(obj)))


DATA_LOADERS: dict[Sentinel, Callable[..., object]] = {
    PROPERTY: _load_property,
    NATIVE_DATA: _load_native_data,
    PYTHON_DATA: load_python_data,
}


def load_value(vm: VM, obj: object, name: str, found: object, owner: type) -> object:
    """A plain value `found` under `name` of the class `owner`."""
    if vm.env.sources.is_created_class(owner) or vm.env.log.has_written_name(owner, name):
        return found
    covered = vm.env.facts.cover(owner, name)
    return wrap_values.wrap(
        vm.env, found, vm.env.sources.const(owner).child("attr", name), decided=not covered
    )


def load_non_data(vm: VM, obj: object, name: str, found: Descriptor, owner: type) -> object:
    """Call `__get__` of a descriptor without `__set__`."""
    get = descriptor_method(vm, found, "__get__")
    if type(get) is FunctionType:
        return vm.call_function(get, (wrap_class_attr(vm, found, owner, name), obj, type(obj)))
    bound = found.__get__(obj, type(obj))
    if type(bound) is MethodType and bound.__func__ is found:  # for example a cached function
        wrap_class_attr(vm, found, owner, name)
    return bound


def _load_cached_property(
    vm: VM, obj: object, name: str, found: functools.cached_property[object], owner: type
) -> object:
    source = vm.env.sources.get(id(obj))
    if source is not None and vm.env.log.was_absent(obj, name):
        vm.env.facts.guard("not_in_dict", source, name, key=name)
    attribute = found.attrname or name
    vm.frames.call_site = with_result_handler(
        vm.frames.call_site, result_polyfills.store_cached_property, obj, attribute
    )
    value = vm.call(found.func, (obj,), {})
    writes = vm.env.log.writes
    store_in_instance(vm, obj, attribute, value)
    vm.env.log.writes = writes
    return value


def bind_class_method(
    vm: VM, found: classmethod[object, ..., object], cls: type, owner: type, name: str
) -> object:
    """The classmethod `found`, the attribute `name` of `owner`, bound to `cls`."""
    inner: object = found.__func__
    if type(inner) is FunctionType:
        return MethodType(inner, cls)
    get = descriptor_method(vm, inner, "__get__")
    if get is MISSING:
        return MethodType(
            cast(Callable[..., object], wrap_class_attr(vm, found, owner, name, "__func__")), cls
        )
    if type(get) is FunctionType:
        return vm.call_function(get, (wrap_class_attr(vm, found, owner, name, "__func__"), cls, type(cls)))
    return found.__get__(None, cls)


CLASS_LOADERS: dict[Sentinel, Callable[..., object]] = {
    FUNCTION: lambda vm, obj, name, found, owner: MethodType(found, obj),
    CLASS_METHOD: lambda vm, obj, name, found, owner: bind_class_method(vm, found, type(obj), owner, name),
    STATIC_METHOD: lambda vm, obj, name, found, owner: wrap_class_attr(vm, found, owner, name, "__func__"),
    VALUE: load_value,
    NON_DATA: load_non_data,
    CACHED_PROPERTY: _load_cached_property,
}
