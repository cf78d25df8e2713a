"""Effects on environment objects, as data. The compiled frame replays them in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Effect:
    """One effect to replay. `target` is the environment object itself; `CapturedFrame.source_of` finds its source."""

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
    """`target[key] = value`: a new or changed entry of a dictionary or of a module's globals, or a changed one of a list."""

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
class SetChange(Effect):
    """`set.method(target, *args)`. A set is not refilled: its order depends on its earlier contents."""

    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Extend(Effect):
    """`list.extend(target, items)`, whatever the list holds before."""

    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class SetCell(Effect):
    """`target.cell_contents = value`; MISSING empties it."""

    value: Any


@dataclass(frozen=True, eq=False)
class Advance(Effect):
    """`next(target)`, `count` times or until the iterator ends."""

    count: int


@dataclass(frozen=True, eq=False)
class Call(Effect):
    """`target(*args)`, a deferred call for its output; `names` are the keywords of the last arguments."""

    args: tuple[Any, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CacheHit(Call):
    """A call of a cached function whose result is cached: only the counts and the order of its cache change."""


@dataclass(frozen=True, eq=False)
class Enter(Effect):
    """`kind.__enter__(target)`: a context manager that is active at a graph break. `kind` is the class that defines the
    method, which a user's class may override."""

    kind: type


@dataclass(frozen=True, eq=False)
class Exit(Effect):
    """`kind.__exit__(target, None, None, None)`: a context manager of the environment, entered before a graph break."""

    kind: type
