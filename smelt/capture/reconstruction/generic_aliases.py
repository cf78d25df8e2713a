"""Rows for objects that are constants unless they refer to an object that the program created.

Generic types and unions, members of classes and of enumerations, times with a time zone, t-strings.
"""

from __future__ import annotations

import datetime
import functools
import operator
import types
import typing

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.value_kinds import INTERPOLATION, TEMPLATE
from smelt.capture.reconstruction.builtin_containers import tuple_text
from smelt.capture.reconstruction.constants import TYPE_VARIABLES, is_embeddable
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported


def _generic_text(x: types.GenericAlias, text: Expressions) -> str:
    alias = f"GenericAlias({text(x.__origin__)}, {tuple_text(x.__args__, text)})"
    return f"next(iter({alias}))" if x.__unpacked__ else alias


def _union_members(x: types.UnionType) -> tuple[object, ...]:
    for member in x.__args__:
        metaclasses = type(member).mro(type(member))[:-2] if isinstance(member, type) else []
        if any({"__or__", "__ror__"} & vars(cls).keys() for cls in metaclasses):
            raise unsupported(x, "whose members are combined by the user's code")
    return x.__args__


def _union_text(x: types.UnionType, text: Expressions) -> str:
    return f"{text.constant(_union, 'union')}({', '.join(map(text, x.__args__))})"


def _union(*members: type) -> object:
    if PY314:  # accepts members without `|`
        return operator.getitem(typing.cast("dict[object, object]", types.UnionType), members)
    return functools.reduce(operator.or_, members)


def _in_zone(x: datetime.time | datetime.datetime, text: Expressions) -> str:
    return f"{text(x.replace(tzinfo=None))}.replace(tzinfo={text(x.tzinfo)})"


class _Template(typing.Protocol):
    strings: tuple[str, ...]
    interpolations: tuple[object, ...]


class _Interpolation(typing.Protocol):
    value: object
    expression: str
    conversion: str | None
    format_spec: str


def _template_text(x: _Template, text: Expressions) -> str:
    return f"{text.constant(TEMPLATE, 'Template')}({', '.join(map(text, _template_parts(x)))})"


def _template_parts(x: _Template) -> list[object]:
    """The strings and interpolations of a t-string, in order."""
    return [*(item for pair in zip(x.strings, x.interpolations) for item in pair), x.strings[-1]]


def _interpolation_parts(x: _Interpolation) -> tuple[object, ...]:
    return x.value, x.expression, x.conversion, x.format_spec


def _interpolation_text(x: _Interpolation, text: Expressions) -> str:
    constructor = text.constant(INTERPOLATION, "Interpolation")
    return f"{constructor}({', '.join(map(text, _interpolation_parts(x)))})"


_TEMPLATES: dict[type, ReconstructionKind] = {}
if TEMPLATE is not None and INTERPOLATION is not None:
    _TEMPLATES[TEMPLATE] = ReconstructionKind(_template_parts, _template_text)
    _TEMPLATES[INTERPOLATION] = ReconstructionKind(_interpolation_parts, _interpolation_text)

# Members of a class: embeddable where the class is. For a class that the program created they are refused.
_OF_CLASS = ReconstructionKind(lambda x: (x.__objclass__,), lambda x, text: text.constant(x, x.__name__))
# of an enumeration
MEMBER = ReconstructionKind(lambda x: (type(x),), lambda x, text: text.constant(x, type(x).__name__))

ALIASES: dict[type, ReconstructionKind] = {
    types.GenericAlias: ReconstructionKind(lambda x: (x.__origin__, *x.__args__), _generic_text),
    types.UnionType: ReconstructionKind(_union_members, _union_text),
    datetime.time: ReconstructionKind(lambda x: (x.tzinfo,), _in_zone),
    datetime.datetime: ReconstructionKind(lambda x: (x.tzinfo,), _in_zone),
    **_TEMPLATES,
    types.MethodDescriptorType: _OF_CLASS,
    types.WrapperDescriptorType: _OF_CLASS,
    types.ClassMethodDescriptorType: _OF_CLASS,
    types.GetSetDescriptorType: _OF_CLASS,
    types.MemberDescriptorType: _OF_CLASS,
}


def typing_alias_kind(x: object) -> ReconstructionKind | None:
    """The row of a generic type of `typing` over the program's type variables, which `typing` caches; else None."""
    if type(x) not in _SUBSCRIPTED:
        return None
    function, (generic, arguments) = _reduced(x)
    if function is not operator.getitem or type(generic).__module__ != "typing" or not is_plain(arguments):
        return None
    return _SUBSCRIPTION if vars(x).keys() <= _FIELDS and generic[arguments] is x else None


_SUBSCRIPTED = frozenset(
    k
    for k in vars(typing).values()
    if isinstance(k, type) and issubclass(k, typing._GenericAlias)  # type: ignore[attr-defined]
)
_FIELDS = {
    k
    for x in (typing.Callable[[], int], typing.Annotated[int, 1], typing.Unpack[tuple[int]])
    for k in vars(x)
}


def is_plain(argument: object) -> bool:
    """Whether hashing and comparing `argument` runs no code of the user."""
    if type(argument) is tuple or type(argument) is list:
        return all(map(is_plain, argument))
    if type(argument) in _SUBSCRIPTED:
        return all(map(is_plain, (argument.__origin__, *argument.__args__)))  # type: ignore[attr-defined]
    if isinstance(argument, type):
        return type(argument) is type
    return (
        isinstance(argument, TYPE_VARIABLES)
        or is_embeddable(argument)
        or type(argument).__module__ == "typing"
    )


def _reduced(x: object) -> tuple[object, tuple[typing.Any, object]]:
    return typing.cast("tuple[object, tuple[typing.Any, object]]", x.__reduce__())


_SUBSCRIPTION = ReconstructionKind(
    lambda x: _reduced(x)[1], lambda x, text: "{}[{}]".format(*map(text, _reduced(x)[1]))
)
