"""Overrides of captured graphs and frames: editors may replace each one before it is compiled or installed.

A replacement of a graph takes the same inputs and returns the same outputs, writes the same inputs, and is functional if
the captured graph is; the forward of a joint graph needs no tangents. A frame takes the same arguments. Without editors
nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

E = TypeVar("E")
T = TypeVar("T")
# `aten`: the graph of a call that needs no gradients.
Role = Literal["aten", "joint", "forward", "backward", "frame"]
Editor = Callable[[Role, Any], Any]


class Editors(list[E]):
    """Editors of captured values, in the order in which they are called."""

    @contextmanager
    def asking(self, editor: E) -> Iterator[None]:
        """Call `editor` for the duration of the context."""
        self.append(editor)
        try:
            yield
        finally:
            self.remove(editor)


_editors: Editors[Editor] = Editors()
editing = _editors.asking


def edited(role: Role, captured: T) -> T:
    """What to compile or install for `captured`: `captured` itself without an override. Raises ArtifactError if an
    override cannot replace it."""
    for editor in tuple(_editors):
        captured = editor(role, captured)
    return captured
