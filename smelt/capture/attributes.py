"""Attribute access as CPython's object protocol defines it, carried out by the VM.

Lookups read type and instance dictionaries directly, so that no user code runs unseen: properties, descriptors,
`__getattr__` and `__getattribute__` written in Python are interpreted. What was found is guarded: class attributes by the
version of the class, instance attributes by their value, a method also by not being shadowed in the instance.
"""

from __future__ import annotations

import enum
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from smelt.capture import arrays, numbers
from smelt.capture.effects import Call
from smelt.capture.frames import Generator, VMCallable
from smelt.capture.natives import is_native_module
from smelt.capture.tables import TENSOR_SETTERS
from smelt.capture.values import (
    CONTAINER_TYPES,
    LEAF_TYPES,
    MISSING,
    NULL,
    FunctionType,
    MethodType,
    Sentinel,
    instance_dict,
)
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import NUMBERS

# How a name is found in the method resolution order.
ABSENT = Sentinel("absent")
FUNCTION = Sentinel("function")
PROPERTY = Sentinel("property")
CLASS_METHOD = Sentinel("classmethod")
STATIC_METHOD = Sentinel("staticmethod")
CACHED_PROPERTY = Sentinel("cached_property")
NATIVE_DATA = Sentinel("C data descriptor")
PYTHON_DATA = Sentinel("Python data descriptor")
NON_DATA = Sentinel("non-data descriptor")
VALUE = Sentinel("plain value")

_BY_TYPE = {
    FunctionType: FUNCTION,
    property: PROPERTY,
    classmethod: CLASS_METHOD,
    staticmethod: STATIC_METHOD,
    functools.cached_property: CACHED_PROPERTY,
}
_SHADOWED = (
    FUNCTION,
    CLASS_METHOD,
    STATIC_METHOD,
    NON_DATA,
    VALUE,
)  # an instance attribute would win over these
_VM_TYPES = (FakeTensor, Generator, VMCallable, *NUMBERS)
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_module_getattr = nn.Module.__getattr__
_module_setattr = nn.Module.__setattr__

_this_class = super.__dict__["__thisclass__"].__get__
_self = super.__dict__["__self__"].__get__
_self_class = super.__dict__["__self_class__"].__get__

Found = tuple[Sentinel, Any, Any]  # how, what, in which class


def _classify(found: Any, owner: type) -> Found:
    kind = type(found)
    how = _BY_TYPE.get(kind)
    if how is None:
        get = _type_find(kind, "__get__")
        if get is MISSING:
            how = VALUE
        elif _type_find(kind, "__set__") is MISSING and _type_find(kind, "__delete__") is MISSING:
            how = NON_DATA
        elif get is property.__get__:
            how = PROPERTY
        else:
            how = PYTHON_DATA if type(get) is FunctionType else NATIVE_DATA
    return how, found, owner


