"""Where frames go on after a graph break, as data."""

from __future__ import annotations

import types
from dataclasses import dataclass

from smelt.capture.graph_breaks.resume_bytecode import Push


class Placeholder:
    """A value that exists only when the compiled frame runs: what the breaking instruction gives, or a callee returns."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Point:
    """A place in a function where a frame goes on: before instruction `at` of the code object `source`.

    `slots`: the live locals of that code; `layout`: what is on the stack. `scope` are the function's globals, `cell` is the
    cell of `__class__`, if the function has one.
    """

    source: types.CodeType
    at: int
    slots: tuple[int, ...]
    layout: tuple[Push, ...]
    scope: dict[str, object]
    cell: types.CellType | None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for points that can share a resume function."""
        return id(self.source), self.at, self.slots, self.layout, id(self.scope), id(self.cell)


@dataclass(frozen=True)
class Polyfill:
    """In place of a point: the rest of what an instruction does in C, as a function
    (`capture/semantics/result_polyfills.py`)."""

    function: types.FunctionType

    @property
    def source(self) -> types.CodeType:
        """The function's code."""
        return self.function.__code__

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal functions."""
        return (self.function,)


@dataclass(frozen=True)
class Continuation:
    """The rest of a frame: a point, and the values that its resume function takes. `returns`: all that the frame still does
    is to return the last of them."""

    point: Point
    values: tuple[object, ...]
    returns: bool


@dataclass(frozen=True)
class AfterCall:
    """The rest of an instruction that called: a function, and the values that it takes."""

    point: Polyfill
    values: tuple[object, ...]
    returns: bool = False


Rest = Continuation | AfterCall


@dataclass(frozen=True)
class WaitingFrame:
    """A frame, or an instruction of C, that waits for a callee: how it goes on when the callee has returned `result`
    (`normal`), and when the callee has raised `error`, if it handles exceptions there (`handler`)."""

    normal: Rest
    result: Placeholder | None  # None: the innermost frame, which waits for nobody
    handler: Rest | None = None
    error: Placeholder | None = None
