"""The overlay: the trace's writes to environment objects, stored apart from them, so that no other thread sees them.

Each container that the trace may change has a copy, which the VM reads and writes. An instance dictionary is such a
container, so the copy of its dictionary holds the attributes that the trace stored. For slots and cells, and for classes and
modules (which are too large to copy), the overlay holds each written name.

Invariant: the trace never changes the environment object itself.
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
    """A container of the same class and attributes that holds `items` (pairs for a dictionary). Calls no method of it."""
    new = cast("Callable[[type], C]", next(b for b in _CONSTRUCTIBLE if isinstance(container, b)).__new__)
    result = new(type(container))
    if isinstance(container, collections.deque):
        collections.deque.__init__(cast("collections.deque[object]", result), (), container.maxlen)
    elif isinstance(container, collections.defaultdict):
        factory = container.default_factory
        collections.defaultdict.__init__(cast("collections.defaultdict[object, object]", result), factory)
    _fill(result, items)
    (instance_dict(result) or {}).update(instance_dict(container) or {})
    return result


def _copied(container: C) -> C:
    """A copy of a container. The copy of a set has the same hash table, which decides the order of its elements."""
    overrides_order = isinstance(container, dict) and type(container).__iter__ is not dict.__iter__
    if overrides_order or not isinstance(container, (dict, set)):
        return of_same_class(container, items_of(container))
    copy = of_same_class(container, [])
    if isinstance(container, set):
        _native.copy_set(cast("set[object]", copy), container)
    else:
        dict.update(cast("dict[object, object]", copy), dict.copy(container))  # calls no `__hash__` of a key
    return copy


_CONSTRUCTIBLE = (collections.OrderedDict, collections.defaultdict, *CONTAINER_BASES)


def _fill(container: Container, items: list[Any]) -> None:
    if isinstance(container, collections.OrderedDict):
        for key, value in items:
            collections.OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.update(container, items)
    elif isinstance(container, list):
        list.extend(container, items)
    elif isinstance(container, set):
        set.update(container, items)
    else:
        collections.deque.extend(container, items)


def read_slot(obj: object, name: str) -> object:
    """The slot `name` of an instance, read without code of its class; MISSING if it is empty."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return MISSING


def is_slot(descriptor: object) -> bool:
    """Whether a descriptor is a slot that a class written in Python declares in `__slots__`."""
    return type(descriptor) is types.MemberDescriptorType and _native.made_by_python(descriptor.__objclass__)


class Overlay:
    """The contents of environment objects as the trace sees them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._copies: dict[int, Container] = {}  # by id of an environment container
        self._originals: dict[int, Container] = {}  # by id of a copy: the environment container
        self._slots: dict[tuple[int, str], object] = {}  # by id of the instance and name
        self._cells: dict[int, object] = {}
        self._names: dict[tuple[int, str], object] = {}  # by id of a class or namespace and name

    # ---- containers

    def copy(self, container: C) -> C:
        """The copy that the VM reads and writes instead of `container` from now on."""
        copy = self._copies.get(id(container))
        if copy is None:
            copy = self._copies[id(container)] = _copied(container)
            self._originals[id(copy)] = container
            self.register_copy_source(container)
        return cast(C, copy)

    def register_copy_source(self, container: Container) -> None:
        """Register the source of `container` for its copy, which native code may store in other objects."""
        copy, source = self._copies.get(id(container)), self._sources.get(id(container))
        if copy is not None and source is not None:
            self._sources.copies[id(copy)] = source

    def now(self, value: T) -> T:
        """The copy of a container that has one; any other value itself."""
        return cast(T, self._copies.get(id(value), value))

    def original(self, value: object) -> object:
        """The environment container whose copy `value` is; any other value itself."""
        return self._originals.get(id(value), value)

    def instance_dict(self, obj: object) -> dict[str, object] | None:
        """The attributes of an instance as the trace sees them; None if it has no dictionary."""
        attributes = instance_dict(obj)
        return None if attributes is None else self.now(attributes)

    def replace_instance_dict(self, obj: object, attributes: dict[str, object]) -> None:
        """`obj.__dict__ = attributes`, for a dictionary that the trace created."""
        original = instance_dict(obj)
        assert original is not None
        self._copies[id(original)] = attributes

    def contents(self) -> dict[int, tuple[Container, list[object]]]:
        """By id, the containers that have copies, and the items of these."""
        copies = {id(original): (original, copy) for copy, original in self._pairs()}
        return {key: (original, items_of(copy)) for key, (original, copy) in copies.items()}

    def _pairs(self) -> list[tuple[Container, Container]]:
        return [(self._copies[id(original)], original) for original in self._originals.values()]

    def set_contents(self, container: Container, items: list[object]) -> None:
        """Replace the items of the copy of a list or a dictionary."""
        copy = self._copies[id(container)]
        if isinstance(copy, list):
            list.__setitem__(copy, slice(None), items)
        else:
            assert isinstance(copy, dict)
            dict.clear(copy)
            dict.update(copy, cast("list[tuple[object, object]]", items))

    def other_stores(self) -> list[dict[object, object]]:
        """What the trace has stored in slots, cells and names."""
        stores = (self._slots, self._cells, self._names)
        return [dict(cast("dict[object, object]", stored)) for stored in stores]

    # ---- slots, cells, names

    def slot(self, obj: object, name: str) -> object:
        """The slot `name` of an instance; MISSING if it is empty."""
        key = (id(obj), name)
        return self._slots[key] if key in self._slots else read_slot(obj, name)

    def set_slot(self, obj: object, name: str, value: object) -> None:
        """Set a slot; MISSING empties it."""
        self._slots[id(obj), name] = value

    def cell(self, cell: CellType) -> object:
        """The contents of a cell; MISSING if it is empty."""
        return self._cells[id(cell)] if id(cell) in self._cells else cell_value(cell)

    def set_cell(self, cell: CellType, value: object) -> None:
        """Set the contents of a cell of the environment; MISSING empties it."""
        self._cells[id(cell)] = value

    def name(self, owner: dict[str, object] | type, name: str) -> object:
        """The value that a class itself, or the namespace of a module, holds under `name`; MISSING if it has none."""
        key = (id(owner), name)
        if key in self._names:
            return self._names[key]
        return (owner.__dict__ if isinstance(owner, type) else owner).get(name, MISSING)

    def set_name(self, owner: dict[str, object] | type, name: str, value: object) -> None:
        """Set a name of a class or of the namespace of a module; MISSING deletes it."""
        self._names[id(owner), name] = value

    def names(self, owner: type) -> dict[str, object]:
        """The names and values that a class itself holds."""
        written = {name: value for (key, name), value in self._names.items() if key == id(owner)}
        return {k: v for k, v in {**owner.__dict__, **written}.items() if v is not MISSING}
