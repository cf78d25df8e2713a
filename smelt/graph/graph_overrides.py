"""Graphs that stand in for those that were captured: what edits graphs is asked for each of them before it is compiled.

What always holds: a graph that is given back takes the same inputs and gives the same outputs, writes the same inputs, and
is functional where the other one is. Without editors nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from smelt.graph.ir import Graph

E = TypeVar("E")
Role = Literal["aten", "forward", "backward"]
Editor = Callable[[Role, Graph], Graph]


class Editors(list[E]):
    """What edits something that was captured, in the order in which it is to be asked."""

    @contextmanager
    def asking(self, editor: E) -> Iterator[None]:
        """Asks `editor` for the duration of the context."""
        self.append(editor)
        try:
            yield
        finally:
            self.remove(editor)


_editors: Editors[Editor] = Editors()
editing = _editors.asking


def edited(role: Role, graph: Graph) -> Graph:
    """The aten graph that is compiled in place of `graph`: the same where nobody has edited it. `aten`: of a call that needs
    no gradients. Raises ArtifactError where what was edited cannot stand in for it."""
    for editor in tuple(_editors):
        graph = editor(role, graph)
    return graph