def _type_find(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def _descriptor_method(vm: Any, descriptor: Any, name: str) -> Any:
    vm.outside.use_class(type(descriptor))
    return _type_find(type(descriptor), name)


class TypeInfo:
    """What the VM knows about a class: its lookups so far, and which special methods are written in Python."""

    __slots__ = ("cls", "found", "getattr", "getattribute", "has_dict", "is_module", "setattr")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.found: dict[str, Found] = {}
        self.is_module = issubclass(cls, nn.Module)
        self.has_dict = cls.__dictoffset__ != 0
        self.getattribute = self._python("__getattribute__")
        self.setattr = _type_find(cls, "__setattr__")
        if self.setattr is object.__setattr__:
            self.setattr = None
        self.getattr = _type_find(cls, "__getattr__")

    def _python(self, name: str) -> Any:
        found = _type_find(self.cls, name)
        return found if type(found) is FunctionType else None

    def find(self, name: str) -> Found:
        found = self.found.get(name)
        if found is None:
            found = self.found[name] = self._find(name)
        return found

    def _find(self, name: str) -> Found:
        for base in self.cls.__mro__:
            value = base.__dict__.get(name, MISSING)
            if value is not MISSING:
                return _classify(value, base)
        return ABSENT, None, None


def python_method(vm: Any, obj: Any, name: str) -> Any:
    """The special method `name` of obj's class if it is written in Python, else None. That there is none is guarded too."""
    cls = type(obj)
    if cls in LEAF_TYPES or cls in _VM_TYPES or cls in CONTAINER_TYPES:
        return None
    vm.outside.use_class(cls)
    how, found, _ = vm.type_info(cls).find(name)
    return found if how is FUNCTION else None


# ------------------------------------------------------------------------------------------------------- load


def load_attr(vm: Any, obj: Any, name: str) -> Any:
    """`obj.name`. Raises AttributeError as the object would."""
    cls = type(obj)
    loader = LOADERS.get(cls)
    if loader is not None:
        return loader(vm, obj, name)
    if isinstance(obj, type):
        return load_class_attr(vm, obj, name)
    if isinstance(obj, types.ModuleType):
        return load_module_attr(vm, obj, name)
    if isinstance(obj, torch.Tensor):
        return getattr(obj, name)
    info = vm.type_info(cls)
    if info.getattribute is not None:
        vm.outside.use_class(cls)
        try:
            return vm.call_function(info.getattribute, (obj, name))
        except AttributeError:
            if type(info.getattr) is not FunctionType:
                raise
        return vm.call_function(info.getattr, (obj, name))
    return load_generic(vm, obj, name)


def load_method(vm: Any, obj: Any, name: str) -> tuple[Any, Any]:
    """`obj.name` about to be called: (function, obj), or (NULL, what was found)."""
    cls = type(obj)
    if cls not in LOADERS and cls not in LEAF_TYPES:
        info = vm.type_info(cls)
        if info.getattribute is None and not isinstance(obj, (type, types.ModuleType, torch.Tensor)):
            how, found, _ = info.find(name)
            if how is FUNCTION and not _in_instance(vm, obj, name):
                return found, obj
    return NULL, load_attr(vm, obj, name)


def _in_instance(vm: Any, obj: Any, name: str) -> bool:
    """Whether `name` is in the instance's dictionary, guarded."""
    outside, cls = vm.outside, type(obj)
    outside.use_class(cls)
    own = instance_dict(obj)
    if own is None:
        return False
    present = name in own
    origin = outside.origins.get(id(obj))
    if not present and origin is not None and outside.log.was_absent(obj, name):
        outside.guard("not_in_dict", origin, name, key=name)
    return present


def load_special(vm: Any, obj: Any, name: str) -> Any:
    """A special method of `obj`, as the interpreter finds it: through the class alone. MISSING if there is none."""
    cls = type(obj)
    if isinstance(obj, torch.Tensor) or cls in LOADERS:
        return load_default(vm, obj, name, MISSING) if hasattr(cls, name) else MISSING
    vm.outside.use_class(cls)
    how, found, owner = vm.type_info(cls).find(name)
    if how is ABSENT:
        return MISSING
    if how in DATA_LOADERS:
        return DATA_LOADERS[how](vm, obj, name, found)
    return CLASS_LOADERS[how](vm, obj, name, found, owner)


def load_generic(vm: Any, obj: Any, name: str, use_getattr: bool = True) -> Any:
    """`object.__getattribute__`, then the class's `__getattr__`."""
    memo = vm.outside.attributes.get(id(obj))
    if memo is not None:
        value = memo.get(name, MISSING)
        if value is not MISSING:
            return value
    cls = type(obj)
    info = vm.type_info(cls)
    vm.outside.use_class(cls)
    how, found, owner = info.find(name)
    data = DATA_LOADERS.get(how)
    if data is not None:
        return data(vm, obj, name, found)
    own = instance_dict(obj)
    if own is not None:
        if name in own:
            return _instance_value(vm, obj, name, own[name])
        origin = vm.outside.origins.get(id(obj))
        if how in _SHADOWED and origin is not None and vm.outside.log.was_absent(obj, name):
            vm.outside.guard("not_in_dict", origin, name, key=name)
    if how is not ABSENT:
        return CLASS_LOADERS[how](vm, obj, name, found, owner)
    if use_getattr and info.getattr is not MISSING:
        return _through_getattr(vm, obj, name, info, own)
    return _no_attribute(vm, obj, name, own)


def _instance_value(vm: Any, obj: Any, name: str, value: Any) -> Any:
    outside = vm.outside
    origin = outside.origins.get(id(obj))
    if origin is None:
        return outside.fake(value)
    if not outside.log.is_original_attribute(obj, name, value):
        return value
    result = outside.wrap(value, origin.child("attr", name))
    outside.memo(obj)[name] = result
    return result


def _through_getattr(vm: Any, obj: Any, name: str, info: TypeInfo, own: dict[str, Any] | None) -> Any:
    if info.getattr is _module_getattr and own is not None:
        return _module_entry(vm, obj, name, own)
    if type(info.getattr) is FunctionType:
        if own is not None and id(obj) in vm.outside.origins and vm.outside.log.was_absent(obj, name):
            vm.outside.guard("not_in_dict", vm.outside.origins[id(obj)], name, key=name)
        return vm.call_function(info.getattr, (obj, name))
    return vm.call(info.getattr, (obj, name), {})


def _module_entry(vm: Any, obj: Any, name: str, own: dict[str, Any]) -> Any:
    """A parameter, buffer or submodule of an nn.Module."""
    outside = vm.outside
    for key in _MODULE_DICTS:
        entries = own.get(key)
        if entries is not None and name in entries:
            value = entries[name]
            origin = outside.origins.get(id(obj))
            if origin is None:
                return outside.fake(value)
            if not outside.log.is_original(entries, name, value):
                return value
            result = outside.wrap(value, origin.child("param", name))
            outside.memo(obj)[name] = result
            return result
    return _no_attribute(vm, obj, name, own)


def _no_attribute(vm: Any, obj: Any, name: str, own: dict[str, Any] | None) -> Any:
    origin = vm.outside.origins.get(id(obj))
    if own is not None and origin is not None and vm.outside.log.was_absent(obj, name):
        parts = [own[k] for k in _MODULE_DICTS if isinstance(own.get(k), dict)]
        if all(k != name for part in parts for k, _ in vm.outside.log.contents(part)):
            vm.outside.guard("no_attr", origin, name, key=name)
    error = AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj)
    raise error


