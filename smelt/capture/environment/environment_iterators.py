"""Iterators from outside: the machine looks at what they will give, which is guarded, and the compiled frame advances them.

Of an iterator over a list, a dictionary, a tuple, a range or a text the item is read where it lies. An enumerate and a zip
advance the iterators inside of them, here as there, so that one which is advanced in two ways is one.
"""

from __future__ import annotations

from typing import cast

from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Outside
from smelt.errors import Unsupported
from smelt.guards.iterator_state import (
    OVER_CHANGING,
    PARTS,
    RANGE,
    WALKS,
    Part,
    has_changed_size,
    is_long,
    item_ahead,
    items_left,
)
from smelt.reasons import UNSUPPORTED_OBJECT, Reason

MOST = 1024  # items of one iterator in one capture


def is_advanced(outside: Outside, iterator: object) -> bool:
    """Whether `iterator` is from outside, and of a kind that `next_item` advances."""
    return outside.looks_ahead and id(iterator) in outside.sources and _can_look_ahead(iterator)


def _can_look_ahead(iterator: object) -> bool:
    kind = type(iterator)
    if kind is enumerate and is_long(iterator):
        return False
    if kind is enumerate or kind is zip:
        inner = PARTS["inner"](iterator)
        return all(map(_can_look_ahead, cast("tuple[object, ...]", inner) if kind is zip else (inner,)))
    return kind in WALKS and not has_changed_size(iterator)


def next_item(outside: Outside, iterator: object) -> object:
    """`next(iterator)` of an iterator from outside. Raises StopIteration, and Unsupported for one that cannot be looked
    into."""
    if not is_advanced(outside, iterator):
        raise _refused(iterator)
    try:
        value = _take(outside, iterator)
    except StopIteration:
        outside.log.advance(iterator)
        raise
    outside.log.advance(iterator)
    return value


def _refused(iterator: object) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {type(iterator).__qualname__} is advanced"))


def _take(outside: Outside, iterator: object) -> object:
    outside.log.note_advanced(iterator)
    if type(iterator) is enumerate:
        return _next_of_enumerate(outside, iterator)
    return _next_of_zip(outside, iterator) if type(iterator) is zip else _next_of_walk(outside, iterator)


def _part(outside: Outside, iterator: object, name: Part) -> object:
    source = outside.sources[id(iterator)].child("part", name)
    return wrap_values.wrap(outside, PARTS[name](iterator), source)


def _next_of_walk(outside: Outside, iterator: object) -> object:
    source = outside.sources[id(iterator)]
    taken, left = outside.taken.get(id(iterator), 0), items_left(iterator)
    changed = type(iterator) in OVER_CHANGING and _part(outside, iterator, "over") in outside.log
    if changed or taken >= MOST:
        raise _refused(iterator)
    if taken == left:
        outside.facts.guard("eq", source.child("part", "left"), left)
        raise StopIteration
    outside.taken[id(iterator)] = taken + 1
    value, source = item_ahead(iterator, taken), source.child("ahead", taken)
    if type(iterator) is RANGE:
        return outside.numbers.counter(cast(int, value), source)
    return wrap_values.wrap(outside, value, source)


def _next_of_enumerate(outside: Outside, iterator: object) -> tuple[object, object]:
    inner = _part(outside, iterator, "inner")
    source = outside.sources[id(iterator)].child("part", "index")
    first = cast(int, outside.numbers.counter(cast(int, PARTS["index"](iterator)), source))
    value = _take(outside, inner)
    taken = outside.taken.get(id(iterator), 0)
    outside.taken[id(iterator)] = taken + 1
    return first + taken if taken else first, value


def _next_of_zip(outside: Outside, iterator: object) -> tuple[object, ...]:
    inner = cast("tuple[object, ...]", _part(outside, iterator, "inner"))
    strict = _part(outside, iterator, "strict")
    values: list[object] = []
    for one in inner:
        try:
            values.append(_take(outside, one))
        except StopIteration:
            if strict and (values or not all(_has_ended(outside, other) for other in inner[1:])):
                raise _refused(iterator) from None
            raise
    if not inner:
        raise StopIteration
    return tuple(values)


def _has_ended(outside: Outside, iterator: object) -> bool:
    try:
        _take(outside, iterator)
    except StopIteration:
        return True
    return False
