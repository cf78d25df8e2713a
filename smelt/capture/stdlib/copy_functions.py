"""`copy.copy` and `copy.deepcopy` of tensors, containers and instances. A class's own copy method takes precedence."""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from collections.abc import Callable, Iterable
from typing import cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.native_functions import PURE_TYPES
from smelt.capture.base.type_lookup import ABSENT
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    MISSING,
    dict_base,
    instance_dict,
    is_identity,
)
from smelt.capture.environment import environment_mutations, wrap_values
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.reconstruction.constants import CONSTANTS
from smelt.capture.semantics import attributes
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.calls.torch_function_overrides import check_no_user_modes
from smelt.capture.semantics.values import set_methods
from smelt.capture.semantics.values.container_constructors import mapping
from smelt.capture.torch_calls.autograd.tensor_state import make_parameter
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class
from smelt.tracing.symbolic.sym_numbers import NUMBERS

_CopyComponent = Callable[[object], object]  # copies a component of the object
_REDUCTIONS = (("__reduce_ex__", (4,)), ("__reduce__", ()))
_STATE_METHODS = ("__getstate__", "__setstate__")
_NEW_ARGUMENT_METHODS = ("__getnewargs__", "__getnewargs_ex__")
_NOT_COPIED = (types.ModuleType, types.MappingProxyType)  # guarded by identity, but `copy` raises


@function(copy.deepcopy)
def _deepcopy(vm: VM, args: Args, kwargs: Kwargs) -> object:
    memo = cast("dict[int, object] | None", kwargs.get("memo", args[1] if len(args) > 1 else None))
    return _deep_copy(vm, args[0], {} if memo is None else memo)


