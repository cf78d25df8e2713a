"""The undo log: outside objects are changed for real while a frame is captured, and put back when capture ends.

`UndoLog.touch` takes a snapshot before the first change of an object. When capture ends, `effects` compares snapshots
with what is there now: the differences are what the compiled frame replays. `roll_back` restores every object exactly,
in place, on every path out of capture.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from smelt.capture.base.values import (
    CONTAINER_BASES,
    HEAP_TYPE_FLAG,
    MISSING,
    CellType,
    Container,
    instance_dict,
    is_lookup_key,
    is_same_key,
    items_of,
)
from smelt.capture.outside.effects import (
    Call,
    DelAttr,
    DelItem,
    Effect,
    Extend,
    ReplaceContents,
    SetAttr,
    SetCell,
    SetItem,
)
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason


@dataclass
class _Snapshot:
    obj: Any
    cls: type
    attributes: dict[str, Any] | None  # the instance dictionary
    slots: dict[str, Any]
    contents: list[Any] | None  # of containers


def slot_names(cls: type) -> Iterator[str]:
    """The names of `__slots__` of a class and its bases, those of C classes left out."""
    for base in cls.__mro__:
        for name, found in base.__dict__.items():
            if (
                type(found) is types.MemberDescriptorType
                and base.__flags__ & HEAP_TYPE_FLAG
                and not _is_dunder(name)
            ):
                yield name


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")  # __dictoffset__ and the like of C classes


def _read_slot(obj: object, name: str) -> object:
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return MISSING


def restore_contents(obj: Container, items: list[Any]) -> None:
    """Makes a container hold `items` again, in order, through the methods of its builtin base."""
    if isinstance(obj, collections.OrderedDict):
        collections.OrderedDict.clear(obj)
        for key, value in items:
            collections.OrderedDict.__setitem__(obj, key, value)
    elif isinstance(obj, dict):
        dict.clear(obj)
        dict.update(obj, items)
    elif isinstance(obj, list):
        list.__setitem__(obj, slice(None), items)
    elif isinstance(obj, set):
        set.clear(obj)
        set.update(obj, items)
    else:
        collections.deque.clear(obj)
        collections.deque.extend(obj, items)


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _same_pairs(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(k is l and v is w for (k, v), (l, w) in zip(a, b))


class UndoLog:
    """Snapshots of every outside object that was changed, by identity, in order of first change."""

    def __init__(self) -> None:
        self._snapshots: dict[int, _Snapshot] = {}
        self._named: dict[
            tuple[int, str], tuple[object, str, object, Callable[..., object], Callable[..., object]]
        ] = {}
        self._cells: dict[int, tuple[CellType, object]] = {}
        self._tensors: dict[tuple[int, str], SetAttr] = {}  # attributes set on tensors from outside
        # By id of an object: names and keys that were stored. What is there again may be another value at the next call.
        self._stored: dict[int, set[object]] = {}
        self.calls: list[Call] = []  # in program order
        self.closed = ""  # why nothing may change

    def __contains__(self, obj: object) -> bool:
        return id(obj) in self._snapshots

    @property
    def empty(self) -> bool:
        """Whether the trace has changed nothing and deferred nothing."""
        return not (self.changed or self.calls)

    @property
    def changed(self) -> int:
        """How many objects have changed."""
        return len(self._snapshots) + len(self._named) + len(self._cells) + len(self._tensors)

    # ---- before a change

    def _check_open(self) -> None:
        if self.closed:
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, self.closed))

    def touch(self, obj: object) -> bool:
        """Takes the snapshot of `obj`; False if there is one already."""
        self._check_open()
        if id(obj) in self._snapshots:
            return False
        own = instance_dict(obj)
        self._snapshots[id(obj)] = _Snapshot(
            obj,
            type(obj),
            None if own is None else dict(own),
            {n: _read_slot(obj, n) for n in slot_names(type(obj))},
            items_of(obj) if isinstance(obj, CONTAINER_BASES) else None,
        )
        return True

    def store(self, obj: object, key: object) -> None:
        """`obj.key` or `obj[key]` is about to be stored."""
        if id(obj) in self._snapshots:
            self._stored.setdefault(id(obj), set()).add(key)
            own = instance_dict(obj)
            if own is not None:
                self._stored.setdefault(id(own), set()).add(key)

    def was_stored(self, obj: object, key: object) -> bool:
        """Whether the trace stored what is now at `obj.key` or `obj[key]`, though it may be what was there before."""
        stored = self._stored.get(id(obj))
        return stored is not None and is_lookup_key(key) and key in stored

    def touch_own(self, obj: object, own: dict[str, object]) -> None:
        """`own` is the instance dictionary of `obj`, met only now: if `obj` has changed, so has `own`."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is not None and snapshot.attributes is not None:
            self._snapshots.setdefault(
                id(own), _Snapshot(own, dict, None, {}, list(snapshot.attributes.items()))
            )

    def touch_global(self, namespace: dict[str, object], name: str) -> None:
        """One name of a module's globals (whose other names may change on other threads)."""
        self._check_open()
        key = (id(namespace), name)
        if key not in self._named:
            old = namespace.get(name, MISSING)
            self._named[key] = (namespace, name, old, dict.__setitem__, dict.__delitem__)

    def touch_attribute(self, owner: object, name: str) -> None:
        """One attribute of a class, module or function."""
        self._check_open()
        key = (id(owner), name)
        if key not in self._named:
            self._named[key] = (owner, name, vars(owner).get(name, MISSING), setattr, delattr)

    def touch_cell(self, cell: CellType) -> None:
        """Before the contents of an outside cell change."""
        self._check_open()
        if id(cell) not in self._cells:
            self._cells[id(cell)] = (cell, cell_value(cell))

    def set_tensor_attribute(self, fake: object, name: str, value: object) -> None:
        """An attribute was set on the fake of an outside tensor; the tensor itself is left alone."""
        self._check_open()
        self._tensors[id(fake), name] = SetAttr(fake, name, value)

    def is_set_on_tensor(self, fake: object, name: str) -> bool:
        """Whether the trace has set this attribute of the tensor."""
        return (id(fake), name) in self._tensors

    def call(self, deferred: Call) -> None:
        """`deferred` is made by the compiled frame, after the graph has run."""
        self._check_open()
        self.calls.append(deferred)

    def touches(self, owner: object, name: str) -> bool:
        """Whether the attribute `name` of a class, module or function has changed."""
        return (id(owner), name) in self._named

    def touches_cell(self, cell: CellType) -> bool:
        """Whether the trace has written the cell."""
        return id(cell) in self._cells

    def names_before(self, owner: object) -> Iterator[tuple[str, object]]:
        """The attributes of `owner` that changed, each with its value before; MISSING where there was none."""
        return ((name, old) for (key, name), (_, _, old, *_) in self._named.items() if key == id(owner))

    def touches_any(self, owner: object) -> bool:
        """Whether a name of `owner` was changed."""
        return any(key == id(owner) for key, _ in self._named)

    # ---- what was there before

    def is_original(self, obj: object, key: object, value: object) -> bool:
        """Whether `value`, now found at `obj[key]` or `obj.key`, was there before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None:
            return True
        if self.was_stored(obj, key):
            return False
        if snapshot.contents is not None:
            if isinstance(obj, dict):
                return any(v is value and (is_same_key(k, key)) for k, v in snapshot.contents)
            return type(key) is int and 0 <= key < len(snapshot.contents) and snapshot.contents[key] is value
        return self.is_original_attribute(obj, cast(str, key), value)

    def is_original_attribute(self, obj: object, name: str, value: object) -> bool:
        """Whether `value`, now found as this attribute, was there before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None:
            return True
        if self.was_stored(obj, name):
            return False
        if snapshot.attributes is not None and name in snapshot.attributes:
            return snapshot.attributes[name] is value
        return snapshot.slots.get(name, MISSING) is value

    def original_entry(self, obj: object, key: object) -> object:
        """The value of a dictionary at `key` before capture; MISSING if there was none."""
        return next((v for k, v in self.contents(obj) if is_same_key(k, key)), MISSING)

    def was_absent(self, obj: object, name: str) -> bool:
        """Whether the instance dictionary of `obj` had no `name` before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None or snapshot.attributes is None:
            return name not in (instance_dict(obj) or ())
        return name not in snapshot.attributes

    def contents(self, obj: object) -> list[Any]:
        """Contents of a container before capture."""
        snapshot = self._snapshots.get(id(obj))
        return items_of(obj) if snapshot is None or snapshot.contents is None else snapshot.contents

    # ---- at the end

    def effects(self) -> tuple[Effect, ...]:
        """The deferred calls (what they use was not changed before), then what is different now: call before `roll_back`."""
        found: list[Effect] = []
        seen: set[int] = set()
        for snapshot in self._snapshots.values():
            own = instance_dict(snapshot.obj)
            if own is not None and id(own) in self._snapshots:
                seen.add(id(own))  # changed through vars(): the instance reports it
        for snapshot in self._snapshots.values():
            if id(snapshot.obj) not in seen:
                found += _differences(snapshot, self._stored.get(id(snapshot.obj), set()))
        for owner, name, old, _, _ in self._named.values():
            found += _named_difference(owner, name, old)
        for cell, old in self._cells.values():
            if cell_value(cell) is not MISSING or old is not MISSING:
                found.append(SetCell(cell, cell_value(cell)))
        return (*self.calls, *found, *self._tensors.values())

    def roll_back(self) -> None:
        """Puts every object back as it was when capture began. Runs no code of the user."""
        for cell, old in self._cells.values():
            _set_cell(cell, old)
        for owner, name, old, store, delete in self._named.values():
            now = owner.get(name, MISSING) if isinstance(owner, dict) else vars(owner).get(name, MISSING)
            if old is not MISSING and now is not old:
                store(owner, name, old)
            elif old is MISSING and now is not MISSING:
                delete(owner, name)
        for snapshot in reversed(self._snapshots.values()):
            _restore(snapshot)


def cell_value(cell: CellType) -> object:
    """The contents of a cell; MISSING if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _set_cell(cell: CellType, value: object) -> None:
    if value is not MISSING:
        cell.cell_contents = value
    elif cell_value(cell) is not MISSING:
        del cell.cell_contents


