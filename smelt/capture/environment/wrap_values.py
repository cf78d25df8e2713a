"""What is read from an outside object becomes a value of the VM, guarded: a tensor its fake, everything else itself."""

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
    is_shared,
    is_special_name,
)
from smelt.capture.environment.environment import Outside
from smelt.capture.proxies import array_proxy
from smelt.capture.reconstruction.constants import is_bound
from smelt.errors import Unsupported
from smelt.guards.guard_evaluation import tensor_facts
from smelt.guards.source import Origin, key_name
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.torch_private import is_functorch_wrapped_tensor
from smelt.tracing.fake.fake_tensor import FakeTensor, hides_metadata, is_odd
from smelt.tracing.symbolic.sym_numbers import NUMBERS

T = TypeVar("T")
_VALUE_BASES = (int, float, complex, str, bytes, np.generic)
_VALUES = (
    decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo
)  # fmt: skip


_TAGS = type(torch.Tag)  # the metaclass of pybind11
_MADE_EVERYWHERE = (int, float, slice, torch.Size)  # equal ones, and `is` tells them apart


def wrap(outside: Outside, value: Any, origin: Origin, *, decided: bool = False) -> Any:
    """What was read at `origin`, as a value of the VM, guarded. `decided`: another guard (a class's version) already
    says which object is there, so only what can change about it is guarded."""
    kind = type(value)
    if kind in LEAF_TYPES:
        if decided:
            return value
        if outside.numbers.dynamic and (kind is int or kind is float):
            return outside.numbers.read(value, origin)
        if kind is torch.Size and holds_changing_numbers(outside, origin):
            return _wrap_tuple(outside, value, origin, decided)
        outside.facts.guard("eq", origin, value)
        if kind in _MADE_EVERYWHERE and not is_shared(value):
            outside.origins.register(value, origin)
        return value
    if kind is FakeTensor or kind in NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        return _wrap_tensor(outside, value, origin)
    if type(value) is np.ndarray and array_proxy.is_traceable(value):
        return _wrap_array(outside, value, origin)
    if type(value) is types.MethodWrapperType or (type(value) is BuiltinType and _is_made_at_access(value)):
        return _wrap_bound_builtin(outside, value, origin)
    if type(value) is FunctionType and not decided and _is_made_anew(value, origin):
        return _wrap_function(outside, value, origin)
    if is_identity(value):
        if type(value) is FunctionType and _is_made_inside(value):
            outside.seen.objects[id(value)] = value  # another one may be known by the same code
        if not decided:
            outside.facts.guard("id", origin, value)
        outside.origins.register(
            value, outside.origins.const(value) if isinstance(value, (type, FunctionType)) else origin
        )
        return value
    if isinstance(value, tuple):
        return _wrap_tuple(outside, value, origin, decided)
    if kind is frozenset and is_constant(value):
        return _wrap_constants(outside, value, origin, decided)
    if isinstance(value, frozenset):
        if id(value) not in outside.origins:
            guard_elements(outside, origin, list(frozenset.__iter__(value)))
    return _wrap_object(outside, value, origin, decided)


def reach_class(outside: Outside, cls: type) -> None:
    """Native code may call special methods of `cls`: guards it, and tells of those that are objects which class of Python's
    they are from, so that what they change is a change of something from outside."""
    outside.facts.use_class(cls)
    for base in cls.__mro__:
        if not _native.made_by_python(base) or outside.origins.is_made_class(base):
            continue
        for name, value in base.__dict__.items():
            if is_special_name(name) and _native.made_by_python(type(value)) and _is_called(value):
                if not outside.log.touches(base, name):
                    wrap(outside, value, outside.origins.const(base).child("attr", name), decided=True)


def _is_called(value: object) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _is_made_anew(value: FunctionType, origin: Origin) -> bool:
    """Whether `value` is a function inside of a function that the call brings: each call may make another one."""
    return origin.root.kind == "arg" and _is_made_inside(value) and not value.__dict__


def _is_made_inside(value: FunctionType) -> bool:
    """Whether calls of another function make functions of this code."""
    return "<locals>" in value.__qualname__


def _wrap_function(outside: Outside, value: FunctionType, origin: Origin) -> FunctionType:
    """A function that is known by its code, its defaults, its globals and its closure."""
    first = outside.origins.get(id(value))
    if first is not None:
        _alias(outside, origin, first)
        return value
    facts = outside.facts
    facts.guard("type", origin, FunctionType)
    outside.origins.by_code(value, origin)
    outside.seen.objects[id(value)] = value
    if value.__defaults__ is None and value.__kwdefaults__ is None:
        facts.use_function(value)
    else:
        _guard_code_and_defaults(outside, value, origin)
    facts.guard("id", origin.child("member", "__globals__"), value.__globals__)
    facts.guard("len", origin.child("member", "__dict__"), 0)
    for at, cell in enumerate(value.__closure__ or ()):
        wrap(outside, cell, origin.child("member", "__closure__").child("item", at))
    return value


