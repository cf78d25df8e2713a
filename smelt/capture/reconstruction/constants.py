"""Constants: objects that no one can tell apart from an equal one (numbers, strings, dtypes, types, ...).

A compiled frame need not make them anew: they stand in its source, or among its globals, as themselves.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
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
CONSTANTS: frozenset[type] = frozenset(
    {
        float,
        complex,
        type(...),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.finfo,
        torch.iinfo,
        OpOverloadPacket,
        OpOverload,
        SDPBackend,
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.CodeType,
        types.ModuleType,
        types.GenericAlias,
        types.UnionType,
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
        datetime.timezone,
        decimal.Decimal,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    }
)


def is_bound(x: types.BuiltinFunctionType) -> bool:
    """Whether a C function is the method of an instance."""
    return x.__self__ is not None and not isinstance(x.__self__, (type, types.ModuleType))


# What constants lead to that lead anywhere: one that leads to what the program made is made anew with it.
_LEADING: dict[type, Callable[[Any], tuple[object, ...]]] = {
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
    """Whether the compiled frame may hold `x` itself, whoever made it. A class that capture made is made anew."""
    kind = type(x)
    if kind in LITERALS:
        return True
    if kind in _LEADING:
        return all(map(is_embeddable, _LEADING[kind](x)))
    if kind is types.BuiltinFunctionType:
        owner = cast(types.BuiltinFunctionType, x).__self__
        return not is_bound(cast(types.BuiltinFunctionType, x)) and (
            owner is None or is_embeddable(owner)
        )
    if isinstance(x, enum.Enum):
        return is_embeddable(kind)
    if kind in CONSTANTS:
        return True
    if kind.__name__ == "cython_function_or_method":  # each library has such a class of its own
        return True
    return isinstance(x, type) and "<locals>" not in x.__qualname__ and id(x) not in _made


def is_cached_by_typing(x: object) -> bool:
    """Whether `x`, which has no source, is a generic type that `typing` made once and keeps: it stands for itself too."""
    parts = _TYPING.get(type(x))
    return parts is not None and id(x) not in _made and all(_is_known(part) for part in parts(x))


def _is_known(part: object) -> bool:
    return is_embeddable(part) or is_cached_by_typing(part)


_made: dict[int, weakref.ref[object]] = {}  # made during a capture: each call makes its own


def note_created(x: object) -> None:
    """Notes that the code that is captured made `x`, a class or a type variable."""
    key = id(x)
    _made[key] = weakref.ref(x, lambda _: _made.pop(key, None))


def note_type_variable(made: T) -> T:
    """`made`, which the code that is captured made: noted if it is a type variable."""
    if isinstance(made, TYPE_VARIABLES):
        note_created(made)
    return made


def _alias_parts(x: object) -> tuple[object, ...]:
    """What a generic alias of `typing` is made of."""
    return (x.__origin__, *getattr(x, "__args__", ()), *getattr(x, "__metadata__", ()))  # type: ignore[attr-defined]


def _typing_kinds() -> Iterator[tuple[type, Callable[[object], tuple[object, ...]]]]:
    """The classes of `typing` whose objects never change and which `typing` keeps one of, with what is inside of them."""
    kinds = [k for k in vars(typing).values() if isinstance(k, type)]
    for kind in kinds:
        if issubclass(kind, typing._BaseGenericAlias):  # type: ignore[attr-defined]
            yield kind, _alias_parts
        elif issubclass(kind, (typing._SpecialForm, *TYPE_VARIABLES)):  # type: ignore[arg-type]
            yield kind, lambda x: ()


TYPE_VARIABLES = (typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec)
_TYPING = dict(_typing_kinds())
