"""How the capture of a frame can end, besides smelt's own errors: the user's code raised, or the world changed meanwhile."""

from __future__ import annotations

from smelt.errors import VerificationError
from smelt.graph.ir import Line


class UserException(Exception):
    """The user's code raised `error` (at `line`) while it was captured. Everything it changed is rolled back."""

    def __init__(self, error: BaseException, line: Line | None = None, asked_compiling: bool = False) -> None:
        super().__init__(repr(error))
        self.error = error
        self.line = line
        # the program asked whether it is being compiled, and was told that it is
        self.asked_compiling = asked_compiling


class WorldChanged(VerificationError):
    """What was guarded is no longer as it was when the frame was captured."""


class NotRepeatable(Exception):
    """A condition was assumed, and a graph that finds it wrong would leave something behind."""