@function(copy.copy)
def _copy(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (obj,) = args
    if _is_atomic(obj) or type(obj) is tuple:
        return obj
    custom = python_method(vm, obj, "__copy__")
    if custom is not None:
        return vm.call_function(custom, (obj,))
    if type(obj) is FakeTensor:
        return _copy_tensor(vm, obj, obj.detach())
    if isinstance(obj, tuple):
        return _new_tuple(obj, list(tuple.__iter__(obj)))
    return _copy_instance(vm, obj, None, _identity)


def _identity(copy_component: object) -> object:
    return copy_component


def _deep_copy(vm: VM, obj: object, memo: dict[int, object]) -> object:
    """`copy.deepcopy(obj, memo)`; `memo` maps the id of an original to its copy."""
    if _is_atomic(obj):
        return obj
    if id(obj) in memo:
        return memo[id(obj)]
    copied: object
    if type(obj) is FakeTensor:
        _check_deep_copyable(vm, obj)
        copied = memo[id(obj)] = _copy_tensor(vm, obj, obj.detach().clone())
        return copied
    custom = python_method(vm, obj, "__deepcopy__")
    if custom is not None:
        copied = memo[id(obj)] = vm.call_function(custom, (obj, memo))
        return copied
    if isinstance(obj, tuple):
        items = [_deep_copy(vm, v, memo) for v in tuple.__iter__(obj)]
        if id(obj) in memo:  # an item contains the tuple itself
            return memo[id(obj)]
        same = type(obj) is tuple and all(a is b for a, b in zip(items, obj))
        copied = memo[id(obj)] = obj if same else _new_tuple(obj, items)
        return copied
    return _copy_instance(vm, obj, memo, lambda v: _deep_copy(vm, v, memo))


def _is_atomic(obj: object) -> bool:
    kind = type(obj)
    if kind is torch.Size or isinstance(obj, _NOT_COPIED):
        return False
    is_value = kind in LEAF_TYPES or kind in NUMBERS or kind in (TextProxy, NumberProxy)
    return is_value or kind in CONSTANTS or is_identity(obj)


def _check_deep_copyable(vm: VM, tensor: FakeTensor) -> None:
    """Raise Unsupported for a tensor with a gradient, which is copied too, or that eager refuses to copy."""
    if not attributes.load_attr(vm, tensor, "is_leaf"):
        raise unsupported("copy.deepcopy of a tensor that was computed with gradients", UNSUPPORTED_OBJECT)
    if attributes.load_attr(vm, tensor, "grad") is not None:
        raise unsupported("copy.deepcopy of a tensor with a gradient", UNSUPPORTED_OBJECT)


def _copy_tensor(vm: VM, tensor: FakeTensor, copied: torch.Tensor) -> torch.Tensor:
    check_class(tensor, "a copy")
    check_no_user_modes(vm, "a copy")
    real = vm.trace.real(tensor)
    own = {} if real is None else real.__dict__
    if {*tensor.__dict__, *own} - {"_is_param"}:
        raise unsupported("copying a tensor with attributes", UNSUPPORTED_OBJECT)
    if real is not None:
        vm.env.facts.guard("len", vm.env.sources.find_or_const(tensor).child("member", "__dict__"), len(own))
    if getattr(tensor, "_is_param", False):
        return make_parameter(vm, copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copied


def _new_tuple(obj: tuple[object, ...], items: list[object]) -> object:
    if instance_dict(obj):
        raise unsupported(f"copying a {type(obj).__qualname__} with attributes")
    return wrap_values.tuple_like(obj, items)


def _copy_instance(
    vm: VM, obj: object, memo: dict[int, object] | None, copy_component: _CopyComponent
) -> object:
    kind = type(obj)
    if kind in PURE_TYPES or not (_native.made_by_python(kind) or isinstance(obj, CONTAINER_BASES)):
        return _copy_native(vm, obj, memo, copy_component)
    source = vm.env.sources.const(copyreg).child("attr", "dispatch_table")
    if vm.contains(kind, wrap_values.wrap(vm.env, copyreg.dispatch_table, source)):
        raise unsupported(f"copying a {kind.__qualname__} by a function that was registered")
    if any(python_method(vm, obj, n) is not None for n in ("__reduce_ex__", "__reduce__", *_STATE_METHODS)):
        reduced = _reduce(vm, obj)
        return obj if isinstance(reduced, str) else vm.call(copy._reconstruct, (obj, memo, *reduced), {})  # type: ignore[attr-defined]
    copied = _empty_like(vm, obj)
    if memo is not None:
        memo[id(obj)] = copied
    _copy_contents(vm, obj, copied, copy_component)
    _copy_attributes(vm, obj, copied, copy_component)
    return copied


def _copy_native(
    vm: VM, obj: object, memo: dict[int, object] | None, copy_component: _CopyComponent
) -> object:
    """Copy of an instance of a C class."""
    kind = type(obj)
    if kind is types.SimpleNamespace:
        copied = types.SimpleNamespace()
        if memo is not None:
            memo[id(obj)] = copied
        _copy_attributes(vm, obj, copied, copy_component)
        return copied
    # the copy may share iterators with the original
    if hasattr(kind, "__next__") and id(obj) in vm.env.sources:
        raise unsupported(f"copying an environment {kind.__qualname__}")
    if kind in PURE_TYPES or kind is bytearray:
        vm.env.facts.check_readable(obj)
        return (copy.copy if memo is None else copy.deepcopy)(obj)
    raise unsupported(f"copying a {kind.__qualname__}")


def _reduce(vm: VM, obj: object) -> str | tuple[object, ...]:
    """Result of `__reduce_ex__(4)`, or its equivalent for classes that define `__reduce__` or `__getstate__`."""
    for name, arguments in _REDUCTIONS:
        found = python_method(vm, obj, name)
        if found is not None:
            return cast("str | tuple[object, ...]", vm.call_function(found, (obj, *arguments)))
    cls = type(obj)
    if cls.__new__ is not object.__new__ or _slots(cls) or _has_new_argument_methods(vm, cls):
        raise unsupported(f"copying a {cls.__qualname__}")
    own_state = python_method(vm, obj, "__getstate__")
    if own_state is not None:
        return copyreg.__newobj__, (cls,), vm.call_function(own_state, (obj,))  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls,), attributes.load_attr(vm, obj, "__dict__")  # type: ignore[attr-defined]


def _has_new_argument_methods(vm: VM, cls: type) -> bool:
    return any(vm.type_info(cls).find(n)[0] is not ABSENT for n in _NEW_ARGUMENT_METHODS)


def _empty_like(vm: VM, obj: object) -> object:
    """A new object of the class of `obj`, without contents and attributes."""
    cls = type(obj)
    is_container = isinstance(obj, CONTAINER_BASES)
    if _has_new_argument_methods(vm, cls) or not (is_container or cls.__new__ is object.__new__):
        raise unsupported(f"copying a {cls.__qualname__}")
    copied = cls.__new__(cls)
    if isinstance(obj, collections.defaultdict):
        collections.defaultdict.__init__(cast("collections.defaultdict", copied), obj.default_factory)
    elif isinstance(obj, collections.deque):
        collections.deque.__init__(cast("collections.deque", copied), (), obj.maxlen)
    return copied


def _copy_contents(vm: VM, obj: object, copied: object, copy_component: _CopyComponent) -> None:
    if copy_component is _identity and (
        type(obj) is dict or isinstance(obj, (collections.defaultdict, collections.Counter))
    ):
        vm.call_native(dict.update, (copied, mapping(vm, obj)))  # without hashing keys again
    elif copy_component is _identity and type(obj) is set:
        vm.call_native(set.update, (copied, set_methods.operand(vm, obj)))
    elif isinstance(obj, dict):
        base = dict_base(obj)
        items = cast("list[tuple[object, object]]", vm.call_native(list, (base.items(mapping(vm, obj)),)))
        for key, value in items:
            vm.native_lookup(base.__setitem__, copied, copy_component(key), copy_component(value))
    elif isinstance(obj, set):
        for value in vm.elements(obj):
            vm.native_lookup(set.add, copied, copy_component(value))
    elif isinstance(obj, list):
        list.extend(cast("list[object]", copied), [copy_component(v) for v in vm.elements(obj)])
    elif isinstance(obj, collections.deque):
        collections.deque.extend(
            cast("collections.deque[object]", copied), [copy_component(v) for v in vm.elements(obj)]
        )


def _copy_attributes(vm: VM, obj: object, copied: object, copy_component: _CopyComponent) -> None:
    own = vm.env.overlay.instance_dict(obj)
    for name, value in list(own.items() if own else ()):
        object.__setattr__(copied, name, copy_component(attributes.wrap_instance_attr(vm, obj, name, value)))
    for name in _slots(type(obj)):
        if vm.env.overlay.slot(obj, name) is not MISSING:
            object.__setattr__(copied, name, copy_component(attributes.load_generic(vm, obj, name)))
    if own is not None and id(obj) in vm.env.sources and obj not in vm.env.log:
        vm.env.facts.guard(
            "len",
            vm.env.sources[
                id(environment_mutations.read_instance_dict(vm.env, obj, instance_dict(obj) or own))
            ],
            len(own),
        )


def _slots(cls: type) -> Iterable[str]:
    return [
        n
        for b in cls.__mro__
        for n, v in b.__dict__.items()
        if type(v) is types.MemberDescriptorType and _native.made_by_python(b)
    ]
