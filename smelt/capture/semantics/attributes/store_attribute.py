"""Attribute stores and deletions."""

from __future__ import annotations

import types
from typing import cast

import torch
from torch import nn

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.native_functions import is_native_module
from smelt.capture.base.type_lookup import FUNCTION, NATIVE_DATA, PROPERTY, PYTHON_DATA, type_find
from smelt.capture.base.value_kinds import (
    IMMUTABLE_TYPE_FLAG,
    MISSING,
    FunctionType,
    is_special_name,
    module_dict,
    module_name,
)
from smelt.capture.environment import environment_mutations
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.semantics import scopes
from smelt.capture.semantics.attributes import nn_module_attributes
from smelt.capture.semantics.attributes.instance_attributes import (
    DATA_LOADERS,
    delete_property,
    store_in_instance,
    store_property,
    wrap_class_attr,
)
from smelt.capture.semantics.attributes.load_attribute import load_attr
from smelt.capture.semantics.attributes.method_lookup import descriptor_method
from smelt.capture.semantics.attributes.namespace_attributes import load_from_module
from smelt.capture.semantics.attributes.native_attributes import delete_custom_attr, store_custom_attr
from smelt.capture.semantics.attributes.tensor_attributes import store_tensor_attr
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.tracing.fake.fake_tensor import FakeTensor


def store_attr(vm: VM, obj: object, name: str, value: object) -> None:
    """`obj.name = value`."""
    cls = type(obj)
    if type(obj) is FakeTensor:
        vm.frames.call_site = None
        return store_tensor_attr(vm, obj, name, value)
    if isinstance(obj, torch.Tensor) and id(obj) in vm.env.sources:
        raise unsupported(f"attribute {name!r} of a {cls.__qualname__} without a fake", UNSUPPORTED_EFFECT)
    if isinstance(obj, (type, types.ModuleType)) or cls is FunctionType:
        return _store_named(vm, obj, name, value)
    info = vm.type_info(cls)
    vm.env.facts.use_lookups(cls)
    if info.has_native_setattr:
        vm.frames.call_site = None
        store_custom_attr(vm, obj, name, value)
    elif info.setattr is not None and info.setattr is not nn_module_attributes.MODULE_SETATTR:
        vm.call(info.setattr, (obj, name, value), {})
    elif info.is_module and info.setattr is nn_module_attributes.MODULE_SETATTR:
        store_in_module(vm, cast(nn.Module, obj), name, value)
    else:
        store_generic(vm, obj, name, value)


def store_generic(vm: VM, obj: object, name: str, value: object) -> None:
    """`object.__setattr__`."""
    how, found, owner = vm.type_info(type(obj)).find(name)
    if how is NATIVE_DATA:
        _check_revertible(vm, obj, name)
    if how is PROPERTY:
        store_property(vm, obj, found, value)
    elif how is PYTHON_DATA:
        setter = descriptor_method(vm, found, "__set__")
        vm.call_function(cast(FunctionType, setter), (wrap_class_attr(vm, found, owner, name), obj, value))
    else:
        store_in_instance(vm, obj, name, value)


def _check_revertible(vm: VM, obj: object, name: str) -> None:
    """Raise Unsupported before a field of an environment object changes that the overlay does not track."""
    if id(obj) in vm.env.sources and name not in _REVERTIBLE and name not in slot_names(type(obj)):
        what = f"attribute {name!r} of a {type(obj).__qualname__} changes"
        raise unsupported(what, UNSUPPORTED_EFFECT)


_REVERTIBLE = ("__dict__", "__class__", "cell_contents")


def store_in_module(vm: VM, obj: nn.Module, name: str, value: object) -> None:
    """`nn.Module.__setattr__`."""
    how = vm.type_info(type(obj)).find(name)[0]
    if nn_module_attributes.belongs_in_dicts(vm, obj, name, value):
        vm.frames.call_site = None
        nn_module_attributes.store_entry(vm, obj, name, value)
    elif how is PROPERTY:
        store_generic(vm, obj, name, value)
    else:
        store_in_instance(vm, obj, name, value)


def _store_named(vm: VM, owner: object, name: str, value: object) -> None:
    """Store an attribute of a class, module or function."""
    meta_setattr = vm.type_info(type(owner)).setattr
    is_class = isinstance(owner, type)
    if type(meta_setattr) is FunctionType and (
        is_class or not is_native_module(meta_setattr.__globals__.get("__name__"))
    ):
        vm.call_function(meta_setattr, (owner, name, value))
    else:
        _check_metaclass(owner, "__setattr__")
        store_named(vm, owner, name, value)


