"""Rows for instances of Python classes: the state of their built-in base, then slots and attributes.

The class's own `__new__`, `__init__` and `__setattr__` do not run: those of the built-in base do.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from smelt._native import isinstance
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.reconstruction.builtin_containers import dict_text, list_text, pairs, tuple_text
from smelt.capture.reconstruction.exception_state import (
    exception_args,
    exception_fields,
    fill_exception,
    new_exception_text,
)
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind


@dataclass(frozen=True)
class _BuiltinBase:
    """The built-in base of an instance: how it is filled and, if it is immutable, created with its contents. `holds`: the
    objects that `create` or else `fill` refers to; `fields`: more that `fill` refers to."""

    base: type
    holds: Callable[[Any], Iterable[object]] = lambda x: ()
    fill: Callable[[Any, Expressions, str], list[str]] = lambda x, text, name: []
    create: Callable[[Any, str, Expressions], str] | None = None
    fields: Callable[[Any], Iterable[object]] = lambda x: ()

    def created(self, x: object, cls: str, text: Expressions) -> str:
        """The source that creates an instance of `cls` like `x`, empty if it can be filled."""
        return f"{self.base.__name__}.__new__({cls})" if self.create is None else self.create(x, cls, text)


def _fill_ordered(x: collections.OrderedDict[object, object], text: Expressions, name: str) -> list[str]:
    items = collections.OrderedDict.items(x)
    return [f"OrderedDict.__setitem__({name}, {text(k)}, {text(v)})" for k, v in items]


def _fill_by(
    method: str, body: Callable[[Any, Expressions], str]
) -> Callable[[Any, Expressions, str], list[str]]:
    def fill(x: object, text: Expressions, name: str) -> list[str]:
        inner = body(x, text)
        return [] if inner in ("{}", "[]", "()") else [f"{method}({name}, {inner})"]

    return fill


_PLAIN: dict[type, Callable[[Any], object]] = {str: str.__str__, int: int.__int__, float: float.__float__}


def _new_from(base: type) -> Callable[[object, str, Expressions], str]:
    """Creation of numbers and strings from the plain value."""
    plain = _PLAIN[base]
    return lambda x, cls, text: f"{base.__name__}.__new__({cls}, {text(plain(x))})"


def _new_tuple(x: tuple[object, ...], cls: str, text: Expressions) -> str:
    return f"tuple.__new__({cls}, {tuple_text(_tuple_items(x), text)})"


def _fill_deque(x: collections.deque[object], text: Expressions, name: str) -> list[str]:
    items = list(collections.deque.__iter__(x))
    return [f"deque.__init__({name}, {list_text(items, text)}, {x.maxlen})"]


def _fill_defaultdict(x: collections.defaultdict[object, object], text: Expressions, name: str) -> list[str]:
    return [f"defaultdict.__init__({name}, {text(x.default_factory)}, {dict_text(x, text)})"]


# The items of the built-in base, which a subclass's `__iter__` may hide.
def _tuple_items(x: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(tuple.__iter__(x))


def _list_items(x: list[object]) -> list[object]:
    return list(list.__iter__(x))


def _set_items(x: set[object]) -> list[object]:
    return list(set.__iter__(x))


# The first row whose base is in the class's MRO applies.
BASES: tuple[_BuiltinBase, ...] = (
    _BuiltinBase(collections.OrderedDict, pairs, _fill_ordered),
    _BuiltinBase(collections.defaultdict, lambda x: [x.default_factory, *pairs(x)], _fill_defaultdict),
    _BuiltinBase(dict, pairs, _fill_by("dict.update", dict_text)),
    _BuiltinBase(list, _list_items, _fill_by("list.extend", lambda x, text: list_text(_list_items(x), text))),
    _BuiltinBase(
        set, _set_items, _fill_by("set.update", lambda x, text: tuple_text(tuple(_set_items(x)), text))
    ),
    _BuiltinBase(collections.deque, lambda x: list(collections.deque.__iter__(x)), _fill_deque),
    _BuiltinBase(tuple, _tuple_items, create=_new_tuple),
    _BuiltinBase(str, create=_new_from(str)),
    _BuiltinBase(int, create=_new_from(int)),
    _BuiltinBase(float, create=_new_from(float)),
    _BuiltinBase(
        *(BaseException, exception_args, fill_exception, new_exception_text),
        fields=lambda x: exception_fields(x).values(),
    ),
    _BuiltinBase(object),
)


@dataclass(frozen=True)
class _Slot:
    """A slot that `owner` declares in its `__slots__`. `hidden`: the class has another attribute by that name."""

    owner: type
    name: str
    descriptor: types.MemberDescriptorType
    hidden: bool

    def store(self, instance: str, value: object, text: Expressions) -> str:
        """The statement that stores `value` in the slot of `instance`."""
        if self.hidden:
            return f"slot_of({text(self.owner)}, {self.name!r}).__set__({instance}, {text(value)})"
        return f"set_attribute({instance}, {self.name!r}, {text(value)})"


def _declared_slots(cls: type) -> list[_Slot]:
    """The slots of a class and its bases."""
    found = []
    for owner in cls.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            mangled = f"_{owner.__name__.lstrip('_')}{name}" if private else name
            descriptor = owner.__dict__.get(mangled)
            if type(descriptor) is types.MemberDescriptorType:
                first = next(k for k in cls.__mro__ if mangled in k.__dict__)
                found.append(_Slot(owner, mangled, descriptor, hidden=first is not owner))
    return found


def _slots(x: object, declared: list[_Slot]) -> Iterable[tuple[_Slot, object]]:
    """The slots that hold a value, and their values."""
    for slot in declared:
        try:
            value = slot.descriptor.__get__(x, type(x))
        except AttributeError:
            continue
        yield slot, value


def _slot_of(owner: type, name: str) -> object:
    return owner.__dict__[name]


provide(slot_of=_slot_of)


def _attributes(x: object) -> list[dict[str, object]]:
    """A list of its `__dict__`, which the program may hold too; empty for a class with only slots."""
    try:
        own: dict[str, object] = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return []
    return [own]


def _refusal(cls: type, base: _BuiltinBase) -> str | None:
    """Why instances of a class cannot be reconstructed; None if they can."""
    if any("__del__" in k.__dict__ for k in cls.__mro__):
        return "its class has a finalizer"
    if base.create is not None:
        return None
    if "<locals>" not in cls.__qualname__ and cls.__module__ == "builtins":
        return "a native object"
    try:
        base.base.__new__(cls)  # type: ignore[call-overload]
    except TypeError:
        return "a native object"
    return None


@cached_by_class
def instance_kind(cls: type) -> ReconstructionKind | str:
    """The row of instances of a Python class, or why there is none."""
    base = next(b for b in BASES if b.base in cls.__mro__)
    refusal = _refusal(cls, base)
    if refusal is not None:
        return refusal
    declared = _declared_slots(cls)

    def holds(x: object) -> list[object]:
        return [*base.holds(x), *base.fields(x), *(v for _, v in _slots(x, declared)), *_attributes(x)]

    def create(x: object, text: Expressions) -> str:
        return base.created(x, text(cls), text)

    def fill(x: object, text: Expressions, name: str) -> list[str]:
        lines = base.fill(x, text, name)
        lines += [slot.store(name, value, text) for slot, value in _slots(x, declared)]
        return [*lines, *(f"set_attribute({name}, '__dict__', {text(own)})" for own in _attributes(x))]

    def needs(x: object) -> list[object]:
        return list(base.holds(x)) if base.create is not None else []

    return ReconstructionKind(needs, create, create, fill, holds, named=True)
