"""What branches of a jump on a tensor do to objects that the program has created: containers, instances, cells, iterators.

Such objects are the program's own, which a branch changes for real. So their contents are taken and restored after each
branch, and joined at its end as its other results are. So are the contents of lists, dictionaries and instances of the
environment, whose changes are in the overlay.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from types import CellType
from typing import Any

from smelt._native import isinstance
from smelt.capture.base.value_kinds import MISSING, cell_value, instance_dict, is_lookup_key, items_of
from smelt.capture.environment.environment_mutations import mark_copies_stale
from smelt.capture.graph_breaks.iterator_reconstruction import copied_iterator
from smelt.capture.reconstruction.constants import is_embeddable
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_order import find_reachable
from smelt.capture.semantics.attributes import instance_attributes
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.reasons import DATA_DEPENDENT, Reason


class CreatedObjects:
    """The reachable objects that the program has created, and the contents `before` of those that a branch may change."""

    def __init__(self, source_of: Callable[[object], Source | None], roots: Iterable[object]) -> None:
        """Raises Unsupported for an object that a compiled frame could not reconstruct."""
        reachable = find_reachable(roots, source_of)
        created = [(x, reachable.kinds[id(x)]) for x in reachable.alive if id(x) in reachable.kinds]
        self._changeable = [x for x, _ in created if _contents(x) is not None]
        self.before: list[Any] = [_contents(x) for x in self._changeable]
        self._classes = [type(x) for x in self._changeable]
        self._others = [(x, kind, _state(x, kind)) for x, kind in created if _contents(x) is None]

    def take_contents(self) -> dict[int, Any]:
        """The contents of the objects that changed, by index, which are restored. Raises Unsupported for a change of another
        object."""
        for x, kind, state in self._others:
            if _state(x, kind) != state:
                raise _refuse(f"one changes a {type(x).__name__}")
        if self._classes != [type(x) for x in self._changeable]:
            raise _refuse("one changes the class of an object")
        changed = {}
        for i, (x, before) in enumerate(zip(self._changeable, self.before)):
            now = _contents(x)
            if not _is_same(now, before):
                changed[i] = now
                self.set_contents(i, before)
        return changed

    def set_contents(self, index: int, contents: Any) -> None:
        """Replace the contents of the object at `index`."""
        x: Any = self._changeable[index]
        if type(x) is list:
            x[:] = contents
        elif type(x) is CellType:
            _set_cell(x, contents[0])
        else:
            attributes: Any = x if type(x) is dict else instance_dict(x)
            attributes.clear()
            attributes.update(contents)


def _contents(x: object) -> list[Any] | dict[Any, Any] | None:
    """A copy of the contents of an object that a branch may change; None for another object."""
    if type(x) is list:
        return [*x]
    if type(x) is dict:
        return {**x}
    if type(x) is CellType:
        return [cell_value(x)]
    attributes = instance_dict(x)
    if attributes is None or type(x).__basicsize__ > _Plain.__basicsize__ or isinstance(x, type):
        return None
    return {**attributes}


class _Plain:
    pass


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _set_cell(cell: CellType, value: object) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _state(x: object, kind: ReconstructionKind) -> list[object]:
    parts = [p if is_embeddable(p) else id(p) for p in (*kind.needs(x), *kind.holds(x))]
    return [*parts, operator.length_hint(x, -1) if hasattr(type(x), "__next__") else None]


class EnvironmentContents:
    """The contents of lists, dictionaries and instances of the environment, as the overlay holds them, which a branch may
    change. What it does not change keeps the value that a read of it has after the branches."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._before = vm.env.overlay.contents()
        self._places = vm.env.overlay.places()
        self._stored, self._marks = vm.env.log.marks()
        self._all_stored = self._stored

    def take_contents(self) -> dict[tuple[int, object], object]:
        """What was stored, by id of the container and key; the contents are restored. Raises Unsupported for other
        changes."""
        env = self._vm.env
        stored, marks = env.log.marks()
        if marks != self._marks or not all(map(_is_same, env.overlay.places(), self._places)):
            raise _refuse("one changes an object outside of the function by more than a store")
        changed: dict[tuple[int, object], object] = {}
        for key, (container, items) in env.overlay.contents().items():
            if key not in self._before:
                self._before[key] = container, items_of(container)
            _, before = self._before[key]
            found = {(key, at): value for at, value in _stored_items(container, before, items)}
            changed |= found
            if found:
                env.overlay.set_contents(container, before)
                mark_copies_stale(env, container)
        self._all_stored = {k: self._all_stored.get(k, {}) | v for k, v in stored.items()}
        env.log.set_stored(self._stored)
        return changed

    def now(self, place: tuple[int, Any]) -> object:
        """The value at a place that a branch does not change."""
        key, at = place
        container, items = self._before[key]
        owner = self._vm.env.mutation_constraints.owners.get(key)
        if owner is None and isinstance(container, dict):
            owner = next((o for o in self._vm.env.log.touched() if instance_dict(o) is container), None)
        value = items[at] if isinstance(container, list) else dict(items)[at]
        if owner is None:
            return self._vm.wrap_item(container, at, value)
        return instance_attributes.wrap_instance_attr(self._vm, owner, at, value)

    def set_contents(self, values: dict[tuple[int, object], object]) -> None:
        """Store these values."""
        env = self._vm.env
        env.log.set_stored(self._all_stored)
        for (key, at), value in values.items():
            container, items = self._before[key]
            if isinstance(container, list):
                items[at] = value  # type: ignore[call-overload]
            else:
                items[next(i for i, (k, _) in enumerate(items) if k is at or k == at)] = at, value
        for key in {key for key, _ in values}:
            container, items = self._before[key]
            env.overlay.set_contents(container, items)
            mark_copies_stale(env, container)


def _stored_items(container: object, before: list[Any], now: list[Any]) -> Iterator[tuple[object, object]]:
    """The keys and values that differ. Raises Unsupported where there are other keys, or other items than stored ones."""
    if type(container) is list and len(before) == len(now):
        yield from ((i, new) for i, (old, new) in enumerate(zip(before, now)) if new is not old)
    elif (
        type(container) is dict and len(before) == len(now) and all(a[0] is b[0] for a, b in zip(before, now))
    ):
        if not all(is_lookup_key(new[0]) for new in now):
            raise _refuse("one changes a dictionary with keys of other classes")
        yield from (new for old, new in zip(before, now) if new[1] is not old[1])
    elif not (len(before) == len(now) and all(a is b for a, b in zip(before, now))):
        raise _refuse(f"one changes which elements a {type(container).__name__} holds")


class IteratorCopies:
    """Copies of iterators, which one branch advances."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # by id of the original: it and its copy
        self._originals: dict[int, Any] = {}  # by id of the copy

    def copy(self, x: object) -> object:
        """A copy of an iterator in C that can be copied; another object itself."""
        found = self._copies.get(id(x))
        if found is None:
            copy = copied_iterator(x, self.copy)
            if copy is None:
                return x
            found = self._copies[id(x)] = x, copy
            self._originals[id(copy)] = x
        return found[1]

    def original(self, x: object) -> object:
        """The original of a copy that has not advanced. Raises Unsupported for one that has."""
        if id(x) not in self._originals:
            return x
        original = self._originals[id(x)]
        if x.__reduce__()[1:] != original.__reduce__()[1:]:
            raise _refuse("one advances an iterator")
        return original


def _refuse(why: str) -> Unsupported:
    return Unsupported(Reason(DATA_DEPENDENT, why))
