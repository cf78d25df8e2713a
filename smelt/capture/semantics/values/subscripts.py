"""`a[b]`, `a[b] = c` and `del a[b]`."""

from __future__ import annotations

import collections
import enum
import operator
from collections.abc import Callable, Sized
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, unsupported
from smelt.capture.base.native_functions import runs_natively
from smelt.capture.base.type_lookup import CLASS_METHOD, STATIC_METHOD
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    CONTAINER_TYPES,
    LEAF_TYPES,
    MISSING,
    Container,
    FunctionType,
    is_constant,
    is_identity,
)
from smelt.capture.base.vm_frames import CallSite, with_result_handler
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.capture.semantics import result_polyfills
from smelt.capture.semantics.attributes import load_attr, python_method
from smelt.capture.semantics.attributes.method_lookup import SIMPLE_TYPES, may_define_operators, plain_index
from smelt.capture.semantics.calls.torch_function_overrides import call_operator
from smelt.capture.semantics.values.container_methods import contains_key
from smelt.capture.semantics.values.iteration import elements
from smelt.capture.semantics.values.lengths import container_len
from smelt.capture.vm.vm import VM
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import has_only_sizes, specialize_nested
from smelt.tracing.symbolic.numpy_numbers import unwrap_numpy_numbers
from smelt.tracing.symbolic.symbolic_ranges import SymbolicList, SymbolicRange, without_proxies


def subscript(vm: VM, obj: object, key: object) -> object:
    """`obj[key]`."""
    call_site = vm.frames.take_call_site()
    kind = type(obj)
    if kind is SymbolicList:
        row = cast(SymbolicList, obj)
        return row.sliced(key) if type(key) is slice else row.at(key)
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    if type(obj) is FakeTensor:
        return call_operator(vm, operator.getitem, obj, _index(vm, _plain_bounds(vm, key)))
    if kind in SIMPLE_TYPES and kind is not type:
        return vm.native_lookup(operator.getitem, obj, key)
    if kind in CONTAINER_TYPES:
        return _container_item(vm, cast(Container, obj), key, call_site)
    if isinstance(obj, type):
        return _class_item(vm, obj, key)
    found = python_method(vm, obj, "__getitem__")
    if found is not None:
        vm.frames.call_site = call_site
        return vm.call_function(found, (obj, key))
    if isinstance(obj, CONTAINER_BASES):
        return _container_item(vm, obj, key, call_site)
    if isinstance(obj, tuple):
        return vm.native_lookup(tuple.__getitem__, obj, key)
    vm.env.facts.check_readable(obj, "__getitem__")
    return wrap_values.to_fake(
        vm.env, vm.call_native(operator.getitem, (obj, container_contents.native_view(vm.env, key)))
    )


def _plain_bounds(vm: VM, key: object) -> object:
    """`key` with numbers in place of tensors in slice bounds, and of objects with an `__index__` in Python."""
    if type(key) is tuple:
        return key if all(type(i) in SIMPLE_TYPES for i in key) else tuple(_plain_bounds(vm, i) for i in key)
    if type(key) is not slice:
        return plain_index(vm, key)
    bounds = (key.start, key.stop, key.step)
    if all(type(b) in LEAF_TYPES for b in bounds):
        return key
    return slice(*(vm.call(int, (b,), {}) if type(b) is FakeTensor else plain_index(vm, b) for b in bounds))


def lookup_key(vm: VM, obj: object, key: object) -> object:
    """The key for a lookup in `obj`: an environment dictionary holds the real tensor, not its fake."""
    if type(key) is FakeTensor and isinstance(obj, dict) and id(obj) in vm.env.sources:
        real = vm.trace.real(key)
        return key if real is None else real
    return key


_Index = slice | tuple[int, ...]  # for the type checker


