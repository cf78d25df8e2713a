"""Attributes of objects whose C class implements its own attribute access.

Neither the instance dictionary nor the class determines these attributes. `threading.local`, with one dictionary per thread,
is implemented. Other environment objects are refused; objects created by the trace are accessed natively.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn, cast

from smelt._native import isinstance
from smelt.capture.base.type_lookup import FUNCTION
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.attributes.instance_attributes import CLASS_LOADERS, DATA_LOADERS
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, Reason, ReasonKind


def load_custom_attr(vm: VM, obj: object, name: str) -> object:
    """`obj.name`. Raises AttributeError as the object would, Unsupported if that is unknown."""
    if isinstance(obj, threading.local) and id(obj) in vm.env.sources:
        return _load_local(vm, obj, name)
    if not _is_created(vm, obj):
        raise _refusal(obj, name, "is read", UNSUPPORTED_CALL)
    return wrap_values.to_fake(vm.env, vm.call_native(getattr, (obj, name)))


def store_custom_attr(vm: VM, obj: object, name: str, value: object) -> None:
    """`obj.name = value`. Raises what the object would, Unsupported if that is unknown."""
    if isinstance(obj, threading.local) and id(obj) in vm.env.sources:
        return vm.store_item(_mutable_dict(vm, obj, name), name, value)
    if not _is_created(vm, obj):
        raise _refusal(obj, name, "is set", UNSUPPORTED_EFFECT)
    vm.call_native(setattr, (obj, name, value))
    return None


def delete_custom_attr(vm: VM, obj: object, name: str) -> None:
    """`del obj.name`. Raises what the object would, Unsupported if that is unknown."""
    if not isinstance(obj, threading.local) or id(obj) not in vm.env.sources:
        if not _is_created(vm, obj):
            raise _refusal(obj, name, "is deleted", UNSUPPORTED_EFFECT)
        vm.call_native(delattr, (obj, name))
        return
    own = _mutable_dict(vm, obj, name)
    if not vm.contains(name, own):
        _raise_no_attribute(obj, name)
    vm.delete_item(own, name)


def _is_created(vm: VM, obj: object) -> bool:
    """Whether the trace created the object and it is not a proxy of another one."""
    return id(obj) not in vm.env.sources and type(obj) not in _WEAK_PROXIES


_WEAK_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)


def _refusal(obj: object, name: str, operation: str, kind: ReasonKind) -> Unsupported:
    what = f"attribute {name!r} of a {type(obj).__qualname__} {operation}, whose class implements its own attribute access"
    return Unsupported(Reason(kind, what))


# ------------------------------------------------------------------------------------------- threading.local


def _load_local(vm: VM, obj: threading.local, name: str) -> object:
    own = _thread_dict(vm, obj)
    if name == "__dict__":
        return own
    cls = type(obj)
    vm.env.facts.use_class(cls)
    info = vm.type_info(cls)
    how, found, owner = info.find(name)
    if how in DATA_LOADERS:
        return DATA_LOADERS[how](vm, obj, name, found)
    if vm.contains(name, own):
        return vm.subscript(own, name)
    if how in CLASS_LOADERS:
        return CLASS_LOADERS[how](vm, obj, name, found, owner)
    if info.getattr is not MISSING:
        return vm.call(info.getattr, (obj, name), {})
    return _raise_no_attribute(obj, name)


def _thread_dict(vm: VM, obj: threading.local) -> dict[str, object]:
    """The attribute dictionary of `obj` for this thread: an environment object whose source is a call."""
    # it would run on a thread that has not used the object
    if vm.type_info(type(obj)).find("__init__")[0] is FUNCTION:
        raise _refusal(obj, "__dict__", "is read", UNSUPPORTED_CALL)
    read = vm.env.memo.reads_of(obj).setdefault("__dict__", functools.partial(getattr, obj, "__dict__"))
    own: dict[str, object] = cast("Callable[[], dict[str, object]]", read)()
    if id(own) not in vm.env.sources:
        vm.env.facts.use_identity(obj)
        source = vm.env.sources.const(read, f"vars({type(obj).__qualname__})").child("call", None)
        vm.env.facts.guard("type", source, dict)
        vm.env.sources.register(own, source)
    return own


def _mutable_dict(vm: VM, obj: threading.local, name: str) -> dict[str, object]:
    """The dictionary in which `obj.name` is stored or deleted. Raises Unsupported if a descriptor handles the name."""
    how = vm.type_info(type(obj)).find(name)[0]
    if how in DATA_LOADERS:
        raise _refusal(obj, name, "is set", UNSUPPORTED_EFFECT)
    return _thread_dict(vm, obj)


def _raise_no_attribute(obj: threading.local, name: str) -> NoReturn:
    shown = "_thread._local" if type(obj) is threading.local else type(obj).__name__
    raise AttributeError(f"{shown!r} object has no attribute {name!r}", name=name, obj=obj)
