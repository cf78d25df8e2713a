"""Type variables that the program made: rows for CPython 3.12 and later, where their classes are of C.

What a type parameter list (`def f[T: int]`) has made may have a bound, constraints and a default that are evaluated when
they are asked for, which would run code of the user's: such a variable is not made anew. What evaluates them is among what
the collector finds. Attributes that the program has set are in no `__dict__` that Python could ask for.
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
    """Raises Unsupported for one that may be of a type parameter list, or that is bound to what runs code of the user's."""
    inferred = getattr(x, "__infer_variance__", False)
    if inferred or any(type(part) is FunctionType for part in gc.get_referents(x)):
        raise unsupported(x, "what it is bound to may be evaluated later")
    if not all(map(is_plain, _parts(x))):
        raise unsupported(x, "it is bound to a class that code of the user's compares")


def _keywords(x: _Variable) -> dict[str, object]:
    """What its class was called with besides the name and constraints."""
    names = () if isinstance(x, typing.TypeVarTuple) else ("bound", "covariant", "contravariant")
    has_default = getattr(x, "has_default", bool)  # from 3.13 on
    return {name: getattr(x, f"__{name}__") for name in (*names, *(["default"] * has_default()))}


def _constraints(x: _Variable) -> tuple[object, ...]:
    return x.__constraints__ if isinstance(x, typing.TypeVar) else ()


def _parts(x: _Variable) -> tuple[object, ...]:
    return (*_constraints(x), *_keywords(x).values())


def _needs(x: _Variable) -> tuple[object, ...]:
    _check(x)
    return _parts(x)


def _attributes(x: _Variable) -> dict[str, object]:
    """Without a `__module__` of its own, it says that it is of the module of its class."""
    return {"__module__": x.__module__, **(_native.hidden_dict(x) or {})}


def _made_by(cls: type) -> Callable[[_Variable, Expressions], str]:
    def create(x: _Variable, text: Expressions) -> str:
        given = [repr(x.__name__), *map(text, _constraints(x))]
        given += [f"{name}={text(value)}" for name, value in _keywords(x).items()]
        return f"{text(cls)}({', '.join(given)})"

    return create


def _fill(x: _Variable, text: Expressions, name: str) -> list[str]:
    return [f"set_attribute({name}, {key!r}, {text(value)})" for key, value in _attributes(x).items()]


def _row(cls: type) -> ReconstructionKind:
    create = _made_by(cls)
    return ReconstructionKind(_needs, create, create, _fill, lambda x: [*_needs(x), *_attributes(x).values()], named=True)


VARIABLES: dict[type, ReconstructionKind] = (
    {cls: _row(cls) for cls in (typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec)} if PY312 else {}
)
