"""Texts of objects in guards and their failures, written without user code."""

from __future__ import annotations

import types
from typing import Any

import torch

from smelt._native import isinstance
from smelt.guards.weak_identity import GONE

_NAMED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_LEAVES = (
    type(None), int, float, bool, str, bytes, complex, slice, range, torch.dtype, torch.device, torch.Size, torch.layout,
)  # fmt: skip


def class_text(cls: type) -> str:
    """The qualified name of a class, with its module unless that is `builtins`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def identity_text(value: object) -> str:
    """An object in an expression that compares identities: its name if it has one, else its class and address."""
    if isinstance(value, type):
        return class_text(value)
    if isinstance(value, types.ModuleType):
        return value.__name__
    if value is GONE:
        return repr(GONE)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return str(name) if isinstance(name, str) else f"<{type(value).__name__} at {id(value):#x}>"


def short_text(x: object) -> str:
    """The value of a leaf constant, in at most 60 characters; the class of another object."""
    if type(x) in _LEAVES or (type(x) is tuple and all(type(v) in _LEAVES for v in x)):
        text = repr(x)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"{class_text(type(x))} object"


def identity_difference(value: Any, x: Any) -> tuple[str, str]:
    """The expected object `value` and the found object `x`, by their names if `value` has one."""
    if isinstance(value, _NAMED):
        return _kind_and_name(value), _kind_and_name(x)
    return f"the same {type(value).__name__} as before", short_text(x)


def _kind_and_name(x: Any) -> str:
    if not isinstance(x, _NAMED):
        return short_text(x)
    kind = "class" if isinstance(x, type) else "module" if isinstance(x, types.ModuleType) else "function"
    name = x.__name__ if isinstance(x, (types.ModuleType, types.BuiltinFunctionType)) else x.__qualname__
    return f"{kind} {name}"


def part_text(x: Any) -> str:
    """A function's code object, its defaults, or its dictionary of keyword defaults."""
    if isinstance(x, types.CodeType):
        return f"that of {x.co_qualname} (line {x.co_firstlineno})"
    if type(x) is dict:
        return "{" + ", ".join(f"{name!r}: {short_text(value)}" for name, value in x.items()) + "}"
    return short_text(x)