def _restore(snapshot: _Snapshot) -> None:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        object.__setattr__(obj, "__class__", snapshot.cls)
    if snapshot.attributes is not None:
        own = instance_dict(obj)
        if own is not None and not _same_pairs(list(own.items()), list(snapshot.attributes.items())):
            own.clear()
            own.update(snapshot.attributes)
    for name, value in snapshot.slots.items():
        now = _read_slot(obj, name)
        if value is MISSING and now is not MISSING:
            object.__delattr__(obj, name)
        elif now is not value:
            object.__setattr__(obj, name, value)
    if snapshot.contents is not None:
        restore_contents(obj, snapshot.contents)


def _differences(snapshot: _Snapshot, stored: set[object]) -> Iterator[Effect]:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        yield SetAttr(obj, "__class__", type(obj))
    if snapshot.attributes is not None:
        yield from _attribute_differences(obj, snapshot.attributes, instance_dict(obj) or {}, stored)
    now = {n: _read_slot(obj, n) for n in snapshot.slots}
    missing = {n for n, v in now.items() if v is MISSING}
    before = {n: v for n, v in snapshot.slots.items() if v is not MISSING}
    yield from _attribute_differences(obj, before, {n: v for n, v in now.items() if n not in missing}, stored)
    if snapshot.contents is not None:
        yield from _content_differences(obj, snapshot.contents, items_of(obj), stored)


