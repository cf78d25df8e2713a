"""Overrides of compiled frames: registered editors may replace each frame before it is installed.

Invariant: a replacement takes the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.emit.compiled_frame import CompiledFrame
from smelt.graph.graph_overrides import Editors

Editor = Callable[[CompiledFrame], CompiledFrame]

_editors: Editors[Editor] = Editors()
editing_frames = _editors.asking


def edited_frame(frame: CompiledFrame) -> CompiledFrame:
    """The frame to install for `frame`: `frame` itself if no editor replaces it."""
    for editor in tuple(_editors):
        frame = editor(frame)
    return frame
