"""Reads of environment objects as guarded values of the VM: a tensor becomes a fake, other objects stay themselves."""

from __future__ import annotations

import datetime
import decimal
import types
import weakref
import zoneinfo
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.autograd.nested_results import values_of
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    LEAF_TYPES,
    BuiltinType,
    FunctionType,
    instance_dict,
    is_constant,
    is_identity,
    is_interned,
    is_plain_key,
    is_special_name,
)
from smelt.capture.environment.environment import Environment
from smelt.capture.proxies import array_proxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.reconstruction.constants import is_bound
from smelt.guards import changed_numbers
from smelt.guards.source import Source, key_name
from smelt.guards.tensor_facts import tensor_facts
from smelt.reasons import TENSOR_SUBCLASS, UNSUPPORTED_OBJECT
from smelt.torch_private import DisableTorchFunction, is_functorch_wrapped_tensor
from smelt.tracing.fake.fake_tensor import FakeTensor, hides_metadata, is_unfakeable
from smelt.tracing.record.nested_tensors import PART_NAMES, Parts, is_nested, size_of_nested, values_in
from smelt.tracing.record.wrapper_subclasses import has_own_metadata, is_wrapper_class
from smelt.tracing.symbolic.numpy_numbers import PROXY_OF, NumpyNumber
from smelt.tracing.symbolic.sym_numbers import NUMBERS

T = TypeVar("T")
_VALUE_BASES = (int, float, complex, str, bytes, np.generic)
_VALUES = (
    decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo
)  # fmt: skip


_TAGS = type(torch.Tag)  # the metaclass of pybind11
_NOT_INTERNED = (int, float, slice, torch.Size)  # equal constants of these types may be distinct objects


def wrap(env: Environment, value: Any, source: Source, *, decided: bool = False) -> Any:
    """Wrap `value`, read at `source`, as a guarded value of the VM. `decided`: another guard (a class's version) fixes the
    object, so that only its mutable state is guarded."""
    kind = type(value)
    if env.facts.unknown and source.path in env.facts.unknown:
        return _wrap_unread(env, value, source)
    if kind in LEAF_TYPES:
        if decided:
            return value
        if env.numbers.dynamic and _is_unread(env, value, source):
            return _wrap_unread(env, value, source)
        if env.numbers.dynamic and (kind is int or kind is float):
            return env.numbers.read(value, source)
        if kind in (slice, torch.Size) and has_dynamic_numbers(env, source):
            return (_wrap_slice if kind is slice else _wrap_tuple)(env, value, source, decided)
        env.facts.guard("eq", source, value)
        if kind in _NOT_INTERNED and not is_interned(value):
            env.sources.register(value, source)
        return value
    if kind is FakeTensor or kind in NUMBERS:
        return value
    if env.numbers.dynamic and not decided and _is_unread(env, value, source):
        return _wrap_unread(env, value, source)
    if isinstance(value, torch.Tensor):
        return _wrap_tensor(env, value, source)
    if type(value) is np.ndarray and array_proxy.is_traceable(value):
        return _wrap_array(env, value, source)
    if type(value) is types.MethodWrapperType or (type(value) is BuiltinType and _is_bound_on_access(value)):
        return _wrap_bound_builtin(env, value, source)
    if type(value) is FunctionType and not decided and _is_fresh_closure(env, value, source):
        return _wrap_function(env, value, source)
    if is_identity(value):
        if type(value) is FunctionType and changed_numbers.is_nested(value):
            env.wrapped.objects[id(value)] = value  # another function may be guarded by the same code
        if not decided:
            env.facts.guard("id", source, value)
        env.sources.register(
            value, env.sources.const(value) if isinstance(value, (type, FunctionType)) else source
        )
        return value
    if isinstance(value, tuple):
        return _wrap_tuple(env, value, source, decided)
    if kind is frozenset and is_constant(value):
        return _wrap_constants(env, value, source, decided)
    if isinstance(value, frozenset):
        if id(value) not in env.sources:
            guard_elements(env, source, list(frozenset.__iter__(value)))
    return _wrap_object(env, value, source, decided)


def _is_unread(env: Environment, value: object, source: Source) -> bool:
    """Whether the value at `source` changes from call to call, and no earlier attempt read it. Native code reads names of
    functions and modules, so these count as read."""
    if source.kind not in ("arg", "attr", "item", "cell"):
        return False
    if type(source.key) is str and is_special_name(source.key):  # a key may be a tensor
        return False
    if type(value) is bool:  # two values need two entries
        return source.path in env.facts.unguarded
    return (type(value) is str or changed_numbers.may_be_opaque(value)) and source.path in env.numbers.dynamic