def _load_property(vm: Any, obj: Any, name: str, found: Any) -> Any:
    return load_property(vm, obj, found)


def load_property(vm: Any, obj: Any, found: property) -> Any:
    if found.fget is None:
        return property.__get__(found, obj)  # raises
    return vm.call(found.fget, (obj,), {})


def store_property(vm: Any, obj: Any, found: property, value: Any) -> None:
    if found.fset is None:
        property.__set__(found, obj, value)  # raises
    vm.call(found.fset, (obj, value), {})


def delete_property(vm: Any, obj: Any, found: property) -> None:
    if found.fdel is None:
        property.__delete__(found, obj)  # raises
    vm.call(found.fdel, (obj,), {})


def read_slot(obj: Any, name: str) -> Any:
    """The slot `name` of an instance, without its class's code; MISSING where it is empty."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return MISSING


def _load_native_data(vm: Any, obj: Any, name: str, found: Any) -> Any:
    """Slots, and what C types compute."""
    outside = vm.outside
    if name == "__dict__":
        return outside.own_dict(obj, found.__get__(obj, type(obj)))
    value = found.__get__(obj, type(obj))
    if name == "__class__":
        return vm.class_of(obj)
    if type(obj) is types.CellType and vm.cell_written(obj):
        return value
    origin = outside.origins.get(id(obj))
    computed = type(found) is not types.MemberDescriptorType
    if origin is not None and (computed or outside.log.is_original_attribute(obj, name, value)):
        return outside.wrap(value, origin.child("member", name))
    return value


def _from_class(vm: Any, found: Any, owner: type, name: str, part: str | None = None) -> Any:
    """An object of the user's that a class holds (a descriptor, what a staticmethod holds): from outside like any other."""
    value = found if part is None else getattr(found, part)
    if type(value) is FunctionType or owner is None or vm.outside.is_fresh_class(owner):
        return value
    if vm.outside.log.touches(owner, name):
        return value
    origin = vm.outside.const(owner).child("attr", name)
    return vm.outside.wrap(value, origin if part is None else origin.child("member", part), decided=True)


def _load_python_data(vm: Any, obj: Any, name: str, found: Any) -> Any:
    if type(found) is enum.property and found is vars(enum.Enum).get(name):
        return load_generic(vm, obj, f"_{name}_")  # value, name: the library's own properties
    found = _from_class(vm, found, vm.type_info(type(obj)).find(name)[2], name)
    get = _descriptor_method(vm, found, "__get__")
    return vm.call_function(get, (found, obj, type(obj)))


DATA_LOADERS: dict[Sentinel, Callable[..., Any]] = {
    PROPERTY: _load_property,
    NATIVE_DATA: _load_native_data,
    PYTHON_DATA: _load_python_data,
}


