"""Attribute functions: `getattr`, `setattr`, `object.__setattr__` and similar, `vars`, `dir`."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, breakable, builtin, function, unsupported
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.base.vm_frames import with_result_handler
from smelt.capture.semantics import attributes, result_polyfills, scopes
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.namespace_attributes import load_from_module
from smelt.capture.semantics.attributes.tensor_attributes import OF_FAKES
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor

_Name = tuple[object, str]  # an object, and the name of an attribute


@builtin(getattr)
@breakable
def _getattr(vm: VM, args: _Name | tuple[object, str, object], kwargs: Kwargs) -> object:
    if len(args) == 2:
        return attributes.load_attr(vm, *args)
    obj, name, default = args
    _set_result_handler(vm, result_polyfills.identity, result_polyfills.getattr_default, default)
    return attributes.load_default(vm, obj, name, default)


def _set_result_handler(
    vm: VM, after: Callable[..., object], otherwise: Callable[..., object], *values: object
) -> None:
    """Set the continuations for an attribute load in user code: `after` it returns, `otherwise` if it raises."""
    vm.frames.call_site = with_result_handler(vm.frames.call_site, after, *values, on_error=otherwise)


@builtin(hasattr)
@breakable
def _hasattr(vm: VM, args: _Name, kwargs: Kwargs) -> bool:
    obj, name = args
    _set_result_handler(vm, result_polyfills.attribute_found, result_polyfills.attribute_missing)
    return attributes.load_default(vm, obj, name, MISSING) is not MISSING


@builtin(setattr)
@breakable
def _setattr(vm: VM, args: tuple[object, str, object], kwargs: Kwargs) -> None:
    vm.frames.call_site = with_result_handler(vm.frames.call_site, result_polyfills.return_none)
    attributes.store_attr(vm, *args)


@builtin(delattr)
@breakable
def _delattr(vm: VM, args: _Name, kwargs: Kwargs) -> None:
    vm.frames.call_site = with_result_handler(vm.frames.call_site, result_polyfills.return_none)
    attributes.delete_attr(vm, *args)


@builtin(object.__getattribute__)
@breakable
def _object_getattribute(vm: VM, args: _Name, kwargs: Kwargs) -> object:
    obj, name = args
    return attributes.object_getattribute(vm, obj, name)


builtin(types.ModuleType.__getattribute__)(lambda vm, args, kwargs: load_from_module(vm, *args))


@builtin(type.__getattribute__)
def _type_getattribute(vm: VM, args: tuple[type, str], kwargs: Kwargs) -> object:
    cls, name = args
    return attributes.load_plain_class_attr(vm, cls, name, vm.type_info(type(cls)), use_getattr=False)


@builtin(object.__setattr__)
@breakable
def _object_setattr(vm: VM, args: tuple[object, str, object], kwargs: Kwargs) -> None:
    vm.frames.call_site = with_result_handler(vm.frames.call_site, result_polyfills.return_none)
    store = attributes.store_attr if type(args[0]) is FakeTensor else attributes.store_generic
    store(vm, *args)


builtin(type.__setattr__)(lambda vm, args, kwargs: attributes.store_named(vm, *args))


@builtin(object.__delattr__)
def _object_delattr(vm: VM, args: _Name, kwargs: Kwargs) -> None:
    obj, name = args
    if type(obj) is FakeTensor:
        return attributes.delete_attr(vm, obj, name)
    attributes.store_in_instance(vm, obj, name, MISSING)


@function(nn.Module.__getattr__)
def _module_getattr(vm: VM, args: _Name, kwargs: Kwargs) -> object:
    obj, name = args
    return attributes.load_module_entry(vm, obj, name, vm.env.overlay.instance_dict(obj) or {})


function(nn.Module.__setattr__)(lambda vm, args, kwargs: attributes.store_in_module(vm, *args))


@builtin(vars)
def _vars(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return scopes.local_names(vm, vm.current_frame)
    try:
        return attributes.load_attr(vm, args[0], "__dict__")
    except AttributeError:
        pass
    raise TypeError("vars() argument must have __dict__ attribute")


@builtin(dir)
def _dir(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return sorted(scopes.local_names(vm, vm.current_frame))
    own = python_method(vm, args[0], "__dir__")
    if own is not None:
        return sorted(cast("Sequence[str]", vm.elements(vm.call_function(own, (args[0],)))))
    if id(args[0]) in vm.env.sources and not isinstance(args[0], (type, types.ModuleType)):
        raise unsupported("dir() of an environment object")
    if isinstance(args[0], types.ModuleType):
        raise unsupported("dir() of a module")
    if type(args[0]) is FakeTensor:
        return [name for name in dir(args[0]) if name not in OF_FAKES or hasattr(torch.Tensor, name)]
    vm.env.facts.use_class(args[0] if isinstance(args[0], type) else type(args[0]))
    return vm.call_native(dir, args)
