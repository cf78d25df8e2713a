"""What branches of a jump on a tensor do to objects.

Objects that the program created are mutated in place; changes of environment objects are in the overlay. After each branch,
the contents of both are read and reset, then joined like other results. Iterators on the stack and in variables are copied
for each branch.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.value_kinds import (
    MISSING,
    Container,
    cell_value,
    instance_dict,
    is_lookup_key,
    items_of,
)
from smelt.capture.environment.environment_mutations import mark_copies_stale
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.graph_breaks.iterator_reconstruction import copied_iterator
from smelt.capture.proxies.array_proxy import BoundMethod
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.reconstruction.constants import is_embeddable
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_order import find_reachable
from smelt.capture.semantics.attributes import instance_attributes
from smelt.capture.torch_calls.subgraph_capture import refuse
from smelt.capture.vm.vm import VM
from smelt.guards.source import Source
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import SymbolicRange

Contents = list[object] | dict[object, object]
StoredKey = tuple[int, object]  # the id of a container of the environment, and an index or a key


class CreatedObjects:
    """The reachable objects that the program has created, and the contents `before` of those that a branch may change."""

    def __init__(self, source_of: Callable[[object], Source | None], roots: Iterable[object]) -> None:
        """Raises Unsupported for an object that a compiled frame could not reconstruct."""
        self._source_of = source_of
        reachable = find_reachable(roots, source_of)
        created = [(x, reachable.kinds[id(x)]) for x in reachable.alive if id(x) in reachable.kinds]
        contents = [(x, _contents(x)) for x, _ in created]
        self._changeable = [x for x, found in contents if found is not None]
        self.before = [found for _, found in contents if found is not None]
        self._classes = [(type(x), id(instance_dict(x))) for x in self._changeable]
        self._others = [(x, kind, _state(x, kind)) for x, kind in created if _contents(x) is None]
        for x, _, _ in self._others:
            if type(x) not in _KNOWN and not hasattr(type(x), "__next__") and not isinstance(x, _IMMUTABLE):
                raise refuse(f"the function has created a {type(x).__qualname__}, which they may change")
        self._exist = {id(x) for x, _ in created}
        self._alive = [x for x, _ in created]

    def exists(self, x: object) -> bool:
        """Whether an object existed before the branches."""
        return id(x) in self._exist or self._source_of(x) is not None

    def take_contents(self) -> dict[int, Contents]:
        """The contents of the objects that changed, by index, which are restored. Raises Unsupported for a change of another
        object."""
        for x, kind, state in self._others:
            if _state(x, kind) != state:
                raise refuse(f"one changes a {type(x).__name__}")
        if self._classes != [(type(x), id(instance_dict(x))) for x in self._changeable]:
            raise refuse("one replaces the class or the `__dict__` of an object")
        changed = {}
        for i, (x, before) in enumerate(zip(self._changeable, self.before)):
            now = _contents(x)
            assert now is not None
            if not _is_same(now, before):
                changed[i] = now
                self.set_contents(i, before)
        return changed

    def set_contents(self, index: int, contents: Contents) -> None:
        """Replace the contents of the object at `index`."""
        x = self._changeable[index]
        if isinstance(contents, dict):
            attributes = cast("dict[object, object]", x if type(x) is dict else instance_dict(x))
            attributes.clear()
            attributes.update(contents)
        elif type(x) is list:
            x[:] = contents
        elif contents[0] is MISSING:
            del cast(CellType, x).cell_contents
        else:
            cast(CellType, x).cell_contents = contents[0]


# Kinds whose changes `_state` shows, or that have none.
_KNOWN = frozenset(
    (
        set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict, torch.Size, slice, range,
        types.FunctionType, types.MethodType, types.BuiltinMethodType, property, staticmethod, classmethod, type,
        TextProxy, OpaqueProxy, BoundMethod, NumberProxy, UnbackedComparison, SymbolicRange,
        *NUMBERS,
    )
)  # fmt: skip
_IMMUTABLE = (tuple, str, int, float, complex, bytes)


def _contents(x: object) -> Contents | None:
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
    if any(slot_names(type(x))):
        return None
    return cast("dict[object, object]", {**attributes})


class _Plain:
    pass


def _is_same(a: Contents, b: Contents) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _state(x: object, kind: ReconstructionKind) -> list[object]:
    parts = [p if is_embeddable(p) else id(p) for p in (*kind.needs(x), *kind.holds(x))]
    return [*parts, operator.length_hint(x, -1) if hasattr(type(x), "__next__") else None]


class EnvironmentContents:
    """The contents of lists, dictionaries and instances of the environment, as the overlay holds them, which a branch may
    change. What it does not change keeps the value that a read of it has after the branches."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._before = vm.env.overlay.contents()
        self._other_stores = vm.env.overlay.other_stores()
        self._stored, self._marks = vm.env.log.marks()
        self._all_stored = self._stored

    def take_contents(self) -> dict[StoredKey, object]:
        """What was stored; the contents are restored. Raises Unsupported for other changes."""
        env = self._vm.env
        stored, marks = env.log.marks()
        if marks != self._marks or not all(map(_is_same, env.overlay.other_stores(), self._other_stores)):
            raise refuse("one changes an object outside of the function by more than a store")
        changed: dict[StoredKey, object] = {}
        for key, (container, items) in env.overlay.contents().items():
            _, before = self._before.setdefault(key, (container, items_of(container)))
            found = {(key, at): value for at, value in _stored_items(container, before, items)}
            if found:
                changed |= found
                env.overlay.set_contents(container, before)
                mark_copies_stale(env, container)
        self._all_stored = {k: self._all_stored.get(k, {}) | v for k, v in stored.items()}
        env.log.set_stored(self._stored)
        return changed

    def now(self, stored: StoredKey) -> object:
        """The value under a key that a branch does not change."""
        env, (key, at) = self._vm.env, stored
        container, items = self._before[key]
        value = _item(container, items, at)
        owner = env.mutation_constraints.owners.get(key)
        if owner is None and isinstance(container, dict):
            owner = next((o for o in env.log.touched() if instance_dict(o) is container), None)
        if owner is None:
            return self._vm.wrap_item(container, at, value)
        return instance_attributes.wrap_instance_attr(self._vm, owner, cast(str, at), value)

    def set_contents(self, values: dict[StoredKey, object]) -> None:
        """Store these values."""
        env = self._vm.env
        env.log.set_stored(self._all_stored)
        for (key, at), value in values.items():
            container, items = self._before[key]
            if isinstance(container, list):
                items[cast(int, at)] = value
            else:
                keys = [k for k, _ in cast("list[tuple[object, object]]", items)]
                items[keys.index(at)] = at, value
        for key in {key for key, _ in values}:
            container, items = self._before[key]
            env.overlay.set_contents(container, items)
            mark_copies_stale(env, container)


