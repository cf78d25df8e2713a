"""The mutation log: which environment objects the trace changed, and how.

`MutationLog.touch` takes a snapshot before the first change of an object. The change itself goes to the overlay
(`overlay.py`), so that no other thread sees it. When capture ends, `effects` compares the snapshots with the overlay: the
compiled frame replays the differences.

Two things do change during capture: the class of an object, and the attributes that torch's context managers store in
themselves. `roll_back` restores both on every path out of capture. Neither holds a fake.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.value_kinds import (
    CONTAINER_BASES,
    MISSING,
    CellType,
    Container,
    cell_value,
    instance_dict,
    is_constant,
    is_lookup_key,
    is_same_key,
    is_special_name,
    items_of,
)
from smelt.capture.environment.overlay import Overlay, is_slot
from smelt.capture.environment.python_random import Draw
from smelt.capture.environment.side_effects import (
    Advance,
    CacheHit,
    Call,
    DelAttr,
    DelItem,
    Effect,
    Extend,
    ReplaceContents,
    SetAttr,
    SetCell,
    SetChange,
    SetItem,
)
from smelt.errors import DropsObserved
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.user_lines import Line


@dataclass
class _Snapshot:
    obj: Any
    cls: type
    instance_dict: dict[str, Any] | None  # the dictionary itself
    attributes: dict[str, Any] | None  # its contents
    slots: dict[str, Any]
    contents: list[Any] | None  # of containers
    is_native: bool = False  # native code changes the object itself


@dataclass(frozen=True)
class Deletion:
    """An attribute, slot or key that the trace deleted and that is absent at its end."""

    owner: object
    kind: str  # "attribute" (in the owner's dictionary), "slot", or "key" of a dictionary
    name: object
    existed: bool  # before the trace


@dataclass(frozen=True)
class Overwritten:
    """A place of the environment that the trace stored to or deleted: what it held before and holds now (MISSING: nothing).
    `kind` and `name` are those of a `Deletion`. Other kinds: "item" of a list or deque, "global", "cell", "iterator" for an
    iterator that advanced, "member" for what torch's C++ code has in a tensor, "element" for a key itself or an element of a
    set, and "" for attributes of classes and others that no guard reads."""

    owner: object
    kind: str
    name: object
    before: object
    now: object


def slot_names(cls: type) -> Iterator[str]:
    """The `__slots__` names of a class and its bases, without those of C classes and those that another attribute of the
    class shadows, whose read may run code."""
    seen: set[str] = set()
    for base in cls.__mro__:
        for name, found in base.__dict__.items():
            if name not in seen and is_slot(found) and not is_special_name(name):
                yield name
        seen.update(base.__dict__)


def _flat(container: object, contents: list[object]) -> Iterable[object]:
    pairs = cast("list[tuple[object, object]]", contents)
    return itertools.chain.from_iterable(pairs) if isinstance(container, dict) else contents


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _same_pairs(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(k is l and v is w for (k, v), (l, w) in zip(a, b))


class MutationLog:
    """Snapshots of the changed environment objects, by identity, in order of first change."""

    def __init__(self, overlay: Overlay, current_line: Callable[[], Line | None]) -> None:
        self._overlay, self._current_line = overlay, current_line
        self._lines: dict[int, Line | None] = {}  # by id of the target of a change
        self._snapshots: dict[int, _Snapshot] = {}
        # by id of a class or namespace and name: the owner, and the value before
        self._named: dict[tuple[int, str], tuple[dict[str, object] | type, object]] = {}
        self._cells: dict[int, CellType] = {}
        self._tensors: dict[tuple[int, str], SetAttr] = {}  # attributes set on the environment's tensors
        # by id of an object: the stored names and keys, also if the value is the old one: the next call may store another
        self._stored: dict[int, dict[object, None]] = {}  # in program order, since a deletion
        self._deleted: dict[int, dict[object, None]] = {}  # also those that were stored again
        self._replaced: set[int] = set()  # objects whose `__dict__` was assigned; its old names are guarded
        # by id of a set: its changes, or None after an unknown change
        self._set_changes: dict[int, list[SetChange] | None] = {}
        self._advances: list[Advance] = []  # in program order
        self._advanced: set[int] = set()  # ids of the iterators and of their inner iterators
        self.deferred_calls: list[Call] = []  # in program order
        self.draws: list[Draw] = []  # in program order
        self.writes = 0  # changes, also of what was changed before; not deferred calls and values of a `cached_property`
        self.refusal = ""  # why nothing may change
        self.joins_contents = False  # contents of containers and instances may change nevertheless
        # ids of what attributes, names and cells held when the trace stored to them; what it created must not live longer
        self.replaced: set[int] = set()
        # whether the end of this value has an effect, so that the graph breaks where its holder drops it; None: it does not
        self.refuses: Callable[[object], bool] | None = None

    def __contains__(self, obj: object) -> bool:
        return id(obj) in self._snapshots or id(obj) in self._advanced

    @property
    def empty(self) -> bool:
        """Whether the trace has changed nothing and deferred no call that a function could observe."""
        return not self.changed and not self.defers

    @property
    def defers(self) -> bool:
        """Whether the trace has deferred a call that a function could observe."""
        return any(type(call) is not CacheHit for call in self.deferred_calls)

    @property
    def changed(self) -> int:
        """The number of changes: objects, names, items of advanced iterators, and random numbers."""
        written = len(self._snapshots) + len(self._named) + len(self._cells) + len(self._tensors)
        return written + len(self.draws) + sum(a.count for a in self._advances)

    # ---- before a change

    def _check_allowed(self, target: object, joinable: bool = False) -> None:
        if self.refusal and not (joinable and self.joins_contents):
            raise unsupported(self.refusal, UNSUPPORTED_EFFECT)
        self.writes += 1
        if id(target) not in self._lines:
            self._lines[id(target)] = self._current_line()

    def line_of(self, target: object) -> Line | None:
        """The user's line that first changed the target of an effect, or called it."""
        return self._lines.get(id(target))

    def check_held(self, values: Iterable[object]) -> None:
        """Record that the program takes `values` from where they are held; raise Unsupported where it may observe the end of
        one."""
        values = list(values)
        self.replaced.update(map(id, values))
        dropped = next(filter(self.refuses, values), None) if self.refuses else None
        if dropped is not None:
            raise DropsObserved(Reason(UNSUPPORTED_EFFECT, f"a {type(dropped).__qualname__} is dropped"))

    def touch(self, obj: object) -> bool:
        """Take the snapshot of `obj`, which the overlay replaces from now on; False if there is one already."""
        self._check_allowed(obj, joinable=True)
        if id(obj) in self._snapshots:
            return False
        attributes = instance_dict(obj)
        self._snapshots[id(obj)] = _Snapshot(
            obj,
            type(obj),
            attributes,
            None if attributes is None else dict(self._overlay.copy(attributes)),
            {n: self._overlay.slot(obj, n) for n in slot_names(type(obj))},
            items_of(self._overlay.copy(obj)) if isinstance(obj, CONTAINER_BASES) else None,
        )
        return True

    def check_left(self, obj: object) -> None:
        """Raise Unsupported if what `obj`, a container, held before the trace has left it and has an end to observe."""
        snapshot = self._snapshots.get(id(obj)) if self.refuses else None
        if snapshot is not None and snapshot.contents is not None:
            now = {id(v) for v in _flat(obj, items_of(self._overlay.now(obj)))}
            self.check_held(v for v in _flat(obj, snapshot.contents) if id(v) not in now)

    def record_set_change(self, obj: set[object], method: str, args: tuple[object, ...]) -> None:
        """Record that `set.method(obj, *args)` was called on a set of the environment, and returned."""
        changes = self._set_changes.setdefault(id(obj), [])
        if changes is not None:
            changes.append(SetChange(obj, method, args))

    def record_unknown_change(self, obj: set[object]) -> None:
        """Record that a set of the environment was changed in another way."""
        self._set_changes[id(obj)] = None

    def touch_native(self, obj: object) -> None:
        """Take the snapshot of `obj`, whose attributes native code is about to change. Raises Unsupported if the trace has
        stored attributes of it in the overlay, which native code does not see."""
        self._check_allowed(obj)
        snapshot = self._snapshots.get(id(obj))
        if snapshot is not None:
            if not snapshot.is_native:
                raise unsupported(
                    f"native code reads a {type(obj).__qualname__} that was changed", UNSUPPORTED_EFFECT
                )
            return
        attributes = instance_dict(obj)
        before = None if attributes is None else dict(attributes)
        self._snapshots[id(obj)] = _Snapshot(obj, type(obj), attributes, before, {}, None, True)

    def touched(self) -> list[object]:
        """The objects of which snapshots exist."""
        return [snapshot.obj for snapshot in self._snapshots.values()]

    def is_overlaid(self, obj: object) -> bool:
        """Whether the overlay holds attributes of `obj`, which native code does not see."""
        snapshot = self._snapshots.get(id(obj))
        return snapshot is not None and not snapshot.is_native and snapshot.contents is None

    def mark_stored(self, obj: object, key: object, is_attribute: bool) -> None:
        """Record that `obj.key` or `obj[key]` is about to be stored."""
        for owner in self._holders(obj, is_attribute):
            self._stored.setdefault(owner, {})[key] = None

    def mark_deleted(self, obj: object, key: object, is_attribute: bool) -> None:
        """Record that `obj.key` or `obj[key]` is about to be deleted."""
        for owner in self._holders(obj, is_attribute):
            self._deleted.setdefault(owner, {})[key] = None
            self._stored.get(owner, {}).pop(key, None)

    def marks(self) -> tuple[dict[int, dict[object, None]], object]:
        """The stored names and keys, by id of the object, and all other marks of changes."""
        stored = {owner: dict(keys) for owner, keys in self._stored.items()}
        deleted = {owner: list(keys) for owner, keys in self._deleted.items()}
        changes = {owner: None if found is None else len(found) for owner, found in self._set_changes.items()}
        classes = [(key, type(s.obj)) for key, s in self._snapshots.items() if type(s.obj) is not s.cls]
        return stored, (deleted, changes, classes, set(self._replaced))

    def set_stored(self, stored: dict[int, dict[object, None]]) -> None:
        """Replace the stored names and keys by those of an earlier or later time."""
        self._stored = {owner: dict(keys) for owner, keys in stored.items()}

    def mark_replaced(self, obj: object) -> None:
        """Record that `obj.__dict__`, whose names are guarded, is about to be replaced."""
        self._replaced.add(id(obj))

    def _holders(self, obj: object, is_attribute: bool) -> Iterator[int]:
        if id(obj) in self._snapshots:
            yield id(obj)
            attributes = instance_dict(obj) if is_attribute else None
            if attributes is not None:
                yield id(attributes)

    def written_keys(self, obj: object) -> set[object]:
        """The keys or names that the trace has stored in `obj` or deleted."""
        return self._stored.get(id(obj), {}).keys() | self._deleted.get(id(obj), {}).keys()

    def was_stored(self, obj: object, key: object) -> bool:
        """Whether the trace stored the current value of `obj.key` or `obj[key]`, even if it is the old one."""
        stored = self._stored.get(id(obj))
        return stored is not None and is_lookup_key(key) and key in stored

    def touch_instance_dict(self, obj: object, attributes: dict[str, object]) -> None:
        """Take the snapshot of `obj.__dict__`, which the program reads only after a change of `obj`."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is not None and snapshot.attributes is not None:
            before = list(snapshot.attributes.items())
            self._snapshots.setdefault(id(attributes), _Snapshot(attributes, dict, None, None, {}, before))

    def set_name(self, owner: dict[str, object] | type, name: str, value: object) -> None:
        """Set one name of a class or of a module's globals, whose others other threads may change; MISSING deletes it."""
        self._check_allowed(owner)
        self.check_held((self._overlay.name(owner, name),))
        self._named.setdefault((id(owner), name), (owner, self._overlay.name(owner, name)))
        self._overlay.set_name(owner, name, value)

    def set_cell(self, cell: CellType, value: object) -> None:
        """Set the contents of a cell of the environment; MISSING empties it."""
        self._check_allowed(cell)
        self.check_held((self._overlay.cell(cell),))
        self._cells[id(cell)] = cell
        self._overlay.set_cell(cell, value)

    def set_tensor_attribute(self, fake: object, name: str, value: object) -> None:
        """Record that an attribute was set on the fake of an environment tensor; the tensor itself does not change."""
        self._check_allowed(fake)
        self._tensors[id(fake), name] = SetAttr(fake, name, value)

    def tensors_with_attributes(self) -> list[object]:
        """The fakes of environment tensors on which the trace has set an attribute."""
        return [entry.target for entry in self._tensors.values()]

    def is_set_on_tensor(self, fake: object, name: str) -> bool:
        """Whether the trace has set this attribute of the tensor."""
        return (id(fake), name) in self._tensors

    def defer_call(self, call: Call) -> None:
        """Defer a call: the compiled frame runs it after the graph."""
        self._check_allowed(call.target)
        self.writes -= 1
        self.deferred_calls.append(call)

    def record_draw(self, draw: Draw) -> None:
        """Record random numbers that the compiled frame draws before the graph runs."""
        self._check_allowed(draw)
        self.draws.append(draw)

    def record_advance(self, iterator: object) -> None:
        """Record a `next` of an iterator of the environment; the iterator itself does not advance."""
        self._check_allowed(iterator)
        last = self._advances.pop() if self._advances and self._advances[-1].target is iterator else None
        self._advances.append(Advance(iterator, 1 + (last.count if last else 0)))

    def mark_advanced(self, iterator: object) -> None:
        """Mark an iterator as changed because it, or an iterator around it, advances."""
        self._advanced.add(id(iterator))

    def has_written_name(self, owner: object, name: str) -> bool:
        """Whether the trace has written this name of a class or of a module's globals."""
        return (id(owner), name) in self._named

    def has_written_cell(self, cell: CellType) -> bool:
        """Whether the trace has written the cell."""
        return id(cell) in self._cells

    @property
    def changes_cells(self) -> bool:
        """Whether the trace has written any cell."""
        return bool(self._cells)

    def names_before(self, owner: object) -> Iterator[tuple[str, object]]:
        """The written names of `owner`, each with its value before; MISSING if it was absent."""
        return ((name, old) for (key, name), (_, old) in self._named.items() if key == id(owner))

    def written_names(self) -> Iterator[tuple[object, str]]:
        """The written names of classes and of modules' globals, each with its owner."""
        return ((owner, name) for (_, name), (owner, _) in self._named.items())

    def has_written_any_name(self, owner: object) -> bool:
        """Whether the trace has written any name of `owner`."""
        return any(key == id(owner) for key, _ in self._named)

    # ---- state before capture

    def is_original(self, obj: object, key: object, value: object) -> bool:
        """Whether `value`, now at `obj[key]` or `obj.key`, was there before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None or snapshot.contents is None:
            return self.is_original_attribute(obj, cast(str, key), value)
        if self.was_stored(obj, key):
            return False
        if isinstance(obj, dict):
            return any(v is value and is_same_key(k, key) for k, v in snapshot.contents)
        return type(key) is int and 0 <= key < len(snapshot.contents) and snapshot.contents[key] is value

    def is_original_attribute(self, obj: object, name: str, value: object) -> bool:
        """Whether `value`, now the attribute `name`, was that before capture."""
        snapshot = self._snapshots.get(id(obj))
        if snapshot is None:
            return True
        if self.was_stored(obj, name):
            return False
        if snapshot.attributes is not None and name in snapshot.attributes:
            return snapshot.attributes[name] is value
        return snapshot.slots.get(name, MISSING) is value

    def original_entry(self, obj: object, key: object) -> object:
        """The value of a dictionary at `key` before capture; MISSING if it was absent."""
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
        """The number of elements before capture."""
        snapshot = self._snapshots.get(id(container))
        if snapshot is not None and snapshot.contents is not None:
            return len(snapshot.contents)
        base = cast("type[list[object]]", next(b for b in CONTAINER_BASES if isinstance(container, b)))
        return base.__len__(container)  # type: ignore[arg-type]

    # ---- state at the end of capture

    def effects(self, guarded: Collection[int] = ()) -> tuple[Effect, ...]:
        """The deferred calls, whose operands were unchanged then, and all other effects. Call before `roll_back`.
        `guarded`: the ids of the containers whose contents are all guarded; of others no unchanged item may be written."""
        effects: list[Effect] = []
        # The instance reports the changes of its dictionary, also those made through vars().
        dicts = {id(s.instance_dict) for s in self._snapshots.values()}
        for key, snapshot in self._snapshots.items():
            if key not in dicts:
                is_guarded = key in guarded or key in self._replaced
                marks = _Marks(self._stored.get(key, {}), self._deleted.get(key, {}), is_guarded)
                effects += _differences(self._overlay, snapshot, marks, self._set_changes.get(key))
        for (_, name), (owner, old) in self._named.items():
            effects += _named_difference(owner, name, old, self._overlay.name(owner, name))
        for cell in self._cells.values():
            effects.append(SetCell(cell, self._overlay.cell(cell)))
        return (*self.deferred_calls, *self._advances, *effects, *self._tensors.values())

    def deletions(self) -> Iterator[Deletion]:
        """The attributes, slots and keys that the trace deleted. Whether each existed before decides what is replayed."""
        for snapshot in self._snapshots.values():
            obj, attributes = snapshot.obj, snapshot.instance_dict
            stored = self.written_keys(obj)
            if attributes is not None and snapshot.attributes is not None:
                names = snapshot.attributes.keys() | self.written_keys(attributes)
                now = self._overlay.now(attributes)
                yield from _deletions(obj, "attribute", names, snapshot.attributes, now)
            filled = {n for n, v in snapshot.slots.items() if v is not MISSING}
            still = {n for n in snapshot.slots if self._overlay.slot(obj, n) is not MISSING}
            yield from _deletions(obj, "slot", filled | (stored & snapshot.slots.keys()), filled, still)
            if isinstance(obj, dict) and snapshot.contents is not None:
                keys_before = {key for key, _ in snapshot.contents if is_lookup_key(key)}
                keys_now = {key for key in self._overlay.now(obj) if is_lookup_key(key)}
                yield from _deletions(obj, "key", stored, keys_before, keys_now)
        for (_, name), (owner, old) in self._named.items():
            if self._overlay.name(owner, name) is MISSING:
                kind = "attribute" if isinstance(owner, type) else "key"
                yield Deletion(owner, kind, name, old is not MISSING)

    def overwritten(self) -> Iterator[Overwritten]:
        """The places that the trace stored to or deleted: what they held may have lost its last reference."""
        dicts = {id(s.instance_dict) for s in self._snapshots.values()}
        for key, snapshot in self._snapshots.items():
            if key not in dicts:
                yield from self._overwritten_in(snapshot)
        for (_, name), (owner, old) in self._named.items():
            kind = "" if isinstance(owner, type) else "global"
            yield Overwritten(owner, kind, name, old, self._overlay.name(owner, name))
        for cell in self._cells.values():
            yield Overwritten(cell, "cell", "cell_contents", cell_value(cell), self._overlay.cell(cell))
        for effect in self._tensors.values():
            kind = "member" if hasattr(torch.Tensor, effect.name) else ""
            yield Overwritten(effect.target, kind, effect.name, MISSING, effect.value)
        for advance in self._advances:  # an iterator drops its container at the end
            yield Overwritten(advance.target, "iterator", "", MISSING, MISSING)

    def _overwritten_in(self, snapshot: _Snapshot) -> Iterator[Overwritten]:
        obj, attributes = snapshot.obj, snapshot.instance_dict
        stored = self.written_keys(obj)
        if attributes is not None and snapshot.attributes is not None:
            names, own = self.written_keys(attributes), self._overlay.now(attributes)
            yield from _overwritten(obj, "attribute", snapshot.attributes.items(), own.items(), names)
        slots = {n: self._overlay.slot(obj, n) for n in snapshot.slots}
        yield from _overwritten(obj, "slot", snapshot.slots.items(), slots.items(), stored & slots.keys())
        if snapshot.contents is None:
            return
        before, now = snapshot.contents, items_of(self._overlay.now(obj))
        if isinstance(obj, dict):
            yield from _overwritten(obj, "key", before, now, stored)
        elif len(now) == len(before) and not isinstance(obj, set):
            for i, (old, new) in enumerate(zip(before, now)):
                if new is not old or not stored.isdisjoint((i, i - len(now))):
                    yield Overwritten(obj, "item", i, old, new)
        elif stored or not _same(before, now[: len(before)]):
            kept, kind = {id(v) for v in now}, "element" if isinstance(obj, set) else "item"
            yield from (
                Overwritten(obj, kind, i, v, MISSING) for i, v in enumerate(before) if id(v) not in kept
            )

    def roll_back(self) -> None:
        """Restore what capture changed in the objects themselves. Runs no user code."""
        for snapshot in reversed(self._snapshots.values()):
            _restore(snapshot)


def _deletions(
    obj: object, kind: str, names: Iterable[object], before: Collection[object], now: Collection[object]
) -> Iterator[Deletion]:
    for name in sorted((name for name in names if name not in now), key=repr):
        yield Deletion(obj, kind, name, name in before)


def _restore(snapshot: _Snapshot) -> None:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        object.__setattr__(obj, "__class__", snapshot.cls)
    if snapshot.is_native and snapshot.attributes is not None:
        attributes = instance_dict(obj)
        before = snapshot.attributes
        if attributes is not None and not _same_pairs(list(attributes.items()), list(before.items())):
            attributes.clear()
            attributes.update(before)


def _overwritten(
    obj: object,
    kind: str,
    before: Iterable[tuple[object, object]],
    now: Iterable[tuple[object, object]],
    stored: set[object],
) -> Iterator[Overwritten]:
    held, holds = {id(k): (k, v) for k, v in before}, {id(k): (k, v) for k, v in now}
    for key, (name, old) in held.items():
        _, new = holds.get(key, (name, MISSING))
        if new is not old or (is_lookup_key(name) and name in stored):
            yield Overwritten(obj, kind, name, old, new)
            if new is MISSING and not is_constant(name):
                yield Overwritten(obj, "element", name, name, MISSING)
    for key in holds.keys() - held.keys():
        name, new = holds[key]
        yield Overwritten(obj, kind, name, MISSING, new)


class _Marks(NamedTuple):
    """The keys or names of an object that the trace stored, those that it deleted; whether its contents are guarded."""

    stored: dict[object, None]  # in program order
    deleted: dict[object, None]
    guarded: bool


def _has_key(marked: Collection[object], key: object) -> bool:
    return is_lookup_key(key) and key in marked


def _differences(
    overlay: Overlay, snapshot: _Snapshot, marks: _Marks, changes: list[SetChange] | None
) -> Iterator[Effect]:
    obj = snapshot.obj
    if type(obj) is not snapshot.cls:
        yield SetAttr(obj, "__class__", type(obj))
    if snapshot.attributes is not None:
        now = overlay.now(snapshot.instance_dict) if snapshot.instance_dict is not None else {}
        yield from _attribute_differences(obj, snapshot.attributes, now, marks)
    slots = {n: overlay.slot(obj, n) for n in snapshot.slots}
    before = {n: v for n, v in snapshot.slots.items() if v is not MISSING}
    after = {n: v for n, v in slots.items() if v is not MISSING}
    yield from _attribute_differences(obj, before, after, marks)
    if changes is not None:
        yield from _merged(changes)
    elif snapshot.contents is not None:
        yield from _content_differences(obj, snapshot.contents, items_of(overlay.now(obj)), marks)


def _merged(changes: list[SetChange]) -> Iterator[SetChange]:
    """The changes of a set, with consecutive `add` calls merged into one `update`."""
    for method, run in itertools.groupby(changes, lambda change: change.method):
        if method != "add":
            yield from run
            continue
        added = list(run)
        yield SetChange(added[0].target, "update", (tuple(change.args[0] for change in added),))


def _attribute_differences(
    obj: object, before: dict[str, object], now: dict[str, object], marks: _Marks
) -> Iterator[Effect]:
    for name, value in _changes(list(before.items()), list(now.items()), marks):
        yield DelAttr(obj, name) if value is MISSING else SetAttr(obj, name, value)


def _content_differences(obj: object, before: list[Any], now: list[Any], marks: _Marks) -> Iterator[Effect]:
    """Effects on a container. Only what was appended, set or deleted is replayed, so the other contents need no guard."""
    if isinstance(obj, dict):
        if marks.stored or marks.deleted or not _same_pairs(before, now):
            yield from _entry_differences(obj, before, now, marks)
    elif isinstance(obj, list) and _replay_item_by_item(before, now, marks):
        for index, (old, new) in enumerate(zip(before, now)):
            if new is not old or index in marks.stored:
                yield SetItem(obj, index, new)
        if len(now) > len(before):
            yield Extend(obj, tuple(now[len(before) :]))
    elif not _same(before, now):
        yield ReplaceContents(obj, tuple(now))


def _replay_item_by_item(before: list[object], now: list[object], marks: _Marks) -> bool:
    """Whether the changes of a list are replayed as stores of its items and as an extension. If it grew and other items
    changed too, one assignment is better: other threads never see a part of an insertion."""
    if len(now) <= len(before):
        return len(now) == len(before)
    return not marks.guarded or (
        marks.stored.keys().isdisjoint(range(len(before))) and _same(before, now[: len(before)])
    )


def _entry_differences(obj: object, before: list[Any], now: list[Any], marks: _Marks) -> Iterator[Effect]:
    for key, value in _changes(before, now, marks):
        yield DelItem(obj, key) if value is MISSING else SetItem(obj, key, value)


def _changes(
    before: list[tuple[Any, object]], now: list[tuple[Any, object]], marks: _Marks
) -> Iterator[tuple[Any, object]]:
    """The changes from one list of a dictionary's pairs to another: first the keys to delete (with MISSING), which are
    absent or were set again later, then the pairs to set. Unless the keys are guarded, these are in program order, as
    another call may find other keys."""
    in_order = 0  # how many pairs of `now` have their keys in the order of `before`
    remaining = iter(before)
    unmoved: dict[int, tuple[object]] = {}
    for key, _ in now:
        if _has_key(marks.deleted, key) or not any(
            k is key and unmoved.setdefault(id(k), (v,)) for k, v in remaining
        ):
            break
        in_order += 1
    for key, _ in before:
        if id(key) not in unmoved:
            yield key, MISSING
    changed = [
        (key, value)
        for i, (key, value) in enumerate(now)
        if i >= in_order or unmoved[id(key)][0] is not value or _has_key(marks.stored, key)
    ]
    if not marks.guarded and all(_has_key(marks.stored, key) for key, _ in changed):
        positions = {key: position for position, key in enumerate(marks.stored)}
        changed.sort(key=lambda pair: positions[pair[0]])
    yield from changed


def _named_difference(
    owner: dict[str, object] | type, name: str, old: object, now: object
) -> Iterator[Effect]:
    in_module = isinstance(owner, dict)
    if now is not MISSING:
        yield SetItem(owner, name, now) if in_module else SetAttr(owner, name, now)
    elif old is not MISSING:
        yield DelItem(owner, name) if in_module else DelAttr(owner, name)
