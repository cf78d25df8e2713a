"""What is read from an environment object becomes a value of the VM, guarded: a tensor its fake, everything else itself."""

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
    is_plain_key,
    is_interned,
    is_special_name,
)
from smelt.capture.environment.environment import Environment
from smelt.capture.proxies import array_proxy
from smelt.capture.reconstruction.constants import is_bound
from smelt.errors import Unsupported
from smelt.guards.guard_evaluation import tensor_facts
from smelt.guards.source import Source, key_name
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.torch_private import is_functorch_wrapped_tensor
from smelt.tracing.fake.fake_tensor import FakeTensor, hides_metadata, is_unfakeable
from smelt.tracing.symbolic.sym_numbers import NUMBERS

T = TypeVar("T")
_VALUE_BASES = (int, float, complex, str, bytes, np.generic)
_VALUES = (
    decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo
)  # fmt: skip


_TAGS = type(torch.Tag)  # the metaclass of pybind11
_MADE_EVERYWHERE = (int, float, slice, torch.Size)  # equal ones, and `is` tells them apart


def wrap(env: Environment, value: Any, source: Source, *, decided: bool = False) -> Any:
    """What was read at `source`, as a value of the VM, guarded. `decided`: another guard (a class's version) already
    says which object is there, so only what can change about it is guarded."""
    kind = type(value)
    if kind in LEAF_TYPES:
        if decided:
            return value
        if env.numbers.dynamic and (kind is int or kind is float):
            return env.numbers.read(value, source)
        if kind is torch.Size and has_dynamic_numbers(env, source):
            return _wrap_tuple(env, value, source, decided)
        env.facts.guard("eq", source, value)
        if kind in _MADE_EVERYWHERE and not is_interned(value):
            env.sources.register(value, source)
        return value
    if kind is FakeTensor or kind in NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        return _wrap_tensor(env, value, source)
    if type(value) is np.ndarray and array_proxy.is_traceable(value):
        return _wrap_array(env, value, source)
    if type(value) is types.MethodWrapperType or (type(value) is BuiltinType and _is_made_at_access(value)):
        return _wrap_bound_builtin(env, value, source)
    if type(value) is FunctionType and not decided and _is_made_anew(value, source):
        return _wrap_function(env, value, source)
    if is_identity(value):
        if type(value) is FunctionType and _is_made_inside(value):
            env.seen.objects[id(value)] = value  # another one may be known by the same code
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


def guard_native_access(env: Environment, cls: type) -> None:
    """Native code may call special methods of `cls`: guards it, and tells of those that are objects which class of Python's
    they are from, so that what they change is a change of something from outside."""
    env.facts.use_class(cls)
    for base in cls.__mro__:
        if not _native.made_by_python(base) or env.sources.is_created_class(base):
            continue
        for name, value in base.__dict__.items():
            if is_special_name(name) and _native.made_by_python(type(value)) and _is_called(value):
                if not env.log.touches(base, name):
                    wrap(env, value, env.sources.const(base).child("attr", name), decided=True)


def _is_called(value: object) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _is_made_anew(value: FunctionType, source: Source) -> bool:
    """Whether `value` is a function inside of a function that the call brings: each call may make another one."""
    return source.root.kind == "arg" and _is_made_inside(value) and not value.__dict__


def _is_made_inside(value: FunctionType) -> bool:
    """Whether calls of another function make functions of this code."""
    return "<locals>" in value.__qualname__


def _wrap_function(env: Environment, value: FunctionType, source: Source) -> FunctionType:
    """A function that is known by its code, its defaults, its globals and its closure."""
    first = env.sources.get(id(value))
    if first is not None:
        _alias(env, source, first)
        return value
    facts = env.facts
    facts.guard("type", source, FunctionType)
    env.sources.by_code(value, source)
    env.seen.objects[id(value)] = value
    if value.__defaults__ is None and value.__kwdefaults__ is None:
        facts.use_function(value)
    else:
        _guard_code_and_defaults(env, value, source)
    facts.guard("id", source.child("member", "__globals__"), value.__globals__)
    facts.guard("len", source.child("member", "__dict__"), 0)
    for at, cell in enumerate(value.__closure__ or ()):
        wrap(env, cell, source.child("member", "__closure__").child("item", at))
    return value