def _item(container: Container, items: Sequence[object], at: object) -> object:
    if isinstance(container, list):
        return items[cast(int, at)]
    return dict(cast("Sequence[tuple[object, object]]", items))[at]


def _stored_items(
    container: Container, before: Sequence[object], now: Sequence[object]
) -> Iterator[tuple[object, object]]:
    """The keys and values that differ. Raises Unsupported where there are other keys, or another number of items."""
    if type(container) is list and len(before) == len(now):
        yield from ((i, new) for i, (old, new) in enumerate(zip(before, now)) if new is not old)
        return
    if type(container) is dict:
        old, new = (cast("Sequence[tuple[object, object]]", items) for items in (before, now))
        if len(old) == len(new) and all(a is b for (a, _), (b, _) in zip(old, new)):
            stored = [(k, value) for (k, value), (_, was) in zip(new, old) if value is not was]
            if not all(is_lookup_key(k) for k, _ in stored):
                raise refuse("one changes a dictionary with keys of other classes")
            yield from stored
            return
    elif len(before) == len(now) and all(a is b for a, b in zip(before, now)):
        return
    raise refuse(f"one changes which elements a {type(container).__name__} holds")


class IteratorCopies:
    """Copies of iterators, which one branch advances."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[object, object]] = {}  # by id of the original: it and its copy
        self._originals: dict[int, object] = {}  # by id of the copy

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

    def advanced(self, stack: Iterable[object]) -> bool:
        """Whether a copy on the stack has advanced."""
        return any(id(x) in self._originals and self._has_advanced(x) for x in stack)

    def _has_advanced(self, x: object) -> bool:
        parts = self._parts(x, self._originals[id(x)])
        return any(operator.length_hint(a, -1) != operator.length_hint(b, -1) for a, b in parts)

    def original(self, x: object) -> object:
        """The original of a copy that has not advanced. Raises Unsupported for one that has."""
        if id(x) not in self._originals:
            return x
        if self._has_advanced(x):
            raise refuse("one advances an iterator")
        return self._originals[id(x)]

    def _parts(self, x: object, original: object) -> Iterator[tuple[object, object]]:
        """A copy and its original, and the iterators in them."""
        yield x, original
        if type(x) in (enumerate, zip):
            inner = zip(_inner_iterators(x), _inner_iterators(original))
            yield from (part for a, b in inner for part in self._parts(a, b))


def _inner_iterators(x: object) -> Sequence[object]:
    _, arguments = cast("tuple[object, tuple[object, ...]]", x.__reduce__())[:2]
    return arguments
