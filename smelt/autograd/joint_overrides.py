"""Joint graphs that stand in for those that were captured: what edits them is asked for each before it is cut.

What always holds: a joint graph that is given back takes the same inputs and gives the same outputs, writes the same inputs,
and is functional where the other one is; its forward needs no tangents. Without editors nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.graph.graph_overrides import Editors
from smelt.tracing.backward.joint import Joint

Editor = Callable[[Joint], Joint]

_editors: Editors[Editor] = Editors()
editing_joints = _editors.asking


def edited_joint(joint: Joint) -> Joint:
    """The joint graph that is cut in place of `joint`: the same where nobody has edited it. Raises ArtifactError where what
    was edited cannot stand in for it."""
    for editor in tuple(_editors):
        joint = editor(joint)
    return joint