def _guard_code_and_defaults(outside: Outside, value: FunctionType, origin: Origin) -> None:
    """What `Facts.use_function` guards, for a function whose defaults are other objects at each call. Those of keywords are
    guarded where they are read."""
    outside.facts.knows_function(value)
    outside.facts.guard("id", origin.child("member", "__code__"), value.__code__)
    wrap(outside, value.__defaults__, origin.child("member", "__defaults__"))
    named = origin.child("member", "__kwdefaults__")
    if value.__kwdefaults__ is None:
        outside.facts.guard("eq", named, None)
    else:
        outside.facts.guard("type", named, dict)
        outside.facts.guard("keys", named, tuple(value.__kwdefaults__))


def guard_elements(outside: Outside, origin: Origin, elements: Sequence[object]) -> None:
    """The elements of a set and their order: two equal sets may be iterated in different orders."""
    for value in elements:
        if not is_plain_key(value):
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"an outside set holds a {type(value).__qualname__}")
            )
        if not is_constant(value):
            outside.facts.use_identity(value)
            wrap(outside, value, outside.origins.const(value), decided=True)
    outside.facts.guard("keys", origin, tuple(elements))


def _is_made_at_access(value: BuiltinType) -> bool:
    """Whether it is a method of C, bound to an instance or a class: each access makes another one."""
    return is_bound(value) or isinstance(value.__self__, type)


def _wrap_bound_builtin(
    outside: Outside, value: BuiltinType | types.MethodWrapperType, origin: Origin
) -> object:
    """`values.append`, `values.__len__`: a new object at each access, known by its name and by what it is bound to."""
    outside.facts.guard("type", origin, type(value))
    outside.facts.guard("eq", origin.child("member", "__name__"), value.__name__)
    wrap(outside, value.__self__, origin.child("member", "__self__"))
    outside.origins.register(value, origin)
    return value


def _wrap_tensor(outside: Outside, value: torch.Tensor, origin: Origin) -> object:
    if is_functorch_wrapped_tensor(value):
        return value
    known = outside.trace.inputs.known(value)
    if known is None:
        if is_odd(value):
            return _wrap_odd_tensor(outside, value, origin)
        layout, facts = outside.sizes.of(value, origin) or (None, tensor_facts(value))
        fake = outside.trace.fake(value, _input_name(origin), layout)
        outside.origins[id(fake)] = outside.origins[id(value)] = origin
        outside.origins.keep(value)
        outside.facts.guard("tensor", origin, facts)
        if fake.subclass is not None:
            outside.facts.use_class(fake.subclass)
            _guard_parameter(outside, value, origin)
        return fake
    _alias(outside, origin, outside.origins[id(known)])
    return known


def _wrap_odd_tensor(outside: Outside, value: torch.Tensor, origin: Origin) -> torch.Tensor:
    """A tensor that no fake stands for (sparse, quantized, nested, of a subclass): itself, guarded by its metadata where a
    guard can read that, else by its type. Whatever is done with it is done at a graph break."""
    first = outside.origins.get(id(value))
    if first is not None:
        _alias(outside, origin, first)
        return value
    if hides_metadata(value):
        outside.facts.guard("type", origin, type(value))
        _guard_parameter(outside, value, origin)
    else:
        outside.facts.guard("tensor", origin, tensor_facts(value))
    outside.origins.register(value, origin)
    return value


def _guard_parameter(outside: Outside, value: torch.Tensor, origin: Origin) -> None:
    """What tells whether a tensor of a subclass is an nn.Parameter, which its type does not."""
    mark = (instance_dict(value) or {}).get("_is_param")
    if mark is None:
        outside.facts.guard("not_in_dict", origin, "_is_param", key="_is_param")
    else:
        outside.facts.guard("eq", origin.child("attr", "_is_param"), mark)


def _wrap_array(outside: Outside, value: np.ndarray[Any, Any], origin: Origin) -> object:
    """A NumPy array: its tensor is a graph input that the compiled frame makes of it."""
    known = outside.seen.arrays.get(id(value))
    if known is not None:
        _alias(outside, origin, outside.origins[id(known)])
        return known
    outside.facts.guard("type", origin, np.ndarray)
    outside.facts.guard("id", origin.child("member", "dtype"), value.dtype)
    for name in ("shape", "strides"):
        outside.facts.guard("eq", origin.child("member", name), getattr(value, name))
    outside.facts.guard("eq", origin.child("member", "flags").child("member", "writeable"), True)
    with outside.trace.paused():
        real = torch.from_numpy(value)
    fake = outside.trace.fake(real, _input_name(origin))
    made = outside.seen.arrays[id(value)] = array_proxy.Array(fake, outside=True)
    outside.origins[id(fake)] = origin.child("array", None)
    outside.origins[id(made)] = outside.origins[id(value)] = origin
    outside.origins.keep(value, made)
    return made