def _load_value(vm: Any, obj: Any, name: str, found: Any, owner: type) -> Any:
    if vm.outside.is_fresh_class(owner) or vm.outside.log.touches(owner, name):
        return found
    return vm.outside.wrap(found, vm.outside.const(owner).child("attr", name), decided=True)


def _load_non_data(vm: Any, obj: Any, name: str, found: Any, owner: type) -> Any:
    get = _descriptor_method(vm, found, "__get__")
    if type(get) is FunctionType:
        return vm.call_function(get, (_from_class(vm, found, owner, name), obj, type(obj)))
    return found.__get__(obj, type(obj))


def _load_cached_property(vm: Any, obj: Any, name: str, found: Any, owner: type) -> Any:
    origin = vm.outside.origins.get(id(obj))
    if origin is not None and vm.outside.log.was_absent(obj, name):
        vm.outside.guard("not_in_dict", origin, name, key=name)
    value = vm.call(found.func, (obj,), {})
    set_instance(vm, obj, found.attrname or name, value)
    return value


def _bind_class_method(vm: Any, found: Any, cls: type, owner: type, name: str) -> Any:
    inner = found.__func__
    if type(inner) is FunctionType:
        return MethodType(inner, cls)
    get = _descriptor_method(vm, inner, "__get__")
    if get is MISSING:
        return MethodType(_from_class(vm, found, owner, name, "__func__"), cls)
    if type(get) is FunctionType:
        return vm.call_function(get, (_from_class(vm, found, owner, name, "__func__"), cls, type(cls)))
    return found.__get__(None, cls)


CLASS_LOADERS: dict[Sentinel, Callable[..., Any]] = {
    FUNCTION: lambda vm, obj, name, found, owner: MethodType(found, obj),
    CLASS_METHOD: lambda vm, obj, name, found, owner: _bind_class_method(vm, found, type(obj), owner, name),
    STATIC_METHOD: lambda vm, obj, name, found, owner: _from_class(vm, found, owner, name, "__func__"),
    VALUE: _load_value,
    NON_DATA: _load_non_data,
    CACHED_PROPERTY: _load_cached_property,
}


# -------------------------------------------------------------------------------------- load, by kind of object


def load_module_attr(vm: Any, module: types.ModuleType, name: str) -> Any:
    outside, own = vm.outside, module.__dict__
    if name == "__dict__":
        return vm.expose(own)
    if outside.log.touches(own, name):
        return getattr(module, name)
    memo = outside.memo(module)
    value = memo.get(name, MISSING)
    if value is MISSING:
        if name in own:
            value = outside.wrap(own[name], outside.origin(module).child("attr", name))
        else:
            value = _missing_in_module(vm, module, name)
            if name in own:  # a lazily loaded submodule
                value = outside.wrap(value, outside.origin(module).child("attr", name))
        memo[name] = value
    return value


def _missing_in_module(vm: Any, module: types.ModuleType, name: str) -> Any:
    """`__getattr__` of a module; that the name is not simply there is guarded."""
    outside, own = vm.outside, module.__dict__
    own_getattr = own.get("__getattr__")
    try:
        if type(own_getattr) is FunctionType and not is_native_module(module.__name__):
            return vm.call(load_module_attr(vm, module, "__getattr__"), (name,), {})
        return getattr(module, name)
    finally:
        if name not in own:
            outside.guard("not_in_dict", outside.origin(module), name, key=name)


def load_class_attr(vm: Any, cls: type, name: str) -> Any:
    outside = vm.outside
    outside.use_class(cls)
    outside.use_class(type(cls))
    meta = vm.type_info(type(cls))
    how, found, _ = meta.find(name)
    if how is PROPERTY:
        return vm.call(found.fget, (cls,), {})
    if how is PYTHON_DATA:
        return _load_python_data(vm, cls, name, found)
    if how is NATIVE_DATA and name == "__dict__":
        return _class_dict(vm, cls)
    if how is NATIVE_DATA:
        value = getattr(cls, name)
        if outside.is_fresh_class(cls):
            return value
        named = name in ("__name__", "__qualname__")  # changes them without a new version of the class
        return outside.wrap(value, outside.const(cls).child("member", name), decided=not named)
    own = vm.type_info(cls).find(name)
    if own[0] is not ABSENT:
        return _bind_to_class(vm, cls, name, own)
    if how is FUNCTION:
        return MethodType(found, cls)
    if how is NON_DATA:
        return _load_non_data(vm, cls, name, found, type(cls))
    if how is ABSENT and type(meta.getattr) is FunctionType:
        if isinstance(cls, enum.EnumMeta):
            return getattr(cls, name)
        return vm.call_function(meta.getattr, (cls, name))
    return getattr(cls, name)


