"""Which numbers changed between two calls: the next capture makes them symbolic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from smelt.guards.accessors import Missing, Reader
from smelt.guards.evaluate import same_leaf
from smelt.guards.guard import Guard
from smelt.guards.origin import Origin


def changed_numbers(guards: Iterable[Guard], slots: Sequence[object]) -> set[tuple[object, ...]]:
    """Paths of the origins that must hold a certain int or float, but hold another one of the same type."""
    read = Reader(slots)
    found = set()
    for guard in guards:
        if guard.kind == "eq" and type(guard.value) in (int, float, tuple) and guard.origin is not None:
            try:
                now = read(guard.origin)
            except Missing:
                continue
            found |= _changed(guard.origin, guard.value, now)
    return found


def _changed(origin: Origin, then: Any, now: Any) -> set[tuple[object, ...]]:
    if type(now) is not type(then):
        return set()
    if type(then) is tuple and len(then) == len(now):
        return {p for i, (a, b) in enumerate(zip(then, now)) for p in _changed(origin.child("item", i), a, b)}
    return {origin.path} if type(then) in (int, float) and not same_leaf(then, now) else set()
