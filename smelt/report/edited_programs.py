"""Torch-level graphs from files: an edited program is compiled like any other function.

Its calls run in its own file, where debuggers stop if they run uncompiled: with the backend `eager`, or after a graph
break.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

from smelt.errors import ArtifactError
from smelt.report.edited_graphs import forward_of
from smelt.tracing.record.traced import Traced


def program_of(path: Path, traced: Traced) -> FunctionType:
    """The file's `forward`, to call in place of the torch-level graph.

    Raises ArtifactError if it cannot be called, with the file, the line if known, and the expectation.
    """
    if traced.unbacked is not None:
        raise ArtifactError(
            f"{path} is edited, and data decide sizes of the graph that it stands in for: edit the frame, or the program"
        )
    forward = forward_of(path, traced.torch_graph, _not_captured)
    forward.__code__ = forward.__code__.replace(co_qualname=path.stem)
    forward.__qualname__ = path.stem
    return forward


def _not_captured(value: Any) -> Any:
    """An object that the graph calls atomically (a checkpoint, a custom `autograd.Function`). A capture of the file
    breaks the graph there instead of tracing into it."""
    if not callable(value):
        return value

    def call(*args: Any) -> Any:
        return value(*args)

    call.__smelt_disable__ = True  # type: ignore[attr-defined]
    return call
