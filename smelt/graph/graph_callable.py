"""Callable graphs: the type that backends return, and a graph as straight-line Python code."""

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
    """The code object with its line numbers shifted."""
    constants = tuple(moved(c, filename, lines) if isinstance(c, CodeType) else c for c in code.co_consts)
    first = code.co_firstlineno + lines
    return code.replace(co_filename=filename, co_firstlineno=first, co_consts=constants)


# A graph made callable: from the tuple of its inputs to its outputs.
Compiled = Callable[[tuple[torch.Tensor, ...]], Sequence[Any]]


class GraphFunction:
    """A graph as straight-line Python code: takes one tensor per placeholder and returns a tuple.

    `code` is the text that runs. A change of the graph takes effect with `recompile()`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.recompile()

    def recompile(self) -> None:
        """Compile the graph as it is now."""
        written = python_source(self.graph)
        self.code = written.source
        self._function = written.function()
        events.emit("graph-code", function=self)
        self._switches = any(node.target in torch_settings.CHANGES for node in self.graph)

    def stands_in(self, filename: str, line: int) -> None:
        """Let debuggers and tracebacks find `code` in the file from line `line` on."""
        self._function.__code__ = moved(self._function.__code__, filename, line - 1)

    def print_tabular(self) -> None:
        """Print one row per node."""
        print(table(self.graph))

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self.graph.level == "torch":
            with torch_settings.restored() if self._switches else nullcontext():
                return self._function(*inputs)
        with torch_settings.beneath_autograd():
            return self._function(*inputs)
