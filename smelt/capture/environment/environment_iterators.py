"""Iterators of the environment: capture reads their next items ahead, guarded, and the compiled frame advances them.

The item of an iterator over a list, a dictionary, a tuple, a range or a text is read from what it iterates over. An
enumerate and a zip advance their inner iterators, so that an iterator which is advanced in two ways has one state.
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


def can_advance(env: Environment, iterator: object) -> bool:
    """Whether `iterator` belongs to the environment and `next_item` supports its kind."""
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
    """`next(iterator)` of an iterator of the environment. Raises StopIteration, and Unsupported for an unsupported kind."""
    if not can_advance(env, iterator):
        raise _refused(iterator)
    try:
        value = _next(env, iterator)
    except StopIteration:
        env.log.record_advance(iterator)
        raise
    env.log.record_advance(iterator)
    return value


def _refused(iterator: object) -> Unsupported:
    return Unsupported(
        Reason(UNSUPPORTED_OBJECT, f"an environment {type(iterator).__qualname__} is advanced")
    )


def _next(env: Environment, iterator: object) -> object:
    env.log.mark_advanced(iterator)
    if type(iterator) is enumerate:
        return _next_of_enumerate(env, iterator)
    return _next_of_zip(env, iterator) if type(iterator) is zip else _next_of_walk(env, iterator)


def _part(env: Environment, iterator: object, name: Part) -> object:
    source = env.sources[id(iterator)].child("part", name)
    return wrap_values.wrap(env, PARTS[name](iterator), source)


def _next_of_walk(env: Environment, iterator: object) -> object:
    source = env.sources[id(iterator)]
    consumed, left = env.consumed.get(id(iterator), 0), items_left(iterator)
    changed = type(iterator) in OVER_CHANGING and _part(env, iterator, "over") in env.log
    if changed or consumed >= MOST:
        raise _refused(iterator)
    if consumed == left:
        env.facts.guard("eq", source.child("part", "left"), left)
        raise StopIteration
    env.consumed[id(iterator)] = consumed + 1
    value, source = item_ahead(iterator, consumed), source.child("ahead", consumed)
    if type(iterator) is RANGE:
        return env.numbers.counter(cast(int, value), source)
    return wrap_values.wrap(env, value, source)


def _next_of_enumerate(env: Environment, iterator: object) -> tuple[object, object]:
    inner = _part(env, iterator, "inner")
    source = env.sources[id(iterator)].child("part", "index")
    first = cast(int, env.numbers.counter(cast(int, PARTS["index"](iterator)), source))
    value = _next(env, inner)
    consumed = env.consumed.get(id(iterator), 0)
    env.consumed[id(iterator)] = consumed + 1
    return first + consumed if consumed else first, value


def _next_of_zip(env: Environment, iterator: object) -> tuple[object, ...]:
    inner = cast("tuple[object, ...]", _part(env, iterator, "inner"))
    strict = _part(env, iterator, "strict")
    values: list[object] = []
    for one in inner:
        try:
            values.append(_next(env, one))
        except StopIteration:
            if strict and (values or not all(_has_ended(env, other) for other in inner[1:])):
                raise _refused(iterator) from None
            raise
    if not inner:
        raise StopIteration
    return tuple(values)


def _has_ended(env: Environment, iterator: object) -> bool:
    try:
        _next(env, iterator)
    except StopIteration:
        return True
    return False
