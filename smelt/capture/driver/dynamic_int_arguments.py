"""The int arguments of a call, which are symbolic from the first call on with `dynamic=True`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import cast

from smelt.guards.changed_numbers import Path
from smelt.guards.source import Source


def int_arguments(code: CodeType, slots: Sequence[object]) -> set[Path]:
    """The paths of int arguments, also in `*args` and `**kwargs`. -1, 0 and 1 are specialized, as 0
    and 1 are for sizes."""
    return {source.path for source, value in _arguments(code, slots) if type(value) is int and abs(value) > 1}


def _arguments(code: CodeType, slots: Sequence[object]) -> Iterator[tuple[Source, object]]:
    named = code.co_argcount + code.co_kwonlyargcount
    for i, value in enumerate(slots[:named]):
        yield Source("arg", "", None, i), value
    if code.co_flags & inspect.CO_VARARGS:
        yield from _items(named, enumerate(cast("tuple[object, ...]", slots[named])))
        named += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield from _items(named, cast("dict[str, object]", slots[named]).items())


def _items(slot: int, items: Iterable[tuple[object, object]]) -> Iterator[tuple[Source, object]]:
    source = Source("arg", "", None, slot)
    for key, value in items:
        yield source.child("item", key), value
