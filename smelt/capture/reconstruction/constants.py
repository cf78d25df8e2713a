"""Embeddable objects: immutable ones that are interchangeable with equal ones (numbers, strings, dtypes, types, ...).

A compiled frame does not reconstruct them: its source or its globals hold them.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch

from smelt._native import isinstance
from smelt.torch_private import OpOverload, OpOverloadPacket, SDPBackend

LITERALS = frozenset({int, bool, str, bytes, type(None)})  # their repr is their source
T = TypeVar("T")
CONSTANTS: frozenset[type] = frozenset({
    float, complex, type(...), type(NotImplemented), range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.finfo, torch.iinfo, OpOverloadPacket, OpOverload, SDPBackend,
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType,
    types.ModuleType, types.GenericAlias, types.UnionType, datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, datetime.timezone, decimal.Decimal,
})  # fmt: skip


def is_bound(x: types.BuiltinFunctionType) -> bool:
    """Whether a C function is the method of an instance."""
    return x.__self__ is not None and not isinstance(x.__self__, (type, types.ModuleType))


# The objects that constants refer to: one that refers to an object created during capture is reconstructed with it.
_REFERENTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    types.GenericAlias: lambda x: (x.__origin__, *x.__args__),
    types.UnionType: lambda x: x.__args__,
    datetime.time: lambda x: (x.tzinfo,),
    datetime.datetime: lambda x: (x.tzinfo,),
    **dict.fromkeys(
        (
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.ClassMethodDescriptorType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
        ),
        lambda x: (x.__objclass__,),
    ),
}


def is_embeddable(x: object) -> bool:
    """Whether the compiled frame may hold `x` itself. Not so for a class that the captured code created."""
    kind = type(x)
    if kind in LITERALS:
        return True
    if kind in _REFERENTS:
        return all(map(is_embeddable, _REFERENTS[kind](x)))
    if kind is types.BuiltinFunctionType:
        owner = cast(types.BuiltinFunctionType, x).__self__
        return not is_bound(cast(types.BuiltinFunctionType, x)) and (owner is None or is_embeddable(owner))
    if isinstance(x, enum.Enum):
        return is_embeddable(kind)
    if kind in CONSTANTS:
        return True
    if kind.__name__ == "cython_function_or_method":  # each library defines this class itself
        return True
    return isinstance(x, type) and "<locals>" not in x.__qualname__ and id(x) not in _created


def is_cached_by_typing(x: object) -> bool:
    """Whether `x`, which has no source, is an embeddable generic type that `typing` has cached."""
    arguments = _TYPING.get(type(x))
    return arguments is not None and id(x) not in _created and all(map(_is_plain, arguments(x)))


def _is_plain(argument: object) -> bool:
    return is_embeddable(argument) or is_cached_by_typing(argument)


_created: dict[int, weakref.ref[object]] = {}  # by the captured code: each call creates its own


def note_created(x: object) -> None:
    """Record that the captured code created `x`, a class or a type variable."""
    key = id(x)
    _created[key] = weakref.ref(x, lambda _: _created.pop(key, None))


def note_type_variable(x: T) -> T:
    """Record `x`, which the captured code created, if it is a type variable; return it."""
    if isinstance(x, TYPE_VARIABLES):
        note_created(x)
    return x


def _alias_arguments(x: object) -> tuple[object, ...]:
    """The origin, arguments and metadata of a generic alias of `typing`."""
    return (x.__origin__, *getattr(x, "__args__", ()), *getattr(x, "__metadata__", ()))  # type: ignore[attr-defined]


def _typing_kinds() -> Iterator[tuple[type, Callable[[object], tuple[object, ...]]]]:
    """The classes of `typing` with immutable cached objects, each with the function that returns an object's arguments."""
    kinds = [k for k in vars(typing).values() if isinstance(k, type)]
    for kind in kinds:
        if issubclass(kind, typing._BaseGenericAlias):  # type: ignore[attr-defined]
            yield kind, _alias_arguments
        elif issubclass(kind, (typing._SpecialForm, *TYPE_VARIABLES)):  # type: ignore[arg-type]
            yield kind, lambda x: ()


TYPE_VARIABLES = (typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec)
_TYPING = dict(_typing_kinds())
