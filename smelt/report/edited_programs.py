"""Torch-level graphs from files: the program that a user has edited is a function like any other, to be compiled as one.

Whatever it calls runs in its own file, where a debugger stops as long as it is not compiled: with the backend `eager`, or
behind what breaks its graph.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

from smelt.errors import ArtifactError
from smelt.report.edited_graphs import forward_of
from smelt.tracing.record.traced import Traced


def program_of(path: Path, traced: Traced) -> FunctionType:
    """The file's `forward`, to be called in place of the torch-level graph.

    Raises ArtifactError where it cannot be: with the file, the line where there is one, and what is expected.
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
    """An object of the program that the graph calls as a whole (a checkpoint, a custom `autograd.Function`), which a capture
    of the file must not look into: the graph breaks there."""
    if not callable(value):
        return value

    def call(*args: Any) -> Any:
        return value(*args)

    call.__smelt_disable__ = True  # type: ignore[attr-defined]
    return call
