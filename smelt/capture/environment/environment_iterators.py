"""Iterators from outside: the machine looks at what they will give, which is guarded, and the compiled frame advances them.

Of an iterator over a list, a dictionary, a tuple, a range or a text the item is read where it lies. An enumerate and a zip
advance the iterators inside of them, here as there, so that one which is advanced in two ways is one.
"""

from __future__ import annotations

from typing import cast

from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
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


def is_advanced(env: Environment, iterator: object) -> bool:
    """Whether `iterator` is from outside, and of a kind that `next_item` advances."""
    return env.looks_ahead and id(iterator) in env.sources and _can_look_ahead(iterator)


def _can_look_ahead(iterator: object) -> bool:
    kind = type(iterator)
    if kind is enumerate and is_long(iterator):
        return False
    if kind is enumerate or kind is zip:
        inner = PARTS["inner"](iterator)
        return all(map(_can_look_ahead, cast("tuple[object, ...]", inner) if kind is zip else (inner,)))
    return kind in WALKS and not has_changed_size(iterator)


def next_item(env: Environment, iterator: object) -> object:
    """`next(iterator)` of an iterator from outside. Raises StopIteration, and Unsupported for one that cannot be looked
    into."""
    if not is_advanced(env, iterator):
        raise _refused(iterator)
    try:
        value = _take(env, iterator)
    except StopIteration:
        env.log.advance(iterator)
        raise
    env.log.advance(iterator)
    return value


def _refused(iterator: object) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {type(iterator).__qualname__} is advanced"))


def _take(env: Environment, iterator: object) -> object:
    env.log.note_advanced(iterator)
    if type(iterator) is enumerate:
        return _next_of_enumerate(env, iterator)
    return _next_of_zip(env, iterator) if type(iterator) is zip else _next_of_walk(env, iterator)


def _part(env: Environment, iterator: object, name: Part) -> object:
    source = env.sources[id(iterator)].child("part", name)
    return wrap_values.wrap(env, PARTS[name](iterator), source)


def _next_of_walk(env: Environment, iterator: object) -> object:
    source = env.sources[id(iterator)]
    taken, left = env.taken.get(id(iterator), 0), items_left(iterator)
    changed = type(iterator) in OVER_CHANGING and _part(env, iterator, "over") in env.log
    if changed or taken >= MOST:
        raise _refused(iterator)
    if taken == left:
        env.facts.guard("eq", source.child("part", "left"), left)
        raise StopIteration
    env.taken[id(iterator)] = taken + 1
    value, source = item_ahead(iterator, taken), source.child("ahead", taken)
    if type(iterator) is RANGE:
        return env.numbers.counter(cast(int, value), source)
    return wrap_values.wrap(env, value, source)


def _next_of_enumerate(env: Environment, iterator: object) -> tuple[object, object]:
    inner = _part(env, iterator, "inner")
    source = env.sources[id(iterator)].child("part", "index")
    first = cast(int, env.numbers.counter(cast(int, PARTS["index"](iterator)), source))
    value = _take(env, inner)
    taken = env.taken.get(id(iterator), 0)
    env.taken[id(iterator)] = taken + 1
    return first + taken if taken else first, value


def _next_of_zip(env: Environment, iterator: object) -> tuple[object, ...]:
    inner = cast("tuple[object, ...]", _part(env, iterator, "inner"))
    strict = _part(env, iterator, "strict")
    values: list[object] = []
    for one in inner:
        try:
            values.append(_take(env, one))
        except StopIteration:
            if strict and (values or not all(_has_ended(env, other) for other in inner[1:])):
                raise _refused(iterator) from None
            raise
    if not inner:
        raise StopIteration
    return tuple(values)


def _has_ended(env: Environment, iterator: object) -> bool:
    try:
        _take(env, iterator)
    except StopIteration:
        return True
    return False
