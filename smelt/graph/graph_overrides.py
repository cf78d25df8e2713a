"""Overrides of captured graphs: editors are asked for each graph before it is compiled.

An override takes the same inputs and returns the same outputs, writes the same inputs, and is functional if the
captured graph is. Without editors nothing is asked.
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
    """Editors of captured values, in the order in which they are asked."""

    @contextmanager
    def asking(self, editor: E) -> Iterator[None]:
        """Ask `editor` for the duration of the context."""
        self.append(editor)
        try:
            yield
        finally:
            self.remove(editor)


_editors: Editors[Editor] = Editors()
editing = _editors.asking


def edited(role: Role, graph: Graph) -> Graph:
    """The aten graph to compile for `graph`: `graph` itself without an override. `aten`: of a call that needs no
    gradients. Raises ArtifactError if the override cannot replace it."""
    for editor in tuple(_editors):
        graph = editor(role, graph)
    return graph
