"""What branches of a jump on a tensor do to objects that the program has created: containers, instances, cells, iterators.

Such objects are the program's own, which a branch changes for real. So their contents are taken and restored after each
branch, and joined at its end as its other results are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import CellType
from typing import Any

from smelt._native import isinstance
from smelt.capture.base.value_kinds import MISSING, cell_value, instance_dict
from smelt.capture.graph_breaks.iterator_reconstruction import copied_iterator
from smelt.capture.reconstruction.constants import is_embeddable
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_order import find_reachable
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
        self._others = [(x, kind, _state(x, kind)) for x, kind in created if _contents(x) is None]

    def take_contents(self) -> dict[int, Any]:
        """The contents of the objects that changed, by index, which are restored. Raises Unsupported for a change of another
        object."""
        for x, kind, state in self._others:
            if _state(x, kind) != state:
                raise _refuse(f"one changes a {type(x).__name__}")
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
            attributes = x if type(x) is dict else instance_dict(x)
            attributes.clear()
            attributes.update(contents)


def _contents(x: object) -> list[object] | dict[object, object] | None:
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