def _index(vm: VM, key: object) -> _Index:
    """`key` as a tensor index. A NumPy row becomes the tensor that torch creates from it."""
    parts = key if type(key) is tuple else (key,)
    if _INDEX_TENSORS.keys().isdisjoint(map(type, parts)):
        return cast(_Index, without_proxies(container_contents.native_view(vm.env, key)))
    result = tuple(
        _INDEX_TENSORS[type(p)](p) if type(p) in _INDEX_TENSORS else container_contents.native_view(vm.env, p)
        for p in parts
    )
    return cast(_Index, without_proxies(result if type(key) is tuple else result[0]))


def _index_tensor(array: ArrayProxy) -> torch.Tensor:
    tensor = array.tensor
    if array.scalar or tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype is torch.uint8:
        raise unsupported("a NumPy scalar or such an array as an index", DATA_DEPENDENT)
    return tensor.to(torch.bool if tensor.dtype is torch.bool else torch.int64, copy=True)


# Conversions of indices to tensors, by class.
_INDEX_TENSORS: dict[type, Callable[[Any], torch.Tensor]] = {
    ArrayProxy: _index_tensor,
    SymbolicList: lambda row: row.tensor(),
    SymbolicRange: lambda row: row.listed().tensor(),
}


def _plain_key(obj: object, key: object) -> object:
    """`key` with symbolic numbers specialized if native code looks it up. Tensors accept symbolic sizes."""
    if type(obj) is FakeTensor:
        key = unwrap_numpy_numbers(key)
        return key if has_only_sizes(key) else specialize_nested(key)
    native = not may_define_operators(type(obj)) or isinstance(obj, (*CONTAINER_BASES, tuple))
    return specialize_nested(key) if native else key


def _class_item(vm: VM, cls: type, key: object) -> object:
    found = python_method(vm, cls, "__getitem__")
    if found is not None and not isinstance(cls, enum.EnumMeta):
        return vm.call_function(found, (cls, key))
    vm.env.facts.use_lookups(cls)
    how, method, _ = vm.type_info(cls).find("__class_getitem__")
    function = getattr(method, "__func__", None)
    if found is None and how in (CLASS_METHOD, STATIC_METHOD) and type(function) is FunctionType:
        if not runs_natively(function):
            return vm.call(load_attr(vm, cls, "__class_getitem__"), (key,), {})
    return vm.call_native(operator.getitem, (cls, key))


def _container_item(vm: VM, obj: Container, key: object, call_site: CallSite | None) -> object:
    env = vm.env
    key = lookup_key(vm, obj, key)
    if id(obj) in env.sources:
        if isinstance(key, slice):
            return vm.call_native(operator.getitem, (container_contents.open_for_native(env, obj), key))
        if isinstance(obj, dict) and not contains_key(vm, obj, key):
            return _missing_item(vm, obj, key, call_site)
    elif isinstance(obj, dict):
        # one lookup: the key's `__hash__` may be user code
        value = vm.native_lookup(dict.get, obj, key, MISSING)
        return _missing_item(vm, obj, key, call_site) if value is MISSING else wrap_item(vm, obj, key, value)
    base = cast("type[list[object]]", next(b for b in CONTAINER_BASES if isinstance(obj, b)))
    return wrap_item(vm, obj, key, vm.native_lookup(base.__getitem__, obj, key))


def _missing_item(vm: VM, obj: dict[object, object], key: object, call_site: CallSite | None) -> object:
    """`obj[key]` for a missing key, whose absence is guarded. Raises KeyError."""
    if isinstance(obj, collections.Counter):
        return 0
    found = python_method(vm, obj, "__missing__")
    if found is not None:
        vm.frames.call_site = call_site
        return vm.call_function(found, (obj, key))
    if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
        factory = obj.default_factory
        if id(obj) in vm.env.sources:
            source = vm.env.sources[id(obj)].child("member", "default_factory")
            factory = wrap_values.wrap(vm.env, factory, source)
        environment_mutations.record_mutation(vm.env, obj)
        vm.frames.call_site = with_result_handler(call_site, result_polyfills.store_default, obj, key)
        value = vm.call(factory, (), {})
        dict.__setitem__(vm.env.overlay.now(obj), key, value)
        return value
    raise KeyError(key)