def _wrap_unread(env: Environment, value: object, source: Source) -> TextProxy | OpaqueProxy:
    """Wrap a string or another object that changes from call to call: the program may pass it on, and format a string."""
    proxy = env.wrapped.unread.get(source)
    if proxy is not None:
        return proxy
    if source.path in env.facts.unknown:
        proxy = OpaqueProxy(value, has_class=False)
    else:
        env.facts.guard("type", source, type(value))
        if isinstance(value, (BuiltinType, types.MethodWrapperType)):
            env.facts.guard("eq", source.child("member", "__name__"), value.__name__)
            env.facts.guard("type", source.child("member", "__self__"), type(value.__self__))
        proxy = TextProxy(str) if type(value) is str else OpaqueProxy(value)
    env.wrapped.unread[source] = proxy
    env.sources.register(proxy, source)
    return proxy


def guard_native_access(env: Environment, cls: type) -> None:
    """Guard a class whose special methods native code may call, and wrap those that are instances of Python classes, so that
    their changes are recorded as changes of environment objects."""
    env.facts.use_class(cls)
    for base in cls.__mro__:
        if not _native.made_by_python(base) or env.sources.is_created_class(base):
            continue
        for name, value in base.__dict__.items():
            if is_special_name(name) and _native.made_by_python(type(value)) and _is_called(value):
                if not env.log.has_written_name(base, name):
                    wrap(env, value, env.sources.const(base).child("attr", name), decided=True)


def _is_called(value: object) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _is_fresh_closure(env: Environment, value: FunctionType, source: Source) -> bool:
    """Whether another call may have another function in place of this nested one: an argument led to it, or it changed."""
    changes = source.root.kind == "arg" or source.path in env.numbers.dynamic
    return changes and changed_numbers.is_nested(value) and not value.__dict__


def _wrap_function(env: Environment, value: FunctionType, source: Source) -> FunctionType:
    """Wrap a function that is guarded by its code, its defaults, its globals and its closure."""
    first = env.sources.get(id(value))
    if first is not None:
        _alias(env, source, first)
        return value
    facts = env.facts
    facts.guard("type", source, FunctionType)
    env.sources.register_by_code(value, source)
    env.wrapped.objects[id(value)] = value
    if value.__defaults__ is None and value.__kwdefaults__ is None:
        facts.use_function(value)
    else:
        _guard_code_and_defaults(env, value, source)
    facts.guard("id", source.child("member", "__globals__"), value.__globals__)
    facts.guard("len", source.child("member", "__dict__"), 0)
    for index, cell in enumerate(value.__closure__ or ()):
        wrap(env, cell, source.child("member", "__closure__").child("item", index))
    return value


def _guard_code_and_defaults(env: Environment, value: FunctionType, source: Source) -> None:
    """As `GuardFacts.use_function`, if defaults change at each call. Keyword defaults are guarded where they are read."""
    env.facts.mark_function_guarded(value)
    env.facts.guard("id", source.child("member", "__code__"), value.__code__)
    wrap(env, value.__defaults__, source.child("member", "__defaults__"))
    keyword_defaults = source.child("member", "__kwdefaults__")
    if value.__kwdefaults__ is None:
        env.facts.guard("eq", keyword_defaults, None)
    else:
        env.facts.guard("type", keyword_defaults, dict)
        env.facts.guard("keys", keyword_defaults, tuple(value.__kwdefaults__))


def guard_elements(env: Environment, source: Source, elements: Sequence[object]) -> None:
    """Guard the elements of a set and their order, which may differ between equal sets."""
    for value in elements:
        if not is_plain_key(value):
            raise unsupported(f"an environment set holds a {type(value).__qualname__}", UNSUPPORTED_OBJECT)
        wrap_key(env, value)
    env.facts.guard("keys", source, tuple(elements))


def wrap_key(env: Environment, value: object) -> None:
    """Wrap a key of a dictionary, or an element of a set, of the environment: a guard compares all of them by identity."""
    if is_plain_key(value) and not is_constant(value):
        env.facts.use_identity(value)
        wrap(env, value, env.sources.const(value), decided=True)


