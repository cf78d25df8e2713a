"""Joint graphs that replace captured ones: editors are called with each joint graph before it is partitioned.

Invariants: an edited joint graph has the same inputs and outputs, writes the same inputs, and is functional where the
other one is; its forward needs no tangents.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.graph.graph_overrides import Editors
from smelt.tracing.backward.joint import Joint

Editor = Callable[[Joint], Joint]

_editors: Editors[Editor] = Editors()
editing_joints = _editors.asking


def edited_joint(joint: Joint) -> Joint:
    """The joint graph to partition in place of `joint`: the same where no editor changed it. Raises ArtifactError
    where an edited graph cannot replace it."""
    for editor in tuple(_editors):
        joint = editor(joint)
    return joint
