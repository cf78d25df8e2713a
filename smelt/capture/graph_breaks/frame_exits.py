"""How a captured frame ends: it returns a value, or it stops before an instruction (`graph_break.Break`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from smelt.capture.graph_breaks.code_positions import Place
from smelt.capture.graph_breaks.graph_break import Writer
from smelt.capture.graph_breaks.resume_functions import Resumes


class Ending(Protocol):
    """`roots`: the objects that the compiled frame needs for it; `write`: its last statements."""

    @property
    def roots(self) -> tuple[object, ...]:
        """The objects that the last statements refer to."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the user's frames stand at the end, outermost first; none where none of his code runs there."""

    def write(self, writer: Writer, resumes: Resumes) -> list[str]:
        """The statements that end the compiled frame."""


@dataclass(frozen=True)
class Return:
    """The frame returns `result`."""

    result: object
    places: tuple[Place, ...] = ()

    @property
    def roots(self) -> tuple[object, ...]:
        """What is returned."""
        return (self.result,)

    def write(self, writer: Writer, resumes: Resumes) -> list[str]:
        """One `return` statement."""
        return [f"return {writer(self.result)}"]