def _is_bound_on_access(value: BuiltinType) -> bool:
    """Whether `value` is a C method bound to an instance or a class, which each access creates anew."""
    return is_bound(value) or isinstance(value.__self__, type)


def _wrap_bound_builtin(
    env: Environment, value: BuiltinType | types.MethodWrapperType, source: Source
) -> object:
    """Wrap a bound C method (`values.append`, `values.__len__`), which is guarded by its name and its owner."""
    env.facts.guard("type", source, type(value))
    env.facts.guard("eq", source.child("member", "__name__"), value.__name__)
    wrap(env, value.__self__, source.child("member", "__self__"))
    env.sources.register(value, source)
    return value


def _wrap_tensor(env: Environment, value: torch.Tensor, source: Source) -> object:
    if is_functorch_wrapped_tensor(value):
        return value
    known = env.trace.inputs.find(value)
    if known is None:
        if is_nested(value):
            return _wrap_nested(env, value, source)
        if is_unfakeable(value):
            return _wrap_odd_tensor(env, value, source)
        layout, facts = env.sizes.of(value, source) or (None, tensor_facts(value))
        fake = env.trace.fake(value, _input_name(source), layout)
        env.sources[id(fake)] = env.sources[id(value)] = source
        env.sources.keep_alive(value)
        env.facts.guard("tensor", source, facts)
        if fake.subclass is not None:
            env.facts.use_class(fake.subclass)
            _guard_parameter(env, value, source)
        return fake
    _alias(env, source, env.sources[id(known)])
    return known


def _wrap_nested(env: Environment, value: torch.Tensor, source: Source) -> torch.Tensor:
    """Wrap a jagged nested tensor: one of fakes. The graph takes its values, under autograd if it requires gradients."""
    known = env.wrapped.nested.get(id(value))
    if known is not None:
        _alias(env, source, env.sources[id(value)])
        return known
    env.trace.nested.prepare()
    env.facts.guard("type", source, type(value))
    _guard_parameter(env, value, source)
    parts = Parts.of(value)
    _check_ragged_size(env, value, parts)
    at = {name: source.child("attr", key) for name, key in zip(Parts._fields, PART_NAMES)}
    offsets, lengths, _, cache = (wrap(env, getattr(parts, name), at[name]) for name in Parts._fields[1:])
    env.facts.guard("keys", at["cache"], tuple(cache))
    limits = {name: wrap(env, limit, at["cache"].child("item", name)) for name, limit in cache.items()}
    values = _nested_values(env, value, source)
    nested = env.trace.nested.create(Parts(values, offsets, lengths, parts.ragged_dim, limits))
    vars(nested).update({name: mark for name, mark in vars(value).items() if name == "_is_param"})
    env.sources[id(nested)] = env.sources[id(value)] = source
    env.sources[id(Parts.of(nested).cache)] = at["cache"]
    env.sources.keep_alive(value, nested)
    env.wrapped.nested[id(value)] = nested
    return nested


def _check_ragged_size(env: Environment, nested: torch.Tensor, parts: Parts) -> None:
    """Raise Unsupported if two nested tensors have equal ragged sizes that belong to different tensors: guards compare the
    tensors."""
    number = size_of_nested(nested)[parts.ragged_dim].node.nested_int()
    if env.wrapped.ragged_sizes.setdefault(number, parts.ragged) is not parts.ragged:
        raise unsupported("NestedTensors on two devices with one ragged size", TENSOR_SUBCLASS)


def _nested_values(env: Environment, nested: torch.Tensor, source: Source) -> torch.Tensor:
    """The values of a nested tensor of the environment as autograd sees them."""
    inner, at = values_in(nested), source.child("attr", "_values")
    with DisableTorchFunction():
        requires_grad = nested.requires_grad
    env.facts.guard("eq", source.child("member", "requires_grad"), requires_grad)
    if not requires_grad:
        values: torch.Tensor = wrap(env, inner, at)
        return values.detach() if values.requires_grad else values
    layout, facts = env.sizes.of(inner, at) or (None, tensor_facts(inner))
    env.facts.guard("tensor", at, facts)
    with env.trace.paused():
        real = values_of(nested)
    fake = env.trace.fake(real, _input_name(at), layout)
    env.sources[id(fake)] = source.child("values", None)
    env.sources.keep_alive(real)
    env.trace.nested.read_only[id(fake)] = fake
    return fake


