"""Graphs as something to call: the type that backends give, and one graph as straight Python code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import CodeType
from typing import Any

import torch

from smelt import events
from smelt.graph import torch_settings
from smelt.graph.graph_printer import python_source, table
from smelt.graph.ir import Graph


def moved(code: CodeType, filename: str, lines: int) -> CodeType:
    """The code, said to stand so many lines further down in a file."""
    constants = tuple(moved(c, filename, lines) if isinstance(c, CodeType) else c for c in code.co_consts)
    first = code.co_firstlineno + lines
    return code.replace(co_filename=filename, co_firstlineno=first, co_consts=constants)


# A graph made callable: from the tuple of its inputs to its outputs.
Compiled = Callable[[tuple[torch.Tensor, ...]], Sequence[Any]]


class GraphFunction:
    """Runs a graph on tensors, one per placeholder, as straight Python code; gives a tuple.

    `code` is what runs. Changing the graph afterwards changes nothing until `recompile()`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.recompile()

    def recompile(self) -> None:
        """Makes what runs from the graph as it is now."""
        written = python_source(self.graph)
        self.code = written.source
        self._function = written.function()
        events.emit("graph-code", function=self)
        self._switches = any(node.target in torch_settings.CHANGES for node in self.graph)

    def stands_in(self, filename: str, line: int) -> None:
        """From now on debuggers and tracebacks find `code` in the file, from line `line` on."""
        self._function.__code__ = moved(self._function.__code__, filename, line - 1)

    def print_tabular(self) -> None:
        """Prints one row a node."""
        print(table(self.graph))

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self.graph.level == "torch":
            with torch_settings.restored() if self._switches else nullcontext():
                return self._function(*inputs)
        with torch_settings.beneath_autograd():
            return self._function(*inputs)
