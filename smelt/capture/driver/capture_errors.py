"""Errors that end a capture, besides those of `smelt.errors`: the user's code raised, or guarded state changed."""

from __future__ import annotations

from smelt.errors import Unsupported, VerificationError
from smelt.graph.ir import Line


class UserException(Exception):
    """The user's code raised `error` (at `line`) during capture. All its changes are rolled back. `queried_compiling`: the
    program called `torch.compiler.is_compiling()`, which returned True."""

    def __init__(
        self, error: BaseException, line: Line | None = None, queried_compiling: bool = False
    ) -> None:
        super().__init__(summary(error))
        self.error = error
        self.line = line
        self.queried_compiling = queried_compiling


class WorldChanged(VerificationError):
    """Guarded state changed since the frame was captured."""


class NotRepeatable(Exception):
    """A condition was assumed, but the graph has effects, so the call cannot be rerun eagerly if the assumption fails."""


def summary(error: BaseException) -> str:
    """The class name of `error` and the first line of its text, which is unknown where it shows a tensor of a capture."""
    try:
        text = str(error).strip().splitlines()
    except Unsupported:
        text = []
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