def _wrap_odd_tensor(env: Environment, value: torch.Tensor, source: Source) -> torch.Tensor:
    """Wrap a tensor without a fake (sparse, quantized, nested, of a subclass): itself, guarded by its metadata if a guard
    can read that, else by its type. The graph breaks before operations on it."""
    first = env.sources.get(id(value))
    if first is not None:
        _alias(env, source, first)
        return value
    if is_wrapper_class(type(value)) and has_own_metadata(value):
        env.facts.use_class(type(value))
        layout, facts = env.sizes.of(value, source) or (None, tensor_facts(value))
        env.facts.guard("tensor", source, facts)
        env.trace.wrapper_gradients.add_input(value, layout)
        _guard_parameter(env, value, source)
    elif hides_metadata(value):
        env.facts.guard("type", source, type(value))
        _guard_parameter(env, value, source)
    else:
        env.facts.guard("tensor", source, tensor_facts(value))
    env.sources.register(value, source)
    return value


def _guard_parameter(env: Environment, value: torch.Tensor, source: Source) -> None:
    """Guard whether a tensor of a subclass is an nn.Parameter, which its type does not tell."""
    mark = (instance_dict(value) or {}).get("_is_param")
    if mark is None:
        env.facts.guard("not_in_dict", source, "_is_param", key="_is_param")
    else:
        env.facts.guard("eq", source.child("attr", "_is_param"), mark)


def _wrap_array(env: Environment, value: np.ndarray[Any, Any], source: Source) -> object:
    """Wrap a NumPy array as a proxy; the compiled frame converts it to a tensor, which is a graph input."""
    known = env.wrapped.arrays.get(id(value))
    if known is not None:
        _alias(env, source, env.sources[id(known)])
        return known
    env.facts.guard("type", source, np.ndarray)
    env.facts.guard("id", source.child("member", "dtype"), value.dtype)
    for name in ("shape", "strides"):
        env.facts.guard("eq", source.child("member", name), getattr(value, name))
    env.facts.guard("eq", source.child("member", "flags").child("member", "writeable"), True)
    with env.trace.paused():
        real = torch.from_numpy(value)
    fake = env.trace.fake(real, _input_name(source))
    proxy = env.wrapped.arrays[id(value)] = array_proxy.ArrayProxy(fake)
    env.sources[id(fake)] = source.child("array", None)
    env.sources[id(proxy)] = env.sources[id(value)] = source
    env.sources.keep_alive(value, proxy)
    return proxy


def _alias(env: Environment, source: Source, first: Source) -> None:
    if source is not first and source.kind != "const":
        env.facts.guard("alias", source, first)


def has_dynamic_numbers(env: Environment, source: Source) -> bool:
    """Whether the value at `source` contains dynamic numbers."""
    if not env.numbers.dynamic:
        return False
    path = source.path
    return any(p[: len(path)] == path for p in env.numbers.dynamic)


def _wrap_constants(
    env: Environment, value: tuple[object, ...] | frozenset[object], source: Source, decided: bool
) -> object:
    """Wrap a tuple or frozenset of constants; equal ones may be distinct objects."""
    if not decided:
        env.facts.guard("eq", source, value)
    if value:
        env.sources.register(value, source)
    return value


def _wrap_slice(env: Environment, value: slice, source: Source, decided: bool) -> slice:
    """Wrap a slice with numbers that change."""
    env.facts.guard("type", source, slice)
    parts = {name: getattr(value, name) for name in changed_numbers.SLICE_PARTS}
    wrapped = slice(*(wrap(env, part, source.child("member", name)) for name, part in parts.items()))
    env.sources.register(wrapped, source)
    return wrapped


def _wrap_tuple(env: Environment, value: tuple[object, ...], source: Source, decided: bool) -> object:
    kind = type(value)
    if kind is tuple and is_constant(value) and not has_dynamic_numbers(env, source):
        return _wrap_constants(env, value, source, decided)
    known = env.wrapped.tuples.get(id(value))
    if known is not None:
        _alias(env, source, env.sources[id(value)])
        return known
    if not decided:
        env.facts.guard("type", source, kind)
        env.facts.guard("len", source, len(value))
    items = [
        wrap(env, v, source.child("item", i), decided=decided) for i, v in enumerate(tuple.__iter__(value))
    ]
    env.sources.register(value, source)
    if all(a is b for a, b in zip(items, tuple.__iter__(value))):
        env.wrapped.tuples[id(value)] = value
        return value
    wrapped = tuple_like(value, items)
    env.wrapped.tuples[id(value)] = wrapped
    env.sources.register(wrapped, source)
    return wrapped


