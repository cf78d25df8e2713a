"""The overlay: what the trace writes to environment objects, kept beside them, so that no other thread ever sees it.

For each outside container that the trace may change there is a copy; the machine reads and writes the copy. An instance
dictionary is such a container, so an attribute of an instance that the trace stored is in the copy of its dictionary. Of
slots and cells, and of classes and modules (which are too large to copy), what was written is kept name by name. What always
holds: the environment object itself is as the other threads left it.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    MISSING,
    C,
    CellType,
    Container,
    cell_value,
    instance_dict,
    items_of,
)
from smelt.capture.environment.source_index import Sources

T = TypeVar("T")


def of_same_class(container: C, items: list[object]) -> C:
    """A container like this one, attributes included, that holds `items` (pairs of a dictionary); no code of its class
    runs."""
    new = cast("Callable[[type], C]", next(b for b in _MAKERS if isinstance(container, b)).__new__)
    made = new(type(container))
    if isinstance(container, collections.deque):
        collections.deque.__init__(cast("collections.deque[object]", made), (), container.maxlen)
    elif isinstance(container, collections.defaultdict):
        factory = container.default_factory
        collections.defaultdict.__init__(cast("collections.defaultdict[object, object]", made), factory)
    _fill(made, items)
    (instance_dict(made) or {}).update(instance_dict(container) or {})
    return made


def _copied(container: C) -> C:
    """Another container with the same contents; the places in the table of a set decide the order of its elements."""
    own_order = isinstance(container, dict) and type(container).__iter__ is not dict.__iter__
    if own_order or not isinstance(container, (dict, set)):
        return of_same_class(container, items_of(container))
    made = of_same_class(container, [])
    if isinstance(container, set):
        _native.copy_set(cast("set[object]", made), container)
    else:
        dict.update(cast("dict[object, object]", made), dict.copy(container))  # asks no key for its hash
    return made


_MAKERS = (collections.OrderedDict, collections.defaultdict, *CONTAINER_BASES)


def _fill(made: Container, items: list[Any]) -> None:
    if isinstance(made, collections.OrderedDict):
        for key, value in items:
            collections.OrderedDict.__setitem__(made, key, value)
    elif isinstance(made, dict):
        dict.update(made, items)
    elif isinstance(made, list):
        list.extend(made, items)
    elif isinstance(made, set):
        set.update(made, items)
    else:
        collections.deque.extend(made, items)


def read_slot(obj: object, name: str) -> object:
    """The slot `name` of an instance, without its class's code; MISSING where it is empty."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return MISSING


def is_slot(found: object) -> bool:
    """Whether a descriptor is a slot that a class written in Python has declared in `__slots__`."""
    return type(found) is types.MemberDescriptorType and _native.made_by_python(found.__objclass__)


class Overlay:
    """What the machine finds in place of what environment objects hold."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._copies: dict[int, Container] = {}  # by id of an outside container
        self._outside: dict[int, Container] = {}  # by id of a copy: the container that it stands for
        self._slots: dict[tuple[int, str], object] = {}  # by id of the instance and name
        self._cells: dict[int, object] = {}
        self._names: dict[tuple[int, str], object] = {}  # by id of a class or namespace and name

    # ---- containers

    def copy(self, container: C) -> C:
        """The copy in which the machine reads and writes `container` from now on."""
        found = self._copies.get(id(container))
        if found is None:
            found = self._copies[id(container)] = _copied(container)
            self._outside[id(found)] = container
            self.note_source(container)
        return cast(C, found)

    def note_source(self, container: Container) -> None:
        """Where `container` was found, its copy was: native code may have put that into other objects."""
        found, source = self._copies.get(id(container)), self._sources.get(id(container))
        if found is not None and source is not None:
            self._sources.copied[id(found)] = source

    def now(self, value: T) -> T:
        """Where the machine finds the contents of a container: its copy, or itself. Of any other value: itself."""
        return cast(T, self._copies.get(id(value), value))

    def original(self, value: object) -> object:
        """The outside container of which `value` is the copy; any other value itself."""
        return self._outside.get(id(value), value)

    def own(self, obj: object) -> dict[str, object] | None:
        """The attributes of an instance as the trace sees them; None if it has no dictionary."""
        own = instance_dict(obj)
        return None if own is None else self.now(own)

    def replace_own(self, obj: object, made: dict[str, object]) -> None:
        """`obj.__dict__ = made`, of a dictionary that the trace made."""
        own = instance_dict(obj)
        assert own is not None
        self._copies[id(own)] = made

    # ---- slots, cells, names

    def slot(self, obj: object, name: str) -> object:
        """The slot `name` of an instance; MISSING where it is empty."""
        key = (id(obj), name)
        return self._slots[key] if key in self._slots else read_slot(obj, name)

    def set_slot(self, obj: object, name: str, value: object) -> None:
        """Stores in a slot; MISSING empties it."""
        self._slots[id(obj), name] = value

    def cell(self, cell: CellType) -> object:
        """The contents of a cell; MISSING if it is empty."""
        return self._cells[id(cell)] if id(cell) in self._cells else cell_value(cell)

    def set_cell(self, cell: CellType, value: object) -> None:
        """Stores in an outside cell; MISSING empties it."""
        self._cells[id(cell)] = value

    def name(self, owner: dict[str, object] | type, name: str) -> object:
        """What a class, in itself, or the namespace of a module has under `name`; MISSING if nothing."""
        key = (id(owner), name)
        if key in self._names:
            return self._names[key]
        return (owner.__dict__ if isinstance(owner, type) else owner).get(name, MISSING)

    def set_name(self, owner: dict[str, object] | type, name: str, value: object) -> None:
        """Stores in a class or the namespace of a module; MISSING deletes."""
        self._names[id(owner), name] = value

    def names(self, owner: type) -> dict[str, object]:
        """All that a class has in itself."""
        written = {name: value for (key, name), value in self._names.items() if key == id(owner)}
        return {k: v for k, v in {**owner.__dict__, **written}.items() if v is not MISSING}
