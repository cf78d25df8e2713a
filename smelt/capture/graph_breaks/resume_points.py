"""Resume points and continuations: where frames resume after a graph break, as data."""

from __future__ import annotations

import types
from dataclasses import dataclass

from smelt.capture.graph_breaks.resume_bytecode import Push


class Placeholder:
    """A value that exists only when the compiled frame runs: the breaking instruction or a callee produces it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a frame resumes: before instruction `at` of the code object `user_code`.

    `slots`: the live locals of that code; `layout`: what the prologue pushes on the stack; `scope`: the function's globals;
    `cell`: the cell of `__class__`, if the function has one.
    """

    user_code: types.CodeType
    at: int
    slots: tuple[int, ...]
    layout: tuple[Push, ...]
    scope: dict[str, object]
    cell: types.CellType | None

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which points share a resume function."""
        return id(self.user_code), self.at, self.slots, self.layout, id(self.scope), id(self.cell)


@dataclass(frozen=True)
class Polyfill:
    """A function that finishes what an instruction does in C (`capture/semantics/result_polyfills.py`), used as a point."""

    function: types.FunctionType

    @property
    def user_code(self) -> types.CodeType:
        """The function's code."""
        return self.function.__code__

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which polyfills are compared."""
        return (self.function,)


@dataclass(frozen=True)
class FrameContinuation:
    """The continuation of a frame: a resume point and the arguments of its resume function.

    `returns`: the frame only returns the last of these arguments."""

    point: ResumePoint
    values: tuple[object, ...]
    returns: bool


@dataclass(frozen=True)
class PolyfillContinuation:
    """The continuation of an instruction in C: a polyfill and its arguments."""

    point: Polyfill
    values: tuple[object, ...]
    returns: bool = False


Continuation = FrameContinuation | PolyfillContinuation


@dataclass(frozen=True)
class SuspendedFrame:
    """A frame, or an instruction in C, that waits for a callee.

    `normal`: its continuation when the callee returns `result`. `handler`: its continuation when the callee raises `error`;
    None where it handles no exceptions.
    """

    normal: Continuation
    result: Placeholder | None  # None: the innermost frame, which has no callee
    handler: Continuation | None = None
    error: Placeholder | None = None
