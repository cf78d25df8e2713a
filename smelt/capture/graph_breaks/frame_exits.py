"""Exits of a captured frame: it returns a value, or it breaks before an instruction (`graph_break.Break`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from smelt.capture.graph_breaks.code_positions import CodePosition
from smelt.capture.graph_breaks.graph_break import Writer
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions


class FrameExit(Protocol):
    """The exit of a captured frame: the last statements of the compiled frame, and the objects that they need."""

    @property
    def roots(self) -> tuple[object, ...]:
        """The objects that the last statements refer to."""

    @property
    def positions(self) -> tuple[CodePosition, ...]:
        """The positions of the user's frames at the exit, outermost first; empty where no code of the user runs there."""

    def write(self, writer: Writer, resume_functions: ResumeFunctions) -> list[str]:
        """The statements that end the compiled frame."""


@dataclass(frozen=True)
class Return:
    """The frame returns `result`."""

    result: object
    positions: tuple[CodePosition, ...] = ()

    @property
    def roots(self) -> tuple[object, ...]:
        """The result."""
        return (self.result,)

    def write(self, writer: Writer, resume_functions: ResumeFunctions) -> list[str]:
        """One `return` statement."""
        return [f"return {writer(self.result)}"]
