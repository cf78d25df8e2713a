"""Where frames go on after a graph break, as data."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from smelt.capture.breaks.assembler import Push


class Placeholder:
    """A value that exists only when the compiled frame runs: what the breaking instruction gives, or a callee returns."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Point:
    """`slots`: live locals of the original code; `layout`: what is on the stack. `scope` are the function's globals, `cell`
    the one of `__class__`, if it has one."""

    source: types.CodeType
    at: int
    slots: tuple[int, ...]
    layout: tuple[Push, ...]
    scope: dict[str, Any]
    cell: types.CellType | None

    @property
    def key(self) -> tuple[Any, ...]:
        return id(self.source), self.at, self.slots, self.layout, id(self.scope), id(self.cell)


@dataclass(frozen=True)
class Going:
    """A point and the values that its resume function takes. `returns`: all that is left is to return the last of them."""

    point: Point
    values: tuple[Any, ...]
    returns: bool


@dataclass(frozen=True)
class Level:
    """A frame that waits for a callee's result: where it goes on with `result`, and with an exception (`error`) if it
    handles one there."""

    normal: Going
    result: Placeholder | None  # None: the innermost frame, which waits for nobody
    handler: Going | None = None
    error: Placeholder | None = None