def _guard_code_and_defaults(env: Environment, value: FunctionType, source: Source) -> None:
    """What `Facts.use_function` guards, for a function whose defaults are other objects at each call. Those of keywords are
    guarded where they are read."""
    env.facts.mark_function_guarded(value)
    env.facts.guard("id", source.child("member", "__code__"), value.__code__)
    wrap(env, value.__defaults__, source.child("member", "__defaults__"))
    named = source.child("member", "__kwdefaults__")
    if value.__kwdefaults__ is None:
        env.facts.guard("eq", named, None)
    else:
        env.facts.guard("type", named, dict)
        env.facts.guard("keys", named, tuple(value.__kwdefaults__))


def guard_elements(env: Environment, source: Source, elements: Sequence[object]) -> None:
    """The elements of a set and their order: two equal sets may be iterated in different orders."""
    for value in elements:
        if not is_plain_key(value):
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"an outside set holds a {type(value).__qualname__}")
            )
        if not is_constant(value):
            env.facts.use_identity(value)
            wrap(env, value, env.sources.const(value), decided=True)
    env.facts.guard("keys", source, tuple(elements))


def _is_made_at_access(value: BuiltinType) -> bool:
    """Whether it is a method of C, bound to an instance or a class: each access makes another one."""
    return is_bound(value) or isinstance(value.__self__, type)


def _wrap_bound_builtin(
    env: Environment, value: BuiltinType | types.MethodWrapperType, source: Source
) -> object:
    """`values.append`, `values.__len__`: a new object at each access, known by its name and by what it is bound to."""
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
        if is_unfakeable(value):
            return _wrap_odd_tensor(env, value, source)
        layout, facts = env.sizes.of(value, source) or (None, tensor_facts(value))
        fake = env.trace.fake(value, _input_name(source), layout)
        env.sources[id(fake)] = env.sources[id(value)] = source
        env.sources.keep(value)
        env.facts.guard("tensor", source, facts)
        if fake.subclass is not None:
            env.facts.use_class(fake.subclass)
            _guard_parameter(env, value, source)
        return fake
    _alias(env, source, env.sources[id(known)])
    return known


def _wrap_odd_tensor(env: Environment, value: torch.Tensor, source: Source) -> torch.Tensor:
    """A tensor that no fake stands for (sparse, quantized, nested, of a subclass): itself, guarded by its metadata where a
    guard can read that, else by its type. Whatever is done with it is done at a graph break."""
    first = env.sources.get(id(value))
    if first is not None:
        _alias(env, source, first)
        return value
    if hides_metadata(value):
        env.facts.guard("type", source, type(value))
        _guard_parameter(env, value, source)
    else:
        env.facts.guard("tensor", source, tensor_facts(value))
    env.sources.register(value, source)
    return value


def _guard_parameter(env: Environment, value: torch.Tensor, source: Source) -> None:
    """What tells whether a tensor of a subclass is an nn.Parameter, which its type does not."""
    mark = (instance_dict(value) or {}).get("_is_param")
    if mark is None:
        env.facts.guard("not_in_dict", source, "_is_param", key="_is_param")
    else:
        env.facts.guard("eq", source.child("attr", "_is_param"), mark)


def _wrap_array(env: Environment, value: np.ndarray[Any, Any], source: Source) -> object:
    """A NumPy array: its tensor is a graph input that the compiled frame makes of it."""
    known = env.seen.arrays.get(id(value))
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
    made = env.seen.arrays[id(value)] = array_proxy.Array(fake, from_environment=True)
    env.sources[id(fake)] = source.child("array", None)
    env.sources[id(made)] = env.sources[id(value)] = source
    env.sources.keep(value, made)
    return made


