"""The built-in state of exceptions: `args`, the fields of their C classes, cause, context and traceback."""

from __future__ import annotations

import types

from smelt import _native
from smelt.capture.reconstruction.reconstruction_kind import Expressions
from smelt.capture.reconstruction.traceback_reconstruction import without_smelt_frames

_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_EVERY_EXCEPTION = frozenset(vars(BaseException)) | frozenset(vars(BaseExceptionGroup))


def exception_args(x: BaseException) -> tuple[object, ...]:
    """`args`, even where the class has a property of that name."""
    found: tuple[object, ...] = BaseException.args.__get__(x)  # type: ignore[attr-defined]
    return found


def _native_bases(x: BaseException) -> list[type]:
    """The C classes from which an exception's class inherits, nearest first."""
    return [k for k in type(x).__mro__ if not _native.made_by_python(k)]


def new_exception_text(x: BaseException, cls: str, text: Expressions) -> str:
    """The expression that creates an exception from its `args`, by the `__new__` of its nearest C class."""
    base = text(_native_bases(x)[0])
    return f"{base}.__new__({', '.join((cls, *map(text, exception_args(x))))})"


def exception_fields(x: BaseException) -> dict[str, object]:
    """The state of an exception besides `args` and attributes: fields of its C classes, cause, context and traceback."""
    found: dict[str, object] = {}
    for cls in _native_bases(x):
        for name, field in cls.__dict__.items():
            if type(field) in _FIELDS and name not in _EVERY_EXCEPTION and cls is not object:
                try:
                    found[name] = field.__get__(x)
                except (AttributeError, TypeError):  # not set
                    continue
    found["__cause__"], found["__context__"] = x.__cause__, x.__context__
    found["__traceback__"] = without_smelt_frames(x.__traceback__)
    found = {name: value for name, value in found.items() if value is not None}
    if x.__suppress_context__ is not (x.__cause__ is not None):
        found["__suppress_context__"] = x.__suppress_context__
    return found


def fill_exception(x: BaseException, text: Expressions, name: str) -> list[str]:
    """The statements that set the fields."""
    return [f"set_attribute({name}, {n!r}, {text(v)})" for n, v in exception_fields(x).items()]
