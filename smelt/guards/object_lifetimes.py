"""The guarded objects that an entry references weakly, so that they are destroyed when they are in eager.

A guard on the identity (`id`) or the class (`type`) of an object that an argument leads to can hold only while the object
lives, and the caller of each accepted call references the object. So the entry has weak references to the object and to
everything that the object keeps alive. Once the object is destroyed, the entry accepts no call. An object that its module
holds by name lives anyway and has strong references.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smelt._native import isinstance
from smelt.guards.class_facts import DESCRIPTOR_PARTS
from smelt.guards.guard import Guard
from smelt.guards.named_objects import stays
from smelt.guards.source import Source
from smelt.guards.weak_identity import WeakIdentity, weak


@dataclass(frozen=True)
class Lifetimes:
    """The objects that each call keeps alive if the guards of an entry accept it.

    `sources`: the sources of the objects that the call references, by id. `objects`: these objects with their classes, bases
    and functions, as far as guards may compare their identity.
    """

    sources: Mapping[int, Source]
    objects: tuple[object, ...]


def lifetimes_of(guards: Iterable[Guard]) -> Lifetimes:
    """The objects that calls keep alive which `guards` accept."""
    sources: dict[int, Source] = {}
    objects: dict[int, object] = {}
    for guard in guards:
        if not guard.kind.is_identity or guard.source is None:
            continue
        root, value = guard.source.root, guard.value
        from_call = root.kind == "arg" or (root.kind == "const" and id(root.known) in objects)
        if from_call and id(value) not in sources and type(weak(value)) is WeakIdentity and not stays(value):
            sources[id(value)] = guard.kind.value_source(guard.source)
            _add_reachable(value, objects)
    return Lifetimes(sources, tuple(objects.values()))


def _add_reachable(x: object, objects: dict[int, object]) -> None:
    """Add `x` and the objects that it keeps alive to `objects`."""
    pending = [x]
    while pending:
        x = pending.pop()
        if id(x) not in objects and not stays(x):
            objects[id(x)] = x
            pending += _references(x)


def _references(x: object) -> Iterator[object]:
    """The objects that `x` keeps alive and guards may compare by identity."""
    yield type(x)
    if isinstance(x, type):
        yield from x.__mro__
        for value in vars(x).values():
            yield from _functions(value)


def _functions(attribute: object) -> Iterator[types.FunctionType]:
    """The functions of an attribute of a class."""
    parts = (
        attribute,
        *(getattr(attribute, name, None) for name in DESCRIPTOR_PARTS.get(type(attribute), ())),
    )
    return (part for part in parts if type(part) is types.FunctionType)