def _alias(env: Environment, source: Source, first: Source) -> None:
    if source is not first and source.kind != "const":
        env.facts.guard("alias", source, first)


def has_dynamic_numbers(env: Environment, source: Source) -> bool:
    """Whether numbers inside what was read at `source` changed between calls."""
    if not env.numbers.dynamic:
        return False
    path = source.path
    return any(p[: len(path)] == path for p in env.numbers.dynamic)


def _wrap_constants(
    env: Environment, value: tuple[object, ...] | frozenset[object], source: Source, decided: bool
) -> object:
    """A tuple or frozenset of constants: equal ones are made everywhere, and `is` tells them apart."""
    if not decided:
        env.facts.guard("eq", source, value)
    if value:
        env.sources.register(value, source)
    return value


def _wrap_tuple(env: Environment, value: tuple[object, ...], source: Source, decided: bool) -> object:
    kind = type(value)
    if kind is tuple and is_constant(value) and not has_dynamic_numbers(env, source):
        return _wrap_constants(env, value, source, decided)
    known = env.seen.tuples.get(id(value))
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
        env.seen.tuples[id(value)] = value
        return value
    made = tuple_like(value, items)
    env.seen.tuples[id(value)] = made
    env.sources.register(made, source)
    return made


def tuple_like(value: tuple[object, ...], items: Sequence[object]) -> tuple[object, ...]:
    """A tuple of the class of `value`, with its attributes, that holds `items`."""
    kind = type(value)
    if kind is torch.Size or hasattr(kind, "n_sequence_fields"):  # of C: torch.return_types.topk
        return kind(items)
    made = tuple.__new__(kind, items)
    (instance_dict(made) or {}).update(instance_dict(value) or {})
    return made


def _wrap_object(env: Environment, value: object, source: Source, decided: bool) -> object:
    if type(value) in weakref.ProxyTypes:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an outside weak proxy"))
    first = env.sources.get(id(value))
    if first is None:
        env.facts.guard("type", source, type(value))
        _guard_value(env, value, source)
        env.sources.register(value, source)
    elif first is not source and first.kind != "const":
        _alias(env, source, first)
    elif first is not source and not decided:
        env.facts.guard("id", source, value)
    env.seen.objects[id(value)] = value
    return value


def _guard_value(env: Environment, value: object, source: Source) -> None:
    """What C code alone knows of a number, a text or a date; dates and decimals are guarded by their identity."""
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
        if zone is not None:  # others in the same zone are made of it
            env.sources.const(zone)
    elif type(type(value)) is _TAGS and hasattr(type(value), "__members__"):  # an enumeration of torch's C++
        env.facts.guard("id", source, value)


def fake(env: Environment, value: T) -> T:
    """A value that native code gave: a real tensor in it would escape the trace, and so would the copy of a container."""
    if isinstance(value, CONTAINER_BASES):
        return cast(T, env.overlay.original(value))
    if (
        isinstance(value, torch.Tensor)
        and type(value) is not FakeTensor
        and not is_functorch_wrapped_tensor(value)
    ):
        return cast(T, env.trace.inputs.fake_for_native(value))
    return value


@cached_by_class
def _plain_reader(cls: type) -> str | None:
    """The method without arguments, written in C, that gives the plain value of an instance of `cls`."""
    for name in ("item", "__getnewargs__"):
        if type(type_find(cls, name)) is types.MethodDescriptorType:
            return name
    return None


def _input_name(source: Source) -> str:
    """How graphs call the tensor at `source`: `x`, `layers_0_weight`."""
    parts: list[str] = []
    at: Source | None = source
    while at is not None:
        if at.kind not in ("cell", "dict") and at.key not in ("_modules", "_parameters", "_buffers"):
            parts.append(key_name(at.key))
        at = at.base
    return "_".join(reversed(parts)) if len(parts) < 12 else "_".join(reversed(parts[:11]))
