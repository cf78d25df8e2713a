"""Attribute loads, dispatched by the type of the object."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Mapping

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.type_lookup import ABSENT, FUNCTION, type_find
from smelt.capture.base.value_kinds import (
    CONTAINER_TYPES,
    LEAF_TYPES,
    MISSING,
    NULL,
    FunctionType,
    MethodType,
    instance_dict,
)
from smelt.capture.base.vm_frames import Coroutine, Generator
from smelt.capture.proxies import array_proxy
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.capture.semantics import number_semantics
from smelt.capture.semantics.attributes.class_attributes import load_class_attr, load_super_attr
from smelt.capture.semantics.attributes.instance_attributes import (
    CLASS_LOADERS,
    DATA_LOADERS,
    load_by_getattribute,
    load_generic,
)
from smelt.capture.semantics.attributes.namespace_attributes import (
    load_bound_part,
    load_coroutine,
    load_function_attr,
    load_generator,
    load_module_attr,
)
from smelt.capture.semantics.attributes.native_attributes import load_custom_attr
from smelt.capture.semantics.attributes.tensor_attributes import load_tensor_attr
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import RANDOM_STATE, TENSOR_SUBCLASS, UNSUPPORTED_OBJECT, Reason
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, NestedTensor
from smelt.tracing.fake.fake_tensor import FakeTensor, hides_metadata
from smelt.tracing.fake.plain_tensor_classes import PLAIN_TYPES
from smelt.tracing.record.nested_tensors import values_in
from smelt.tracing.symbolic.numbers_in_containers import wrap_nested
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import PROXY_EXAMPLES


def load_attr(vm: VM, obj: object, name: str) -> object:
    """`obj.name`. Raises AttributeError as the object would."""
    cls = type(obj)
    loader = LOADERS.get(cls)
    if loader is not None:
        if cls not in _CALL_SITE_LOADERS:
            vm.frames.call_site = None
        return loader(vm, obj, name)
    if isinstance(obj, type):
        return load_class_attr(vm, obj, name)
    if isinstance(obj, types.ModuleType):
        vm.frames.call_site = None
        return load_module_attr(vm, obj, name)
    if isinstance(obj, torch.Tensor):
        return load_real_tensor_attr(vm, obj, name)
    info = vm.type_info(cls)
    if info.getattribute is not None:
        return load_by_getattribute(vm, obj, name, info, info.getattribute)
    if info.has_native_getattribute or (info.hides_dict and info.find(name)[0] not in DATA_LOADERS):
        vm.frames.call_site = None
        return load_custom_attr(vm, obj, name)
    return load_generic(vm, obj, name)


def load_method(vm: VM, obj: object, name: str) -> tuple[object, object]:
    """`obj.name` for a call: (function, obj), or (NULL, attribute). The call of a method of a text whose characters are not
    known is where the graph breaks, so that only its result goes to the resume function."""
    cls = type(obj)
    if cls is str or cls is TextProxy:  # after a break, the text may change, which a bound method would guard
        method = str.__dict__.get(name)
        if type(method) is types.MethodDescriptorType:
            return method, obj
    if cls not in LOADERS and cls not in LEAF_TYPES:
        info = vm.type_info(cls)
        plain = info.getattribute is None and not info.has_native_getattribute
        if plain and not isinstance(obj, (type, types.ModuleType, torch.Tensor)):
            how, found, _ = info.find(name)
            if how is FUNCTION and not is_in_instance(vm, obj, name):
                return found, obj
    return NULL, load_attr(vm, obj, name)


def is_in_instance(vm: VM, obj: object, name: str) -> bool:
    """Whether `name` is in the instance dictionary, guarded."""
    env, cls = vm.env, type(obj)
    env.facts.use_lookups(cls)
    own = env.overlay.instance_dict(obj)
    if own is None:
        return False
    present = name in own
    source = env.sources.get(id(obj))
    if not present and source is not None and env.log.was_absent(obj, name):
        env.facts.guard("not_in_dict", source, name, key=name)
    return present


def load_special(vm: VM, obj: object, name: str) -> object:
    """A special method of `obj`, looked up on the class only as the interpreter does. MISSING if there is none."""
    cls = type(obj)
    if isinstance(obj, torch.Tensor) or cls in LOADERS:
        return load_default(vm, obj, name, MISSING) if hasattr(cls, name) else MISSING
    vm.env.facts.use_lookups(cls)
    how, found, owner = vm.type_info(cls).find(name)
    if how is ABSENT:
        return MISSING
    if how in DATA_LOADERS:
        return DATA_LOADERS[how](vm, obj, name, found)
    return CLASS_LOADERS[how](vm, obj, name, found, owner)


def load_default(vm: VM, obj: object, name: str, default: object) -> object:
    """`getattr(obj, name, default)`."""
    try:
        return load_attr(vm, obj, name)
    except AttributeError:
        return default


def load_bound_attr(vm: VM, method: MethodType, name: str) -> object:
    """An attribute of a bound method or of its function."""
    if name in ("__func__", "__self__"):
        return load_bound_part(vm, method, name)
    function = load_bound_part(vm, method, "__func__")
    if name == "__class__" or (name != "__doc__" and name in type(method).__dict__):
        return getattr(method, name)
    return load_attr(vm, function, name)


def load_array_attr(vm: VM, array: array_proxy.ArrayProxy, name: str) -> object:
    """An attribute of a traced array or NumPy scalar."""
    if name == "__class__":
        return vm.class_of(array)
    return array_proxy.load_array_attr(array, name)


def _load_bound_method_attr(vm: VM, method: array_proxy.BoundMethod, name: str) -> object:
    if name == "__class__":
        return vm.class_of(method)
    raise unsupported(f"attribute {name} of a method of NumPy or str")


def _load_number_attr(vm: VM, proxy: NumberProxy, name: str) -> object:
    if name == "__class__":
        return vm.class_of(proxy)
    raise unreadable(f"attribute {name} of a number that a tensor holds", proxy)


def _load_opaque_attr(vm: VM, proxy: OpaqueProxy, name: str) -> object:
    if name == "__class__":
        return vm.class_of(proxy)
    raise unreadable(f"attribute {name} of an object that changes", proxy)


def _load_text_attr(vm: VM, text: TextProxy, name: str) -> object:
    """An attribute of a string with unknown characters. The program may pass on its bound methods."""
    if name == "__class__":
        return str
    if type(str.__dict__.get(name)) is types.MethodDescriptorType:
        return array_proxy.BoundMethod(text, name)
    return getattr(text, name)


def load_native_attr(vm: VM, obj: object, name: str) -> object:
    """An attribute of an object whose C type runs no user code."""
    return getattr(obj, name)


def load_real_tensor_attr(vm: VM, tensor: torch.Tensor, name: str) -> object:
    """An attribute of a tensor without a fake: inside a transform, or an unsupported environment tensor. Of the latter:
    guarded metadata, attributes of its own class and instance dictionary, and C methods, whose calls break the graph. Raises
    Unsupported for other attributes."""
    source = vm.env.sources.get(id(tensor))
    if id(tensor) in vm.trace.call.wrappers:
        return _load_wrapper_attr(vm, tensor, name)
    if source is None:
        return getattr(tensor, name)
    cls = type(tensor)
    hidden = hides_metadata(tensor)
    if hidden and vm.type_info(cls).find(name)[2] not in torch.Tensor.__mro__:
        return _load_subclass_attr(vm, tensor, name)
    method = type(type_find(cls, name)) is types.MethodDescriptorType
    if not method and (hidden or name not in _GUARDED_METADATA):
        kind = UNSUPPORTED_OBJECT if cls in PLAIN_TYPES else TENSOR_SUBCLASS
        raise unsupported(f"{name} of a {cls.__qualname__} without a fake", kind)
    if method:
        if name in (instance_dict(tensor) or {}):
            return load_generic(vm, tensor, name)
        vm.env.facts.guard("not_in_dict", source, name, key=name)
    with DisableTorchFunction(), DisableTorchDispatch():
        return getattr(tensor, name)


def _load_nested_attr(vm: VM, nested: torch.Tensor, name: str) -> object:
    """An attribute of a jagged nested tensor of fakes: of its class, metadata, or a method of torch."""
    found = type_find(type(nested), name)
    if name == "_values" and values_in(nested).requires_grad:
        raise unsupported("_values of a NestedTensor that requires gradients", TENSOR_SUBCLASS)
    if name in vars(nested):
        return wrap_nested(vars(nested)[name])
    if not hasattr(type(nested), name) and id(nested) in vm.env.sources:
        raise unsupported(f"{name} of a NestedTensor", TENSOR_SUBCLASS)
    if type(found) in (types.MethodDescriptorType, FunctionType):
        with DisableTorchFunction():
            return getattr(nested, name)
    return vm.call_native(getattr, (nested, name))


def _load_wrapper_attr(vm: VM, tensor: torch.Tensor, name: str) -> object:
    """An attribute of a tensor of a wrapper subclass: of the class itself or of the instance, guarded metadata, or a method
    of torch."""
    cls = type(tensor)
    if vm.type_info(cls).find(name)[2] not in torch.Tensor.__mro__ or name in (instance_dict(tensor) or {}):
        return _load_subclass_attr(vm, tensor, name)
    if name in _VIEW_ATTRIBUTES:
        return vm.call_native(getattr, (tensor, name))
    method = type(type_find(cls, name)) in (types.MethodDescriptorType, FunctionType)
    if not method and name not in _GUARDED_METADATA:
        raise unsupported(f"{name} of a {cls.__qualname__}", TENSOR_SUBCLASS)
    if id(tensor) in vm.env.sources:
        vm.env.facts.guard("not_in_dict", vm.env.sources[id(tensor)], name, key=name)
    with DisableTorchFunction(), DisableTorchDispatch():
        if name == "shape":  # which may be symbolic
            return wrap_nested(vm.trace.wrapper_gradients.as_proxies(tensor).shape)
        return getattr(tensor, name)


def wrapper_attributes(vm: VM, wrapper: torch.Tensor) -> Mapping[str, object]:
    """The attributes of a wrapper subclass's tensor, with the tensors as the VM's values."""
    attributes = instance_dict(wrapper) or {}
    if id(wrapper) not in vm.env.sources:
        return attributes
    return {
        name: _load_subclass_attr(vm, wrapper, name) if isinstance(value, torch.Tensor) else value
        for name, value in attributes.items()
    }


def _load_subclass_attr(vm: VM, tensor: torch.Tensor, name: str) -> object:
    """An attribute of the subclass itself or of the instance."""
    info = vm.type_info(type(tensor))
    if info.getattribute is not None:
        return load_by_getattribute(vm, tensor, name, info, info.getattribute)
    return load_generic(vm, tensor, name)


_VIEW_ATTRIBUTES = frozenset(("T", "mT"))
_GUARDED_METADATA = frozenset((
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_sparse", "is_sparse_csr", "is_quantized",
))  # fmt: skip


def load_random_attr(vm: VM, generator: random.Random, name: str) -> object:
    """An attribute of a random number generator. Raises Unsupported for state that a draw has changed."""
    if name == "gauss_next" and any(draw.generator is generator for draw in vm.env.log.draws):
        raise Unsupported(Reason(RANDOM_STATE, "random.gauss_next"))
    return load_generic(vm, generator, name)


LOADERS: dict[type, Callable[..., object]] = {  # loader(vm, obj, name)
    FakeTensor: load_tensor_attr,
    array_proxy.ArrayProxy: load_array_attr,
    array_proxy.BoundMethod: _load_bound_method_attr,
    NumberProxy: _load_number_attr,
    OpaqueProxy: _load_opaque_attr,
    TextProxy: _load_text_attr,
    types.ModuleType: load_module_attr,
    type: load_class_attr,
    FunctionType: load_function_attr,
    MethodType: load_bound_attr,
    functools.partial: load_generic,
    super: load_super_attr,
    Generator: load_generator,
    Coroutine: load_coroutine,
    types.BuiltinFunctionType: load_native_attr,
    types.CodeType: load_native_attr,
    types.GenericAlias: load_native_attr,
    types.UnionType: load_native_attr,
    tuple: load_native_attr,
    random.Random: load_random_attr,
    NestedTensor: _load_nested_attr,
    **dict.fromkeys(NUMBERS, number_semantics.load_attr),
    **dict.fromkeys(PROXY_EXAMPLES, number_semantics.load_proxy_attr),
    **dict.fromkeys(LEAF_TYPES, load_native_attr),
    **dict.fromkeys(CONTAINER_TYPES, load_native_attr),
}
_CALL_SITE_LOADERS = (type, super)  # these loaders run only one Python function and return its result
