"""A graph as something to call."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from smelt.graph import state
from smelt.graph.ir import Graph
from smelt.graph.printer import python_source
from smelt.graph.run import beneath_autograd


class GraphFunction:
    """Runs a graph on tensors, one per placeholder, as straight Python code; gives a tuple.

    `code` is what runs. Changing the graph afterwards changes nothing until `recompile()`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.recompile()

    def recompile(self) -> None:
        written = python_source(self.graph)
        self.code = written.source
        self._function = written.function()
        self._switches = any(node.target in state.CHANGES for node in self.graph)

    def print_tabular(self) -> None:
        self.graph.print_tabular()

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self.graph.level == "torch":
            with state.restored() if self._switches else nullcontext():
                return self._function(*inputs)
        with beneath_autograd():
            return self._function(*inputs)