def _attribute_differences(
    obj: object, before: dict[str, object], now: dict[str, object], stored: set[object]
) -> Iterator[Effect]:
    for name in before:
        if name not in now:
            yield DelAttr(obj, name)
    for name, value in now.items():
        if before.get(name, MISSING) is not value or name in stored:
            yield SetAttr(obj, name, value)


def _content_differences(
    obj: object, before: list[Any], now: list[Any], stored: set[object]
) -> Iterator[Effect]:
    """What was appended, set or deleted is replayed alone: the rest of the contents need not be guarded for that."""
    if isinstance(obj, dict):
        if stored or not _same_pairs(before, now):
            yield from _entry_differences(obj, before, now, stored)
    elif isinstance(obj, list) and _same(before, now[: len(before)]):
        if len(now) > len(before):
            yield Extend(obj, tuple(now[len(before) :]))
    elif not _same(before, now):
        yield ReplaceContents(obj, tuple(now))


def _entry_differences(
    obj: object, before: list[Any], now: list[Any], stored: set[object]
) -> Iterator[Effect]:
    """Entries that are not where they were, in order, were deleted; what follows was set."""
    kept = 0
    places = iter(before)
    stay: dict[int, tuple[object]] = {}
    for key, _ in now:
        if not any(k is key and stay.setdefault(id(k), (v,)) for k, v in places):
            break
        kept += 1
    for key, _ in before:
        if id(key) not in stay:
            yield DelItem(obj, key)
    for i, (key, value) in enumerate(now):
        if i >= kept or stay[id(key)][0] is not value or (is_lookup_key(key) and key in stored):
            yield SetItem(obj, key, value)


def _named_difference(owner: object, name: str, old: object) -> Iterator[Effect]:
    if isinstance(owner, dict):
        now = owner.get(name, MISSING)
        if now is MISSING and old is not MISSING:
            yield DelItem(owner, name)
        elif now is not MISSING:
            yield SetItem(owner, name, now)
        return
    now = vars(owner).get(name, MISSING)
    if now is MISSING and old is not MISSING:
        yield DelAttr(owner, name)
    elif now is not MISSING:
        yield SetAttr(owner, name, now)
