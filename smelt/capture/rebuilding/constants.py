"""Constants: objects that no one can tell apart from an equal one (numbers, strings, dtypes, types, ...).

A compiled frame need not make them anew: they stand in its source, or among its globals, as themselves.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import types
import weakref
from typing import cast

import torch

LITERALS = frozenset({int, bool, str, bytes, type(None)})  # their repr is their source
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
        torch._ops.OpOverloadPacket,
        torch._ops.OpOverload,
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


def stands_for_itself(x: object) -> bool:
    """Whether the compiled frame may hold `x` itself, whoever made it. A class that capture made is made anew."""
    kind = type(x)
    if kind is types.BuiltinFunctionType:
        return not is_bound(cast(types.BuiltinFunctionType, x))
    if kind in LITERALS or kind in CONSTANTS or isinstance(x, enum.Enum):
        return True
    return isinstance(x, type) and "<locals>" not in x.__qualname__ and id(x) not in _made_classes


_made_classes: dict[int, weakref.ref[type]] = {}  # made during a capture: each call makes its own


def note_class(cls: type) -> None:
    """Notes that the code that is captured made the class `cls`."""
    key = id(cls)
    _made_classes[key] = weakref.ref(cls, lambda _: _made_classes.pop(key, None))