def _alias(outside: Outside, origin: Origin, first: Origin) -> None:
    if origin is not first and origin.kind != "const":
        outside.facts.guard("alias", origin, first)


def holds_changing_numbers(outside: Outside, origin: Origin) -> bool:
    """Whether numbers inside what was read at `origin` changed between calls."""
    if not outside.numbers.dynamic:
        return False
    path = origin.path
    return any(p[: len(path)] == path for p in outside.numbers.dynamic)


def _wrap_constants(
    outside: Outside, value: tuple[object, ...] | frozenset[object], origin: Origin, decided: bool
) -> object:
    """A tuple or frozenset of constants: equal ones are made everywhere, and `is` tells them apart."""
    if not decided:
        outside.facts.guard("eq", origin, value)
    if value:
        outside.origins.register(value, origin)
    return value


def _wrap_tuple(outside: Outside, value: tuple[object, ...], origin: Origin, decided: bool) -> object:
    kind = type(value)
    if kind is tuple and is_constant(value) and not holds_changing_numbers(outside, origin):
        return _wrap_constants(outside, value, origin, decided)
    known = outside.seen.tuples.get(id(value))
    if known is not None:
        _alias(outside, origin, outside.origins[id(value)])
        return known
    if not decided:
        outside.facts.guard("type", origin, kind)
        outside.facts.guard("len", origin, len(value))
    items = [
        wrap(outside, v, origin.child("item", i), decided=decided)
        for i, v in enumerate(tuple.__iter__(value))
    ]
    outside.origins.register(value, origin)
    if all(a is b for a, b in zip(items, tuple.__iter__(value))):
        outside.seen.tuples[id(value)] = value
        return value
    made = tuple_like(value, items)
    outside.seen.tuples[id(value)] = made
    outside.origins.register(made, origin)
    return made


def tuple_like(value: tuple[object, ...], items: Sequence[object]) -> tuple[object, ...]:
    """A tuple of the class of `value`, with its attributes, that holds `items`."""
    kind = type(value)
    if kind is torch.Size or hasattr(kind, "n_sequence_fields"):  # of C: torch.return_types.topk
        return kind(items)
    made = tuple.__new__(kind, items)
    (instance_dict(made) or {}).update(instance_dict(value) or {})
    return made


def _wrap_object(outside: Outside, value: object, origin: Origin, decided: bool) -> object:
    if type(value) in weakref.ProxyTypes:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "an outside weak proxy"))
    first = outside.origins.get(id(value))
    if first is None:
        outside.facts.guard("type", origin, type(value))
        _guard_value(outside, value, origin)
        outside.origins.register(value, origin)
    elif first is not origin and first.kind != "const":
        _alias(outside, origin, first)
    elif first is not origin and not decided:
        outside.facts.guard("id", origin, value)
    outside.seen.objects[id(value)] = value
    return value


def _guard_value(outside: Outside, value: object, origin: Origin) -> None:
    """What C code alone knows of a number, a text or a date; dates and decimals are guarded by their identity."""
    if isinstance(value, _VALUE_BASES):
        kind: object = type(value)
        reader = _plain_reader(kind)
        if reader:
            outside.facts.guard(
                "eq", origin.child("member", reader).child("call", None), getattr(value, reader)()
            )
        else:
            outside.facts.guard("id", origin, value)
    elif isinstance(value, _VALUES):
        outside.facts.guard("id", origin, value)
        zone = getattr(value, "tzinfo", None)
        if zone is not None:  # others in the same zone are made of it
            outside.origins.const(zone)
    elif type(type(value)) is _TAGS and hasattr(type(value), "__members__"):  # an enumeration of torch's C++
        outside.facts.guard("id", origin, value)


def fake(outside: Outside, value: T) -> T:
    """A value that native code gave: a real tensor in it would escape the trace, and so would the copy of a container."""
    if isinstance(value, CONTAINER_BASES):
        return cast(T, outside.overlay.original(value))
    if (
        isinstance(value, torch.Tensor)
        and type(value) is not FakeTensor
        and not is_functorch_wrapped_tensor(value)
    ):
        return cast(T, outside.trace.inputs.stand_in(value))
    return value


@cached_by_class
def _plain_reader(cls: type) -> str | None:
    """The method without arguments, written in C, that gives the plain value of an instance of `cls`."""
    for name in ("item", "__getnewargs__"):
        if type(type_find(cls, name)) is types.MethodDescriptorType:
            return name
    return None


def _input_name(origin: Origin) -> str:
    """How graphs call the tensor at `origin`: `x`, `layers_0_weight`."""
    parts: list[str] = []
    at: Origin | None = origin
    while at is not None:
        if at.kind not in ("cell", "dict") and at.key not in ("_modules", "_parameters", "_buffers"):
            parts.append(key_name(at.key))
        at = at.base
    return "_".join(reversed(parts)) if len(parts) < 12 else "_".join(reversed(parts[:11]))