def _check_metaclass(owner: object, name: str) -> None:
    """Raise Unsupported for a class whose C metaclass implements its own attribute stores or deletions."""
    found = type_find(type(owner), name)
    if isinstance(owner, type) and not isinstance(found, FunctionType) and found is not getattr(type, name):
        meta = type(owner).__qualname__
        raise unsupported(f"attribute of class {owner.__qualname__}, a {meta}, changes", UNSUPPORTED_EFFECT)


def store_named(vm: VM, owner: object, name: str, value: object) -> None:
    """`type.__setattr__` and its equivalents for modules and functions."""
    env = vm.env
    if isinstance(owner, types.ModuleType) and (
        is_native_module(module_name(owner)) or type_find(type(owner), name) is not MISSING
    ):
        raise unsupported(f"attribute {name!r} of module {module_name(owner)} is set", UNSUPPORTED_EFFECT)
    if isinstance(owner, types.ModuleType):
        return scopes.store_global(vm, module_dict(owner), name, value)
    if id(owner) not in env.sources or _is_immutable(owner):
        type.__setattr__(owner, name, value) if isinstance(owner, type) else setattr(owner, name, value)
    elif isinstance(owner, type):
        _prepare_class_mutation(vm, owner, name)
        env.log.set_name(owner, name, value)
    else:
        _check_not_special(owner, name)
        store_in_instance(vm, owner, name, value)
    vm.classes.forget(owner)


def _is_immutable(owner: object) -> bool:
    return isinstance(owner, type) and bool(owner.__flags__ & IMMUTABLE_TYPE_FLAG)


def _check_not_special(owner: object, name: str) -> None:
    if is_special_name(name):
        raise unsupported(f"{name} of {owner!r} is set", UNSUPPORTED_EFFECT)


def _prepare_class_mutation(vm: VM, owner: type, name: str) -> None:
    """Prepare a change of an environment class's attribute. Raises Unsupported if native code may read it."""
    env = vm.env
    if vm.type_info(type(owner)).find(name)[0] in DATA_LOADERS or is_native_module(owner.__module__):
        raise unsupported(f"{name} of class {owner.__qualname__} changes", UNSUPPORTED_EFFECT)
    _check_not_special(owner, name)
    environment_mutations.record_class_mutation(
        env, owner, name, was_read=vm.classes.has_looked_up(owner, name)
    )
    env.memo.reads.clear()


def delete_attr(vm: VM, obj: object, name: str) -> None:
    """`del obj.name`."""
    if type(obj) is FakeTensor and vm.trace.is_environment(obj):
        raise unsupported(f"attribute {name!r} of a tensor of the environment is deleted", UNSUPPORTED_EFFECT)
    info = vm.type_info(type(obj))
    how, found, _ = info.find("__delattr__")
    if how is FUNCTION and not info.is_module:
        vm.call_function(found, (obj, name))
        return
    if type(found) is types.WrapperDescriptorType and found.__name__ != "__delattr__":
        vm.call(found, (obj, name), {})  # `__delattr__ = dict.__delitem__`
        return
    if isinstance(obj, (type, types.ModuleType)) or type(obj) is FunctionType:
        return _delete_named(vm, obj, name)
    if info.has_native_setattr:
        vm.frames.call_site = None
        return delete_custom_attr(vm, obj, name)
    how, found, _ = info.find(name)
    if how is NATIVE_DATA:
        _check_revertible(vm, obj, name)
    if how is PROPERTY:
        return delete_property(vm, obj, found)
    if how is PYTHON_DATA:
        vm.call_function(cast(FunctionType, descriptor_method(vm, found, "__delete__")), (found, obj))
        return
    vm.frames.call_site = None
    if id(obj) not in vm.env.sources:
        vm.call_native(delattr, (obj, name))
    elif not (info.is_module and nn_module_attributes.delete_entry(vm, cast(nn.Module, obj), name)):
        store_in_instance(vm, obj, name, MISSING)


def _delete_named(vm: VM, owner: object, name: str) -> None:
    vm.frames.call_site = None
    if isinstance(owner, types.ModuleType):
        load_from_module(vm, owner, name)
        return scopes.delete_global(vm, module_dict(owner), name)
    _check_metaclass(owner, "__delattr__")
    if id(owner) not in vm.env.sources or _is_immutable(owner):
        delattr(owner, name)
    elif isinstance(owner, type):
        load_attr(vm, owner, name)
        if vm.env.overlay.name(owner, name) is MISSING:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {name!r}")
        _prepare_class_mutation(vm, owner, name)
        vm.env.log.set_name(owner, name, MISSING)
    else:
        _check_not_special(owner, name)
        load_attr(vm, owner, name)
        store_in_instance(vm, owner, name, MISSING)
    vm.classes.forget(owner)