def wrap_item(vm: VM, obj: object, key: object, value: object) -> object:
    """The item `value` of the container `obj` at `key` as a VM value, guarded unless the trace wrote it."""
    env = vm.env
    if id(obj) not in env.sources:
        return wrap_values.to_fake(env, value)
    if type(key) is int and key < 0 and not isinstance(obj, dict):
        container_len(vm, obj)
        key += len(cast(Sized, vm.env.overlay.now(obj)))
    if not env.log.is_original(obj, key, value):
        return value
    if not (is_constant(key) or is_identity(key)) or env.sources.is_guarded_by_code(key):
        env.facts.use_identity(key)
        return container_contents.wrap_item(env, obj, key, value)
    memo = env.memo.reads_of(obj)
    found = memo.get(("[]", key, type(key)), MISSING)
    if found is MISSING:
        found = container_contents.wrap_item(env, obj, key, value)
        if obj not in env.log:
            memo["[]", key, type(key)] = found
    return found


def store_item(vm: VM, obj: object, key: object, value: object) -> None:
    """`obj[key] = value`."""
    call_site = vm.frames.take_call_site()
    kind = type(obj)
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    if type(obj) is FakeTensor:
        if type(value) is ArrayProxy:
            if not value.scalar or value.tensor.dtype is not torch.float64:  # np.float64 is a float
                raise unsupported("a NumPy array or scalar in a tensor", DATA_DEPENDENT)
            value = value.tensor
        value = without_proxies(container_contents.native_view(vm.env, value))
        call_operator(vm, operator.setitem, obj, _index(vm, _plain_bounds(vm, key)), value)
        return
    found = python_method(vm, obj, "__setitem__")
    if found is not None:
        vm.frames.call_site = call_site
        vm.call_function(found, (obj, key, value))
        return
    if isinstance(obj, CONTAINER_BASES):
        key = lookup_key(vm, obj, key)
        if isinstance(key, slice):
            container_contents.open_for_native(vm.env, obj) if id(obj) in vm.env.sources else None
            value = elements(vm, value)
        is_entry = False
        if type(obj) is list and type(key) is int:
            is_entry, count = True, container_len(vm, obj)
            key = key + count if -count <= key < 0 else key
        elif id(obj) in vm.env.sources and not isinstance(obj, dict):
            container_contents.open_for_native(vm.env, obj)  # replayed as one assignment
        environment_mutations.record_mutation(vm.env, obj)
        if is_entry:
            environment_mutations.record_store(vm.env, obj, "item", key, value)
        if isinstance(obj, dict):
            environment_mutations.record_store(vm.env, obj, "item", key, value)
        vm.native_lookup(operator.setitem, obj, key, value)
        vm.env.log.check_left(obj)
        return
    if id(obj) in vm.env.sources:
        raise unsupported(f"an item of an environment {kind.__qualname__} is set", UNSUPPORTED_OBJECT)
    vm.call_native(operator.setitem, (obj, key, value))


def delete_item(vm: VM, obj: object, key: object) -> None:
    """`del obj[key]`."""
    call_site = vm.frames.take_call_site()
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    found = python_method(vm, obj, "__delitem__")
    if found is not None:
        vm.frames.call_site = call_site
        vm.call_function(found, (obj, key))
        return
    if id(obj) in vm.env.sources:
        if not isinstance(obj, CONTAINER_BASES):
            raise unsupported(
                f"an item of an environment {type(obj).__qualname__} is deleted", UNSUPPORTED_OBJECT
            )
        key = lookup_key(vm, obj, key)
        contains_key(vm, obj, key) if isinstance(obj, dict) else container_contents.open_for_native(
            vm.env, obj
        )
        environment_mutations.record_mutation(vm.env, obj)
        if isinstance(obj, dict):
            environment_mutations.record_deletion(vm.env, obj, key)
    vm.native_lookup(operator.delitem, obj, key)
    vm.env.log.check_left(obj)


BUILTINS[operator.setitem] = lambda vm, args, kwargs: vm.store_item(*args)
BUILTINS[operator.delitem] = lambda vm, args, kwargs: vm.delete_item(*args)