def _class_dict(vm: Any, cls: type) -> Any:
    """`cls.__dict__` as it is now: the version of the class says that it stays so."""
    if vm.outside.is_fresh_class(cls):
        return cls.__dict__
    origin = vm.outside.const(cls)
    wrap = vm.outside.wrap
    return types.MappingProxyType(
        {k: wrap(v, origin.child("attr", k), decided=True) for k, v in cls.__dict__.items()}
    )


def _bind_to_class(vm: Any, cls: type, name: str, own: Found) -> Any:
    how, found, owner = own
    if how in (FUNCTION, PROPERTY, CACHED_PROPERTY):
        return found
    if how is CLASS_METHOD:
        return _bind_class_method(vm, found, cls, owner, name)
    if how is STATIC_METHOD:
        return _from_class(vm, found, owner, name, "__func__")
    if how is VALUE:
        return _load_value(vm, cls, name, found, owner)
    get = _descriptor_method(vm, found, "__get__")
    if (
        type(get) is FunctionType
        and not isinstance(found, types.DynamicClassAttribute)
        and not issubclass(cls, enum.Enum)
    ):
        return vm.call_function(get, (_from_class(vm, found, owner, name), None, cls))
    return getattr(cls, name)


def load_function_attr(vm: Any, function: FunctionType, name: str) -> Any:
    outside = vm.outside
    origin = outside.origins.get(id(function))
    if origin is not None and not hasattr(function, name) and not outside.log.touches(function, name):
        outside.guard("not_in_dict", outside.const(function), name, key=name)
    value = getattr(function, name)
    if origin is None or outside.log.touches(function, name):
        return value
    if name == "__dict__":
        return outside.own_dict(function, value)
    if name in (
        "__kwdefaults__",
        "__annotations__",
        "__closure__",
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
    ):
        return outside.wrap(value, outside.const(function).child("member", name))
    if name in function.__dict__:
        return outside.wrap(value, outside.const(function).child("attr", name))
    outside.use_function(function)
    if name in _FUNCTION_PARTS:
        return outside.wrap(
            value, outside.const(function).child("member", name), decided=name != "__annotations__"
        )
    return outside.fake(value)


_FUNCTION_PARTS = ("__kwdefaults__", "__defaults__", "__annotations__")


def load_bound_attr(vm: Any, method: MethodType, name: str) -> Any:
    """A bound method: its own members, then its function's."""
    if name in ("__func__", "__self__"):
        return bound_part(vm, method, name)
    function = bound_part(vm, method, "__func__")
    if name in ("__doc__", "__class__") or name in type(method).__dict__:
        return getattr(method, name)
    return load_attr(vm, function, name)


def bound_part(vm: Any, method: MethodType, name: str) -> Any:
    origin = vm.outside.origins.get(id(method))
    value = getattr(method, name)
    return value if origin is None else vm.outside.wrap(value, origin.child("member", name))


def load_partial_attr(vm: Any, partial: functools.partial[Any], name: str) -> Any:
    origin = vm.outside.origins.get(id(partial))
    value = getattr(partial, name)
    if origin is None or name not in ("func", "args", "keywords"):
        return value
    return vm.outside.wrap(value, origin.child("member", name))


def load_tensor_attr(vm: Any, tensor: FakeTensor, name: str) -> Any:
    fast = TENSOR_FAST.get(name)
    if fast is not None:
        return fast(tensor)
    own = tensor.__dict__
    if name in own and name != "_is_param":
        return own[name]
    vm.outside.use_class(torch.Tensor)
    real = vm.trace.real(tensor)
    if name in TENSOR_STATE:
        vm.trace.copies.note_asked(tensor)
    if real is not None and name in TENSOR_STATE:
        return TENSOR_STATE[name](vm, tensor, real, name)
    if real is not None and name in real.__dict__:
        return vm.outside.wrap(real.__dict__[name], vm.outside.origin(tensor).child("attr", name))
    if real is not None and not hasattr(torch.Tensor, name):
        vm.outside.guard("not_in_dict", vm.outside.origin(tensor), name, key=name)
    try:
        return getattr(tensor, name)
    except AttributeError as e:
        text = str(e).replace(f"{FakeTensor.__name__!r}", f"{_fake_class(tensor).__name__!r}")
        raise AttributeError(text, name=name, obj=tensor) from None


