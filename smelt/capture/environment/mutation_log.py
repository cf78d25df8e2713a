"""The change log: which environment objects the trace has changed, and how.

`MutationLog.touch` takes a snapshot before the first change of an object. The change itself goes to the overlay
(`overlay.py`), so that no other thread sees it. When capture ends, `effects` compares snapshots with the overlay: the
differences are what the compiled frame replays.

Two things are changed for real, and put back by `roll_back` on every path out of capture: the class of an object, and what
torch's context managers store in themselves. Neither holds a fake.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from smelt._native import isinstance
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    MISSING,
    CellType,
    Container,
    instance_dict,
    is_lookup_key,
    is_same_key,
    is_special_name,
    items_of,
)
from smelt.capture.environment.overlay import Overlay, is_slot
from smelt.capture.environment.python_random import Draw
from smelt.capture.environment.side_effects import (
    Advance,
    Call,
    Change,
    Count,
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
    own: dict[str, Any] | None  # the instance dictionary itself
    attributes: dict[str, Any] | None  # what it held
    slots: dict[str, Any]
    contents: list[Any] | None  # of containers
    changes_itself: bool = False  # native code changes the object, for real


@dataclass(frozen=True)
class Gone:
    """What is not there any more at the end of a trace that deleted it."""

    owner: object
    kind: str  # "attribute" (in the owner's dictionary), "slot", or "key" of a dictionary
    name: object
    was_there: bool  # before the trace


def slot_names(cls: type) -> Iterator[str]:
    """The names of `__slots__` of a class and its bases. Those of C classes are left out, and those by which the class finds
    another attribute, which may run code."""
    seen: set[str] = set()
    for base in cls.__mro__:
        for name, found in base.__dict__.items():
            if name not in seen and is_slot(found) and not is_special_name(name):
                yield name
        seen.update(base.__dict__)


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _same_pairs(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(k is l and v is w for (k, v), (l, w) in zip(a, b))


class MutationLog:
    """Snapshots of every environment object that was changed, by identity, in order of first change."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._snapshots: dict[int, _Snapshot] = {}
        # by id of a class or namespace and name: the owner, and what it had
        self._named: dict[tuple[int, str], tuple[dict[str, object] | type, object]] = {}
        self._cells: dict[int, CellType] = {}
        self._globals: dict[
            tuple[int, str], object
        ] = {}  # by id of the namespace and name: what is there now
        self._tensors: dict[tuple[int, str], SetAttr] = {}  # attributes set on tensors from outside
        # By id of an object: names and keys that were stored. What is there again may be another value at the next call.
        self._stored: dict[int, set[object]] = {}
        # by id of a set: how it was changed; None where a change is not known
        self._changes: dict[int, list[Change] | None] = {}
        self._advances: list[Advance] = []  # in program order
        self._advanced: set[int] = set()  # ids of the iterators, and of those inside of them
        self.calls: list[Call] = []  # in program order
        self.draws: list[Draw] = []  # likewise
        self.closed = ""  # why nothing may change

    def __contains__(self, obj: object) -> bool:
        return id(obj) in self._snapshots or id(obj) in self._advanced

    @property
    def empty(self) -> bool:
        """Whether the trace has changed nothing and deferred nothing that a function could see."""
        return not self.changed and all(type(call) is Count for call in self.calls)

    @property
    def changed(self) -> int:
        """How many changes there are: objects, names, iterators that were advanced; each random number counts, since it
        changes its generator."""
        written = len(self._snapshots) + len(self._named) + len(self._cells) + len(self._tensors)
        return written + len(self.draws) + sum(a.count for a in self._advances)

    # ---- before a change

    def _check_open(self) -> None:
        if self.closed:
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, self.closed))

    def touch(self, obj: object) -> bool:
        """Takes the snapshot of `obj`, which the overlay stands for from now on; False if there is one already."""
        self._check_open()
        if id(obj) in self._snapshots:
            return False
        own = instance_dict(obj)
        self._snapshots[id(obj)] = _Snapshot(
            obj,
            type(obj),
            own,
            None if own is None else dict(self._overlay.copy(own)),
            {n: self._overlay.slot(obj, n) for n in slot_names(type(obj))},
            items_of(self._overlay.copy(obj)) if isinstance(obj, CONTAINER_BASES) else None,
        )
        return True

    def change(self, obj: set[object], method: str, args: tuple[object, ...]) -> None:
        """`set.method(obj, *args)` was called of an outside set, and has returned."""
        made = self._changes.setdefault(id(obj), [])
        if made is not None:
            made.append(Change(obj, method, args))

    def record_unknown_change(self, obj: set[object]) -> None:
        """An outside set was changed in another way."""
        self._changes[id(obj)] = None

    def touch_native(self, obj: object) -> None:
        """Native code is about to change the attributes of `obj` for real. Raises Unsupported if it would not see what the
        trace has stored there."""
        self._check_open()
        snapshot = self._snapshots.get(id(obj))
        if snapshot is not None:
            if not snapshot.changes_itself:
                raise Unsupported(
                    Reason(
                        UNSUPPORTED_EFFECT, f"native code reads a {type(obj).__qualname__} that was changed"
                    )
                )
            return
        own = instance_dict(obj)
        before = None if own is None else dict(own)
        self._snapshots[id(obj)] = _Snapshot(obj, type(obj), own, before, {}, None, True)

    def is_overlaid(self, obj: object) -> bool:
        """Whether the trace has stored attributes of `obj` that native code would not see."""
        snapshot = self._snapshots.get(id(obj))
        return snapshot is not None and not snapshot.changes_itself and snapshot.contents is None

    def store(self, obj: object, key: object, is_attribute: bool) -> None:
        """`obj.key` or `obj[key]` is about to be stored."""
        if id(obj) in self._snapshots:
            self._stored.setdefault(id(obj), set()).add(key)
            own = instance_dict(obj) if is_attribute else None
            if own is not None:
                self._stored.setdefault(id(own), set()).add(key)

    def has_stores(self, obj: object) -> bool:
        """Whether the trace has stored something in `obj`."""
        return id(obj) in self._stored

    def was_stored(self, obj: object, key: object) -> bool:
        """Whether the trace stored what is now at `obj.key` or `obj[key]`, though it may be what was there before."""
        stored = self._stored.get(id(obj))
        return stored is not None and is_lookup_key(key) and key in stored

    def touch_instance_dict(self, obj: object, own: dict[str, object]) -> None:
        """`own` is the instance dictionary of `obj`, met only now: if `obj` has changed, so has `own`."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is not None and snapshot.attributes is not None:
            before = list(snapshot.attributes.items())
            self._snapshots.setdefault(id(own), _Snapshot(own, dict, None, None, {}, before))

    def set_name(self, owner: dict[str, object] | type, name: str, value: object) -> None:
        """One name of a class or of a module's globals (whose others may change on other threads); MISSING deletes it."""
        self._check_open()
        self._named.setdefault((id(owner), name), (owner, self._overlay.name(owner, name)))
        self._overlay.set_name(owner, name, value)

    def set_cell(self, cell: CellType, value: object) -> None:
        """The contents of an outside cell change; MISSING empties it."""
        self._check_open()
        self._cells[id(cell)] = cell
        self._overlay.set_cell(cell, value)

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

    def draw(self, drawn: Draw) -> None:
        """`drawn` is drawn by the compiled frame, before the graph runs."""
        self._check_open()
        self.draws.append(drawn)

    def advance(self, iterator: object) -> None:
        """The program has asked an outside iterator, which is left alone, for its next item."""
        self._check_open()
        last = self._advances.pop() if self._advances and self._advances[-1].target is iterator else None
        self._advances.append(Advance(iterator, 1 + (last.count if last else 0)))

    def note_advanced(self, iterator: object) -> None:
        """An outside iterator is not where it was: it, or one that it is inside of, was advanced."""
        self._advanced.add(id(iterator))

    def touches(self, owner: object, name: str) -> bool:
        """Whether the trace has written the name of a class or of a module's globals."""
        return (id(owner), name) in self._named

    def touches_cell(self, cell: CellType) -> bool:
        """Whether the trace has written the cell."""
        return id(cell) in self._cells

    @property
    def changes_cells(self) -> bool:
        """Whether the trace has written any cell."""
        return bool(self._cells)

    def names_before(self, owner: object) -> Iterator[tuple[str, object]]:
        """The attributes of `owner` that changed, each with its value before; MISSING where there was none."""
        return ((name, old) for (key, name), (_, old) in self._named.items() if key == id(owner))

    def touches_any(self, owner: object) -> bool:
        """Whether a name of `owner` was changed."""
        return any(key == id(owner) for key, _ in self._named)

    # ---- what was there before

    def is_original(self, obj: object, key: object, value: object) -> bool:
        """Whether `value`, now found at `obj[key]` or `obj.key`, was there before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None or snapshot.contents is None:
            return self.is_original_attribute(obj, cast(str, key), value)
        if self.was_stored(obj, key):
            return False
        if isinstance(obj, dict):
            return any(v is value and is_same_key(k, key) for k, v in snapshot.contents)
        return type(key) is int and 0 <= key < len(snapshot.contents) and snapshot.contents[key] is value

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

    def length(self, container: Container) -> int:
        """How many elements it had before capture."""
        snapshot = self._snapshots.get(id(container))
        if snapshot is not None and snapshot.contents is not None:
            return len(snapshot.contents)
        base = cast("type[list[object]]", next(b for b in CONTAINER_BASES if isinstance(container, b)))
        return base.__len__(container)  # type: ignore[arg-type]

    # ---- at the end

    def effects(self) -> tuple[Effect, ...]:
        """The deferred calls (what they use was not changed before), then what is different now: call before `roll_back`."""
        found: list[Effect] = []
        # a dictionary that was changed through vars() too: the instance reports it
        seen = {id(s.own) for s in self._snapshots.values() if id(s.own) in self._snapshots}
        for snapshot in self._snapshots.values():
            if id(snapshot.obj) not in seen:
                key = id(snapshot.obj)
                found += _differences(
                    self._overlay, snapshot, self._stored.get(key, set()), self._changes.get(key)
                )
        for (_, name), (owner, old) in self._named.items():
            found += _named_difference(owner, name, old, self._overlay.name(owner, name))
        for cell in self._cells.values():
            found.append(SetCell(cell, self._overlay.cell(cell)))
        return (*self.calls, *self._advances, *found, *self._tensors.values())

    def gone(self) -> Iterator[Gone]:
        """What the trace has deleted, at the end: which of it was there before decides what is left to delete."""
        for snapshot in self._snapshots.values():
            obj, own = snapshot.obj, snapshot.own
            stored = self._stored.get(id(obj), set())
            if own is not None and snapshot.attributes is not None:
                names = snapshot.attributes.keys() | self._stored.get(id(own), set())
                yield from _gone(obj, "attribute", names, snapshot.attributes, self._overlay.now(own))
            filled = {n for n, v in snapshot.slots.items() if v is not MISSING}
            still = {n for n in snapshot.slots if self._overlay.slot(obj, n) is not MISSING}
            yield from _gone(obj, "slot", filled | (stored & snapshot.slots.keys()), filled, still)
            if isinstance(obj, dict) and snapshot.contents is not None:
                before = {key for key, _ in snapshot.contents if is_lookup_key(key)}
                now = {key for key in self._overlay.now(obj) if is_lookup_key(key)}
                yield from _gone(obj, "key", stored, before, now)
        for (_, name), (owner, old) in self._named.items():
            if self._overlay.name(owner, name) is MISSING:
                kind = "attribute" if isinstance(owner, type) else "key"
                yield Gone(owner, kind, name, old is not MISSING)

    def roll_back(self) -> None:
        """Puts back what was changed for real. Runs no code of the user."""
        for snapshot in reversed(self._snapshots.values()):
            _restore(snapshot)


def _gone(
    obj: object, kind: str, names: Iterable[object], before: Collection[object], now: Collection[object]
) -> Iterator[Gone]:
    for name in sorted((name for name in names if name not in now), key=repr):
        yield Gone(obj, kind, name, name in before)


def _restore(snapshot: _Snapshot) -> None:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        object.__setattr__(obj, "__class__", snapshot.cls)
    if snapshot.changes_itself and snapshot.attributes is not None:
        own = instance_dict(obj)
        if own is not None and not _same_pairs(list(own.items()), list(snapshot.attributes.items())):
            own.clear()
            own.update(snapshot.attributes)


def _differences(
    overlay: Overlay, snapshot: _Snapshot, stored: set[object], changes: list[Change] | None
) -> Iterator[Effect]:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        yield SetAttr(obj, "__class__", type(obj))
    if snapshot.attributes is not None:
        now = overlay.now(snapshot.own) if snapshot.own is not None else {}
        yield from _attribute_differences(obj, snapshot.attributes, now, stored)
    slots = {n: overlay.slot(obj, n) for n in snapshot.slots}
    before = {n: v for n, v in snapshot.slots.items() if v is not MISSING}
    after = {n: v for n, v in slots.items() if v is not MISSING}
    yield from _attribute_differences(obj, before, after, stored)
    if changes is not None:
        yield from _joined(changes)
    elif snapshot.contents is not None:
        yield from _content_differences(obj, snapshot.contents, items_of(overlay.now(obj)), stored)


def _joined(changes: list[Change]) -> Iterator[Change]:
    """The changes of a set, those that add one element after the other as one."""
    for method, run in itertools.groupby(changes, lambda change: change.method):
        if method != "add":
            yield from run
            continue
        added = list(run)
        yield Change(added[0].target, "update", (tuple(change.args[0] for change in added),))


def _attribute_differences(
    obj: object, before: dict[str, object], now: dict[str, object], stored: set[object]
) -> Iterator[Effect]:
    for name, value in _changes(list(before.items()), list(now.items()), stored):
        yield DelAttr(obj, name) if value is MISSING else SetAttr(obj, name, value)


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
    for key, value in _changes(before, now, stored):
        yield DelItem(obj, key) if value is MISSING else SetItem(obj, key, value)


def _changes(
    before: list[tuple[Any, object]], now: list[tuple[Any, object]], stored: set[object]
) -> Iterator[tuple[Any, object]]:
    """What makes the pairs of a dictionary what they are now: first keys to delete (with MISSING), since they are not where
    they were, in order, then what to set."""
    kept = 0
    places = iter(before)
    stay: dict[int, tuple[object]] = {}
    for key, _ in now:
        if not any(k is key and stay.setdefault(id(k), (v,)) for k, v in places):
            break
        kept += 1
    for key, _ in before:
        if id(key) not in stay:
            yield key, MISSING
    for i, (key, value) in enumerate(now):
        if i >= kept or stay[id(key)][0] is not value or (is_lookup_key(key) and key in stored):
            yield key, value


def _named_difference(
    owner: dict[str, object] | type, name: str, old: object, now: object
) -> Iterator[Effect]:
    in_module = isinstance(owner, dict)
    if now is not MISSING:
        yield SetItem(owner, name, now) if in_module else SetAttr(owner, name, now)
    elif old is not MISSING:
        yield DelItem(owner, name) if in_module else DelAttr(owner, name)
