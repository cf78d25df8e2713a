"""What an entry does not keep alive: what the program made and dropped is gone when it is gone in eager.

A guard on which object an argument leads to (`id`), or on its class (`type`), holds only while that object lives: a call
that it accepts has brought the object along. So the entry holds it weakly, and all that it keeps alive, too; once gone,
the entry answers no call. What a module holds under its name stays anyway.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smelt._native import isinstance
from smelt.guards.guard import Guard
from smelt.guards.source import Source
from smelt.guards.weak_identity import Weakly, weakly


@dataclass(frozen=True)
class Lifetimes:
    """What each call that the guards of an entry accept keeps alive.

    `brought`: objects that the call brings, by id, and where it has them. `kept`: what the guards may know by identity:
    these objects, with classes, their bases and their functions.
    """

    brought: Mapping[int, Source]
    kept: tuple[object, ...]


def lifetimes_of(guards: Iterable[Guard]) -> Lifetimes:
    """What calls keep alive that `guards` accept."""
    places: dict[int, Source] = {}
    kept: dict[int, object] = {}
    for guard in guards:
        if guard.kind not in ("id", "type") or guard.source is None:
            continue
        root, value = guard.source.root, guard.value
        is_there = root.kind == "arg" or (root.kind == "const" and id(root.known) in kept)
        if is_there and id(value) not in places and type(weakly(value)) is Weakly and not stays(value):
            places[id(value)] = guard.source if guard.kind == "id" else guard.source.child("type", None)
            _keep(value, kept)
    return Lifetimes(places, tuple(kept.values()))


def _keep(x: object, kept: dict[int, object]) -> None:
    """Adds `x` and what it keeps alive to `kept`."""
    pending = [x]
    while pending:
        x = pending.pop()
        if id(x) not in kept and not stays(x):
            kept[id(x)] = x
            pending += _kept_by(x)


def _kept_by(x: object) -> Iterator[object]:
    """What `x` keeps alive that guards may know by identity."""
    yield type(x)
    if isinstance(x, type):
        yield from x.__mro__
        for value in vars(x).values():
            yield from _functions(value)


def _functions(attribute: object) -> Iterator[types.FunctionType]:
    """The functions of an attribute of a class."""
    parts = (attribute, *(getattr(attribute, name, None) for name in _PARTS.get(type(attribute), ())))
    return (part for part in parts if type(part) is types.FunctionType)


_PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}


def stays(x: object) -> bool:
    """Whether `x` is a module, or what its module holds by its name."""
    own = type.__getattribute__ if isinstance(x, type) else object.__getattribute__
    try:
        found: object = sys.modules[own(x, "__module__")]  # type: ignore[arg-type]
        for name in own(x, "__qualname__").split("."):  # type: ignore[arg-type]
            found = vars(found)[name]
    except (AttributeError, KeyError, TypeError):
        return False
    return found is x
