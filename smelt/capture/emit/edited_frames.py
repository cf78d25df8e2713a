"""Compiled frames that stand in for those that smelt wrote: what edits frames is asked for each before it is installed.

What always holds: a frame that is given back takes the same arguments. Without editors nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smelt.capture.emit.compiled_frame import CompiledFrame

Editor = Callable[[CompiledFrame], CompiledFrame]

_editors: list[Editor] = []


def edited_frame(frame: CompiledFrame) -> CompiledFrame:
    """The frame that is installed in place of `frame`: the same where nobody has edited it."""
    for editor in tuple(_editors):
        frame = editor(frame)
    return frame


@contextmanager
def editing_frames(editor: Editor) -> Iterator[None]:
    """Asks `editor` for the duration of the context."""
    _editors.append(editor)
    try:
        yield
    finally:
        _editors.remove(editor)
