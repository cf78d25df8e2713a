"""Attributes of classes and of `super()`."""

from __future__ import annotations

import enum
import types
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.native_functions import runs_natively
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
    Found,
    TypeInfo,
    classify,
)
from smelt.capture.base.value_kinds import MISSING, FunctionType, MethodType
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.attributes.annotations import check_annotations
from smelt.capture.semantics.attributes.instance_attributes import (
    CLASS_LOADERS,
    Descriptor,
    bind_class_method,
    load_by_getattribute,
    load_property,
    load_python_data,
    load_value,
    wrap_class_attr,
)
from smelt.capture.semantics.attributes.method_lookup import descriptor_method
from smelt.capture.vm.vm import VM

_this_class = super.__dict__["__thisclass__"].__get__
_self = super.__dict__["__self__"].__get__
_self_class = super.__dict__["__self_class__"].__get__


def load_class_attr(vm: VM, cls: type, name: str) -> object:
    """`cls.name`: the metaclass's `__getattribute__` if it has one in Python, else `type.__getattribute__`."""
    vm.env.facts.use_lookups(cls)
    vm.env.facts.use_lookups(type(cls))
    meta = vm.type_info(type(cls))
    if meta.getattribute is not None and not runs_natively(meta.getattribute):
        return load_by_getattribute(vm, cls, name, meta, meta.getattribute)
    return load_plain_class_attr(vm, cls, name, meta)


def load_plain_class_attr(vm: VM, cls: type, name: str, meta: TypeInfo, use_getattr: bool = True) -> object:
    """`type.__getattribute__(cls, name)`, then the metaclass's `__getattr__`."""
    env = vm.env
    env.facts.use_lookups(cls)
    env.facts.use_lookups(meta.cls)
    how, found, owner = meta.find(name)
    if how is PROPERTY:
        return vm.call(found.fget, (cls,), {})
    if how is PYTHON_DATA:
        return load_python_data(vm, cls, name, found)
    if how is NATIVE_DATA and name == "__dict__":
        return _class_dict(vm, cls)
    if how is NATIVE_DATA:
        if name == "__annotations__":
            check_annotations(env, cls)
        value = getattr(cls, name)
        if env.sources.is_created_class(cls):
            return value
        named = name in ("__name__", "__qualname__")  # assigning them does not change the class version
        return wrap_values.wrap(env, value, env.sources.const(cls).child("member", name), decided=not named)
    own = vm.type_info(cls).find(name)
    if own[0] is not ABSENT:
        return _bind_to_class(vm, cls, name, own)
    if how in _INSTANCE_LIKE_KINDS:
        return CLASS_LOADERS[how](vm, cls, name, found, owner)
    if how is ABSENT and use_getattr and type(meta.getattr) is FunctionType:
        if isinstance(cls, enum.EnumMeta):
            return getattr(cls, name)
        return vm.call_function(meta.getattr, (cls, name))
    return type.__getattribute__(cls, name) if type(meta.getattr) is FunctionType else getattr(cls, name)


# Kinds of metaclass attributes that a class reads as an instance does.
_INSTANCE_LIKE_KINDS = (FUNCTION, CLASS_METHOD, STATIC_METHOD, NON_DATA, VALUE)


def _class_dict(vm: VM, cls: type) -> object:
    """`cls.__dict__` in its current state, which the class version guards."""
    if vm.env.sources.is_created_class(cls):
        return cls.__dict__
    vm.env.facts.use_class(cls)
    source = vm.env.sources.const(cls)
    return types.MappingProxyType(
        {
            k: v
            if vm.env.log.has_written_name(cls, k)
            else wrap_values.wrap(vm.env, v, source.child("attr", k), decided=True)
            for k, v in vm.env.overlay.names(cls).items()
        }
    )


def _bind_to_class(vm: VM, cls: type, name: str, own: Found) -> object:
    how, found, owner = own
    if how is FUNCTION:
        return found
    if how in (PROPERTY, CACHED_PROPERTY):
        return wrap_class_attr(vm, found, owner, name)
    if how is CLASS_METHOD:
        return bind_class_method(vm, found, cls, owner, name)
    if how is STATIC_METHOD:
        return wrap_class_attr(vm, found, owner, name, "__func__")
    if how is VALUE:
        return load_value(vm, cls, name, found, owner)
    get = descriptor_method(vm, found, "__get__")
    if (
        type(get) is FunctionType
        and not isinstance(found, types.DynamicClassAttribute)
        and not issubclass(cls, enum.Enum)
    ):
        return vm.call_function(get, (wrap_class_attr(vm, found, owner, name), None, cls))
    value = getattr(cls, name)
    return wrap_class_attr(vm, found, owner, name) if value is found else value


def load_super_attr(vm: VM, proxy: super, name: str) -> object:
    """`proxy.name` of a `super()` object: an attribute of the classes after its own, else of `proxy` itself."""
    cls, obj, obj_cls = _this_class(proxy), _self(proxy), _self_class(proxy)
    source = vm.env.sources.get(id(proxy))
    if source is not None:  # an environment object
        wrap_values.wrap(vm.env, cls, source.child("member", "__thisclass__"))
        obj = wrap_values.wrap(vm.env, obj, source.child("member", "__self__"))
    found, base = (
        (MISSING, None) if obj_cls is None or name == "__class__" else _find_super(vm, cls, obj_cls, name)
    )
    if base is not None:
        return _bind_super(vm, found, obj, obj_cls, name, base)
    return obj if name == "__self__" else object.__getattribute__(proxy, name)


def _find_super(vm: VM, cls: type, obj_cls: type, name: str) -> tuple[object, type | None]:
    """What the first class after `cls` in the resolution order of `obj_cls` holds under `name`, and that class."""
    vm.env.facts.use_lookups(obj_cls)
    mro = obj_cls.__mro__
    for base in mro[next(i for i, x in enumerate(mro) if x is cls) + 1 :]:
        found = vm.env.class_attribute(base, name)
        if found is not MISSING:
            return found, base
    return MISSING, None


def _bind_super(vm: VM, found: object, obj: object, obj_cls: type, name: str, base: type) -> object:
    how = classify(found, base)[0]
    on_class = obj is obj_cls
    if how is FUNCTION:
        return found if on_class else MethodType(cast(FunctionType, found), obj)
    if how is PROPERTY and not on_class:
        return load_property(vm, obj, cast(property, found))
    if type(found) is classmethod and type(found.__func__) is FunctionType:
        return MethodType(found.__func__, obj_cls)
    if how is VALUE:
        return load_value(vm, obj, name, found, base)
    get = descriptor_method(vm, found, "__get__")
    if type(get) is FunctionType:
        return vm.call_function(
            get, (wrap_class_attr(vm, found, base, name), None if on_class else obj, obj_cls)
        )
    return cast(Descriptor, found).__get__(None if on_class else obj, obj_cls)
