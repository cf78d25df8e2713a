"""Compiled frames that stand in for those that smelt wrote: what edits frames is asked for each before it is installed.

What always holds: a frame that is given back takes the same arguments. Without editors nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.emit.compiled_frame import CompiledFrame
from smelt.graph.graph_overrides import Editors

Editor = Callable[[CompiledFrame], CompiledFrame]

_editors: Editors[Editor] = Editors()
editing_frames = _editors.asking


def edited_frame(frame: CompiledFrame) -> CompiledFrame:
    """The frame that is installed in place of `frame`: the same where nobody has edited it."""
    for editor in tuple(_editors):
        frame = editor(frame)
    return frame