def tensor_member(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    """What a tensor from outside holds besides its metadata, guarded as an attribute of any other object."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `.grad` of a tensor that is no leaf warns, once, in eager
        value = getattr(real, name)
    return vm.outside.wrap(value, vm.outside.origin(tensor).child("member", name))


def _tensor_grad(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    if vm.outside.log.is_set_on_tensor(tensor, name):
        return tensor.grad
    return tensor_member(vm, tensor, real, name)


def _tensor_is_leaf(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    before = tensor_member(vm, tensor, real, name)
    return tensor.is_leaf if vm.trace.wrote else before


def _tensor_retains(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    read = _tensor_refused if vm.trace.needs_autograd else tensor_member
    return read(vm, tensor, real, name)


def _tensor_history(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    """None can be guarded; what is not None is of another graph."""
    if getattr(real, name) is None and not vm.trace.wrote:
        return tensor_member(vm, tensor, real, name)
    return _tensor_refused(vm, tensor, real, name)


def _tensor_refused(vm: Any, tensor: FakeTensor, real: torch.Tensor, name: str) -> Any:
    raise Unsupported(Reason(UNSUPPORTED_CALL, f"Tensor.{name} of a tensor from outside"))


# Attributes of tensors that guards of their metadata do not cover.
TENSOR_STATE: dict[str, Callable[[Any, FakeTensor, torch.Tensor, str], Any]] = {
    "grad": _tensor_grad,
    "is_leaf": _tensor_is_leaf,
    "retains_grad": _tensor_retains,
    **dict.fromkeys(("grad_fn", "_grad_fn", "_base", "_backward_hooks"), _tensor_history),
    **dict.fromkeys(
        (
            "_version", "output_nr", "names", "storage_offset", "is_shared", "is_pinned", "untyped_storage", "storage",
            "_typed_storage", "_storage", "is_view", "_is_view", "is_set_to", "_cdata", "_post_accumulate_grad_hooks",
            "has_names", "__reduce_ex__", "__reduce__", "__deepcopy__", "__setstate__", "name", "volatile", "_grad",
            "__dict__", "__cuda_array_interface__", "__array_interface__", "__dlpack__", "_is_zerotensor",
        ),
        _tensor_refused,
    ),
}  # fmt: skip


def _fake_class(tensor: FakeTensor) -> type:
    return nn.Parameter if getattr(tensor, "_is_param", False) else torch.Tensor


def shape_of(tensor: FakeTensor) -> torch.Size:
    return torch.Size(tensor.spec.shape)  # type: ignore[arg-type]


TENSOR_FAST: dict[str, Callable[[FakeTensor], Any]] = {
    "shape": shape_of,
    "dtype": lambda t: t.spec.dtype,
    "device": lambda t: t.spec.device,
    "ndim": lambda t: len(t.spec.shape),
    "__class__": _fake_class,
    "is_cuda": lambda t: t.spec.device.type == "cuda",
    "is_meta": lambda t: t.spec.device.type == "meta",
    "is_sparse": lambda t: False,
    "is_quantized": lambda t: False,
    "is_nested": lambda t: False,
    "layout": lambda t: torch.strided,
}


def load_super_attr(vm: Any, proxy: super, name: str) -> Any:
    return find_super(vm, _this_class(proxy), _self(proxy), _self_class(proxy), name)


def find_super(vm: Any, cls: type, obj: Any, obj_cls: type, name: str) -> Any:
    """`super(cls, obj).name`."""
    mro = obj_cls.__mro__
    vm.outside.use_class(obj_cls)
    for base in mro[mro.index(cls) + 1 :]:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return _bind_super(vm, found, obj, obj_cls, name, base)
    raise AttributeError(f"'super' object has no attribute {name!r}")


def _bind_super(vm: Any, found: Any, obj: Any, obj_cls: type, name: str, base: type) -> Any:
    how = _classify(found, base)[0]
    on_class = obj is obj_cls
    if how is FUNCTION:
        return found if on_class else MethodType(found, obj)
    if how is PROPERTY and not on_class:
        return _load_property(vm, obj, name, found)
    if how is CLASS_METHOD and type(found.__func__) is FunctionType:
        return MethodType(found.__func__, obj_cls)
    if how is VALUE:
        return _load_value(vm, obj, name, found, base)
    get = _descriptor_method(vm, found, "__get__")
    if type(get) is FunctionType:
        return vm.call_function(get, (_from_class(vm, found, base, name), None if on_class else obj, obj_cls))
    return found.__get__(None if on_class else obj, obj_cls)


def _load_native(vm: Any, obj: Any, name: str) -> Any:
    return getattr(obj, name)


def _load_generator(vm: Any, obj: Generator, name: str) -> Any:
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


LOADERS: dict[type, Callable[[Any, Any, str], Any]] = {
    FakeTensor: load_tensor_attr,
    arrays.Array: arrays.load_attr,
    types.ModuleType: load_module_attr,
    type: load_class_attr,
    FunctionType: load_function_attr,
    MethodType: load_bound_attr,
    functools.partial: load_partial_attr,
    super: load_super_attr,
    Generator: _load_generator,
    types.BuiltinFunctionType: _load_native,
    types.CodeType: _load_native,
    tuple: _load_native,
    **dict.fromkeys(NUMBERS, numbers.load_attr),
    **dict.fromkeys(LEAF_TYPES, _load_native),
    **dict.fromkeys(CONTAINER_TYPES, _load_native),
}


def load_default(vm: Any, obj: Any, name: str, default: Any) -> Any:
    """`getattr(obj, name, default)`."""
    try:
        return load_attr(vm, obj, name)
    except AttributeError:
        return default


# ------------------------------------------------------------------------------------------------------- store


def store_attr(vm: Any, obj: Any, name: str, value: Any) -> None:
    """`obj.name = value`."""
    cls = type(obj)
    if cls is FakeTensor:
        return _store_tensor_attr(vm, obj, name, value)
    if isinstance(obj, (type, types.ModuleType)) or cls is FunctionType:
        return _store_named(vm, obj, name, value)
    info = vm.type_info(cls)
    vm.outside.use_class(cls)
    if type(info.setattr) is types.WrapperDescriptorType:
        _store_natively(vm, obj, name, value, info.setattr)
    elif info.setattr is not None and info.setattr is not _module_setattr:
        vm.call(info.setattr, (obj, name, value), {})
    elif info.is_module and info.setattr is _module_setattr:
        _store_in_module(vm, obj, name, value)
    else:
        store_generic(vm, obj, name, value)


def _store_natively(vm: Any, obj: Any, name: str, value: Any, store: Any) -> None:
    """By the `__setattr__` of a C class, which stores in the instance (SimpleNamespace, exceptions, partial)."""
    if id(obj) in vm.outside.origins and instance_dict(obj) is None:
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, f"attribute {name!r} of a {type(obj).__qualname__} is set")
        )
    vm.outside.touch(obj)
    vm.outside.note_store(obj, "attr", name, value)
    vm.outside.attributes.pop(id(obj), None)
    store(obj, name, value)


def store_generic(vm: Any, obj: Any, name: str, value: Any) -> None:
    """`object.__setattr__`."""
    how, found, owner = vm.type_info(type(obj)).find(name)
    if how is PROPERTY:
        store_property(vm, obj, found, value)
    elif how is PYTHON_DATA:
        setter = _descriptor_method(vm, found, "__set__")
        vm.call_function(setter, (_from_class(vm, found, owner, name), obj, value))
    else:
        set_instance(vm, obj, name, value)


def set_instance(vm: Any, obj: Any, name: str, value: Any) -> None:
    """Stores in the instance itself, for real; the undo log remembers."""
    if type(obj) is types.CellType and id(obj) in vm.outside.origins:
        vm.outside.log.touch_cell(obj)
    vm.outside.touch(obj)
    vm.outside.note_store(obj, "attr", name, value)
    memo = vm.outside.attributes.get(id(obj))
    if memo is not None:
        memo.clear() if name == "__class__" else memo.pop(name, None)
    object.__setattr__(obj, name, value)


def _store_in_module(vm: Any, obj: nn.Module, name: str, value: Any) -> None:
    how = vm.type_info(type(obj)).find(name)[0]
    own = instance_dict(obj) or {}
    held = [own[k] for k in _MODULE_DICTS if k in own]
    special = isinstance(value, (nn.Parameter, nn.Module)) or any(name in entries for entries in held)
    if how is PROPERTY and not special:
        return store_generic(vm, obj, name, value)
    if not special:
        return set_instance(vm, obj, name, value)
    for entries in held:
        vm.outside.touch(entries) if id(entries) in vm.outside.origins else _touch_part(vm, obj, entries)
    vm.outside.touch(obj)
    vm.outside.attributes.pop(id(obj), None)
    with torch._C.DisableTorchFunction():
        _module_setattr(obj, name, value)


def _touch_part(vm: Any, obj: nn.Module, entries: dict[str, Any]) -> None:
    """The dictionary of parameters, buffers or submodules of an outside module."""
    origin = vm.outside.origins.get(id(obj))
    if origin is not None:
        key = next(k for k in _MODULE_DICTS if obj.__dict__.get(k) is entries)
        vm.outside.wrap(entries, origin.child("attr", key))
        vm.outside.touch(entries)


def _store_tensor_attr(vm: Any, tensor: FakeTensor, name: str, value: Any) -> None:
    setter = TENSOR_SETTERS.get(name)
    if setter is not None:
        return setter(vm, tensor, value)
    if vm.trace.is_input(tensor):
        if hasattr(torch.Tensor, name) or name in FakeTensor.__slots__:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, f"attribute {name!r} of a tensor from outside is set")
            )
        vm.outside.log.set_tensor_attribute(tensor, name, value)
    else:
        vm.outside.log.call(Call(setattr, (tensor, name, value)))
    setattr(tensor, name, value)


def _store_named(vm: Any, owner: Any, name: str, value: Any) -> None:
    """An attribute of a class, module or function."""
    meta_setattr = vm.type_info(type(owner)).setattr
    if type(meta_setattr) is FunctionType and not is_native_module(meta_setattr.__globals__.get("__name__")):
        return vm.call_function(meta_setattr, (owner, name, value))
    store_named(vm, owner, name, value)


def store_named(vm: Any, owner: Any, name: str, value: Any) -> None:
    """`type.__setattr__` and its like."""
    outside = vm.outside
    if isinstance(owner, types.ModuleType) and (
        is_native_module(owner.__name__) or _type_find(type(owner), name) is not MISSING
    ):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"attribute {name!r} of module {owner.__name__} is set"))
    if isinstance(owner, types.ModuleType):
        return vm.store_global(vars(owner), name, value)
    if id(owner) in outside.origins:
        _touch_named(vm, owner, name)
    type.__setattr__(owner, name, value) if isinstance(owner, type) else setattr(owner, name, value)
    vm.forget_type(owner)


def _touch_named(vm: Any, owner: Any, name: str) -> None:
    """Before an attribute of an outside class, module or function changes."""
    outside = vm.outside
    if isinstance(owner, type):
        if vm.type_info(type(owner)).find(name)[0] in DATA_LOADERS or is_native_module(owner.__module__):
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"{name} of class {owner.__qualname__} changes"))
        outside.touch_class(owner, name, was_read=vm.has_looked_up(owner, name))
        outside.attributes.clear()
    elif name.startswith("__") and name.endswith("__"):
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"{name} of {owner!r} is set"))
    outside.log.touch_attribute(owner, name)
    outside.memo(owner).pop(name, None)


def _delete_named(vm: Any, owner: Any, name: str) -> None:
    if isinstance(owner, types.ModuleType):
        load_attr(vm, owner, name)
        return vm.delete_global(vars(owner), name)
    if id(owner) in vm.outside.origins:
        load_attr(vm, owner, name)
        _touch_named(vm, owner, name)
    delattr(owner, name)
    vm.forget_type(owner)


def delete_attr(vm: Any, obj: Any, name: str) -> None:
    """`del obj.name`."""
    if type(obj) is FakeTensor and vm.trace.is_input(obj):
        raise Unsupported(
            Reason(UNSUPPORTED_EFFECT, f"attribute {name!r} of a tensor from outside is deleted")
        )
    info = vm.type_info(type(obj))
    how, found, _ = info.find("__delattr__")
    if how is FUNCTION and not info.is_module:
        vm.call_function(found, (obj, name))
        return
    if isinstance(obj, (type, types.ModuleType)) or type(obj) is FunctionType:
        return _delete_named(vm, obj, name)
    how, found, _ = info.find(name)
    if how is PROPERTY:
        return delete_property(vm, obj, found)
    if how is PYTHON_DATA:
        vm.call_function(_descriptor_method(vm, found, "__delete__"), (found, obj))
        return
    if info.is_module:
        own = instance_dict(obj) or {}
        for key in _MODULE_DICTS:
            if key in own:
                _touch_part(vm, obj, own[key])
    vm.outside.touch(obj)
    vm.outside.attributes.pop(id(obj), None)
    vm.native(delattr, (obj, name))