def tuple_like(value: tuple[object, ...], items: Sequence[object]) -> tuple[object, ...]:
    """A tuple with the class and attributes of `value` that holds `items`."""
    kind = type(value)
    if kind is torch.Size or hasattr(kind, "n_sequence_fields"):  # a C class, as torch.return_types.topk
        return kind(items)
    result = tuple.__new__(kind, items)
    (instance_dict(result) or {}).update(instance_dict(value) or {})
    return result


def _wrap_object(env: Environment, value: object, source: Source, decided: bool) -> object:
    if type(value) in weakref.ProxyTypes:
        raise unsupported("an environment weak proxy", UNSUPPORTED_OBJECT)
    if type(value) in PROXY_OF:
        number = _numpy_number(env, cast("np.generic", value), source, decided)
        if number is not None:
            return number
    first = env.sources.get(id(value))
    if first is None:
        env.facts.guard("type", source, type(value))
        _guard_value(env, value, source)
        env.sources.register(value, source)
    elif first is not source and first.kind != "const":
        _alias(env, source, first)
    elif first is not source and not decided:
        env.facts.guard("id", source, value)
    env.wrapped.objects[id(value)] = value
    return value


def _numpy_number(
    env: Environment, value: np.generic, source: Source, decided: bool
) -> array_proxy.ArrayProxy | NumpyNumber | None:
    """The proxy of a NumPy scalar whose number changes from call to call; None for another."""
    known = env.wrapped.arrays.get(id(value))
    if known is not None:
        _alias(env, source, env.sources[id(value)])
        return known
    if decided or id(value) in env.sources or not has_dynamic_numbers(env, source):
        return None
    env.facts.guard("type", source, type(value))
    number = env.numbers.read(value.item(), source.child("member", "item").child("call", None))
    if type(number) not in NUMBERS:
        return None
    proxy = env.wrapped.arrays[id(value)] = PROXY_OF[type(value)](number)
    env.sources[id(proxy)] = env.sources[id(value)] = source
    env.sources.keep_alive(value, proxy)
    return proxy


def _guard_value(env: Environment, value: object, source: Source) -> None:
    """Guard the C state of a number, text or enum tag; dates and decimals are guarded by identity."""
    if isinstance(value, _VALUE_BASES):
        kind: object = type(value)
        reader = _plain_reader(kind)
        if reader:
            env.facts.guard(
                "eq", source.child("member", reader).child("call", None), getattr(value, reader)()
            )
        else:
            env.facts.guard("id", source, value)
    elif isinstance(value, _VALUES):
        env.facts.guard("id", source, value)
        zone = getattr(value, "tzinfo", None)
        if zone is not None:  # new dates of the same zone refer to it
            env.sources.const(zone)
    elif type(type(value)) is _TAGS and hasattr(
        type(value), "__members__"
    ):  # an enumeration of torch's C++ code
        env.facts.guard("id", source, value)


def to_fake(env: Environment, value: T) -> T:
    """The VM's value for a result of native code: a fake for a real tensor, the original for the copy of a container."""
    if isinstance(value, CONTAINER_BASES):
        return cast(T, env.overlay.original(value))
    if (
        isinstance(value, torch.Tensor)
        and type(value) is not FakeTensor
        and not is_functorch_wrapped_tensor(value)
        and id(value) not in env.trace.call.wrappers
        and not is_nested(value)
    ):
        return cast(T, env.trace.inputs.fake_for_native(value))
    return value


@cached_by_class
def _plain_reader(cls: type) -> str | None:
    """The name of the C method that returns the plain value of an instance of `cls`; None if it has none."""
    for name in ("item", "__getnewargs__"):
        if type(type_find(cls, name)) is types.MethodDescriptorType:
            return name
    return None


def _input_name(source: Source) -> str:
    """The name of the tensor at `source` in graphs: `x`, `layers_0_weight`."""
    parts: list[str] = []
    at: Source | None = source
    while at is not None:
        if at.parameter is not None:
            parts.append(at.parameter)
            break
        if at.kind not in ("cell", "dict") and at.key not in ("_modules", "_parameters", "_buffers"):
            parts.append(key_name(at.key))
        at = at.base
    return "_".join(reversed(parts)) if len(parts) < 12 else "_".join(reversed(parts[:11]))
