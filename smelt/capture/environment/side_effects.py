"""Effects: what the trace did to environment objects, as data. The compiled frame replays them in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Effect:
    """One store to replay. `target` is the environment object itself (find its name with `CapturedFrame.origin_of`)."""

    target: Any


@dataclass(frozen=True, eq=False)
class SetAttr(Effect):
    """`object.__setattr__(target, name, value)`; `type.__setattr__` for classes. No user code runs."""

    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class DelAttr(Effect):
    """`object.__delattr__(target, name)`."""

    name: str


@dataclass(frozen=True, eq=False)
class SetItem(Effect):
    """`dict.__setitem__(target, key, value)`: a new or changed entry of a dictionary (also a module's globals)."""

    key: Any
    value: Any


@dataclass(frozen=True, eq=False)
class DelItem(Effect):
    """`dict.__delitem__(target, key)`."""

    key: Any


@dataclass(frozen=True, eq=False)
class ReplaceContents(Effect):
    """The list, set, deque or dictionary `target` holds exactly `items` (pairs for a dictionary) afterwards."""

    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Change(Effect):
    """`set.method(target, *args)`. What becomes of a set's order depends on what it held before, so that is not replaced."""

    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Extend(Effect):
    """`list.extend(target, items)`: whatever else the list holds."""

    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class SetCell(Effect):
    """`target.cell_contents = value`; MISSING empties it."""

    value: Any


@dataclass(frozen=True, eq=False)
class Advance(Effect):
    """`next(target)`, so many times, or until the iterator ends."""

    count: int


@dataclass(frozen=True, eq=False)
class Call(Effect):
    """`target(*args)`, for what it writes to the outside world; the last arguments are given by these `names`."""

    args: tuple[Any, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Count(Call):
    """A call of a cached function that has the result already: only its cache's counts and order change."""


@dataclass(frozen=True, eq=False)
class Enter(Effect):
    """`kind.__enter__(target)`: a context manager that a graph break finds entered. `kind` is the class that has the method,
    which a class of the user's may override."""

    kind: type


@dataclass(frozen=True, eq=False)
class Leave(Effect):
    """`kind.__exit__(target, None, None, None)`: a context manager from outside, entered before a graph break."""

    kind: type
