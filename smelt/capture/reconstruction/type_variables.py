"""Rows for type variables of the program, in CPython 3.12 and later, where their classes are in C.

The bound, constraints and default of a variable from a type parameter list (`def f[T: int]`) may be evaluated lazily, which
runs user code: such a variable is not reconstructed. The garbage collector finds the evaluating functions. Attributes that
the program has set are not in a `__dict__` that Python can read.
"""

from __future__ import annotations

import gc
import typing
from collections.abc import Callable

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.bytecode import PY312
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.reconstruction.generic_aliases import is_plain
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported

_Variable = typing.TypeVar | typing.TypeVarTuple | typing.ParamSpec


def _check(x: _Variable) -> None:
    """Raise Unsupported for a variable that may be from a type parameter list, or whose bound runs user code."""
    inferred = getattr(x, "__infer_variance__", False)
    if inferred or any(type(referent) is FunctionType for referent in gc.get_referents(x)):
        raise unsupported(x, "its bound may be evaluated later")
    if not all(map(is_plain, _arguments(x))):
        raise unsupported(x, "its bound is a class with a comparison in Python")


def _keywords(x: _Variable) -> dict[str, object]:
    """The keyword arguments of its constructor."""
    names = () if isinstance(x, typing.TypeVarTuple) else ("bound", "covariant", "contravariant")
    has_default = getattr(x, "has_default", bool)  # from 3.13 on
    return {name: getattr(x, f"__{name}__") for name in (*names, *(["default"] * has_default()))}


def _constraints(x: _Variable) -> tuple[object, ...]:
    return x.__constraints__ if isinstance(x, typing.TypeVar) else ()


def _arguments(x: _Variable) -> tuple[object, ...]:
    return (*_constraints(x), *_keywords(x).values())


def _needs(x: _Variable) -> tuple[object, ...]:
    _check(x)
    return _arguments(x)


def _attributes(x: _Variable) -> dict[str, object]:
    """Its attributes; without `__module__` it would report the module of its class."""
    return {"__module__": x.__module__, **(_native.hidden_dict(x) or {})}


def _constructor(cls: type) -> Callable[[_Variable, Expressions], str]:
    def create(x: _Variable, text: Expressions) -> str:
        arguments = [repr(x.__name__), *map(text, _constraints(x))]
        arguments += [f"{name}={text(value)}" for name, value in _keywords(x).items()]
        return f"{text(cls)}({', '.join(arguments)})"

    return create


def _fill(x: _Variable, text: Expressions, name: str) -> list[str]:
    return [f"set_attribute({name}, {key!r}, {text(value)})" for key, value in _attributes(x).items()]


def _row(cls: type) -> ReconstructionKind:
    create = _constructor(cls)
    return ReconstructionKind(
        _needs, create, create, _fill, lambda x: [*_needs(x), *_attributes(x).values()], named=True
    )


VARIABLES: dict[type, ReconstructionKind] = (
    {cls: _row(cls) for cls in (typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec)} if PY312 else {}
)
