"""Bisection of a wrong compiled graph: the first wrong operator, and the stage of the compiler.

The graph up to an operator is compiled and returns all values that are read after it; binary search finds the first
operator at which that differs. A backward search from it then finds the fewest operators that differ when compiled by
themselves: mostly one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from smelt.config import Config
from smelt.graph import torch_settings
from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_interpreter import step
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node
from smelt.verify.isolated_state import isolated_inputs
from smelt.verify.result_comparison import Before, difference_between
from smelt.verify.subgraph_extraction import Unit, live, part, units

Recompile = Callable[[Graph, Config], Compiled]

# Stages that can be left out, and how.
STAGES: dict[str, Any] = {
    "fuse": False,
    "native_gemm": False,
    "channels_last": False,
    "fused_attention": False,
    "max_autotune": False,
    "cuda_graphs": False,
    "threads": 1,
}


@dataclass(frozen=True)
class Located:
    """The fewest operators that differ by themselves: the calls as a graph, its inputs, and the difference."""

    calls: tuple[Node, ...]
    graph: Graph
    before: Before
    difference: str


class Bisection:
    """The search in one graph, which ran on `before`. `compile` compiles a subgraph to compare it."""

    def __init__(self, graph: Graph, before: Before, compile: Callable[[Graph], Compiled]) -> None:
        self.graph, self.before, self.compile = graph, before, compile
        self.units = units(graph)
        self.values = _values(graph, before)

    def locate(self) -> Located | None:
        """The operators; None if no subgraph differs by itself."""
        whole = self._prefix(len(self.units))
        if whole is None:
            return None
        low, high = 0, len(self.units)  # the first `low` calls do not differ, the first `high` do
        while high - low > 1:
            middle = (low + high) // 2
            found = self._prefix(middle)
            low, high, whole = (middle, high, whole) if found is None else (low, middle, found)
        return self._smallest(high) or whole

    def _prefix(self, count: int) -> Located | None:
        inside = self.units[:count]
        return self._differing(inside, live(self.graph, {n for unit in inside for n in unit}))

    def _smallest(self, end: int) -> Located | None:
        """Of the calls up to number `end`, the fewest last ones that differ in the last one's result."""
        unit = self.units[end - 1]
        results = live(self.graph, set(unit)) or list(unit[-1:])

        def last(count: int) -> Located | None:
            return self._differing(self.units[max(end - count, 0) : end], results)

        length, refused = 1, 0
        while (found := last(length)) is None:
            if length >= end:
                return None
            refused, length = length, 2 * length
        while length - refused > 1:
            middle = (length + refused) // 2
            smaller = last(middle)
            refused, length, found = (
                (middle, length, found) if smaller is None else (refused, middle, smaller)
            )
        return found

    def _differing(self, inside: list[Unit], results: list[Node]) -> Located | None:
        graph, takes = part(self.graph, [n for unit in inside for n in unit], results)
        before = replace(self.before, inputs=tuple([self.values[n] for n in takes]))
        found = difference_between(graph, before, self.compile(graph))
        if found is None:
            return None
        return Located(tuple([unit[0] for unit in units(graph)]), graph, before, found)


def _values(graph: Graph, before: Before) -> dict[Node, Any]:
    """The eager value of each node. Inputs have the values from before they are written, at the end of the graph."""
    inputs = before.run_inputs(frozenset())
    values: dict[Node, Any] = dict(zip(graph.placeholders, inputs, strict=True))
    with torch_settings.beneath_autograd():
        for node in graph.nodes[len(inputs) : -1]:
            if node.target is WRITE_INPUT:
                (target,) = isolated_inputs((values[node.args[0]],), (0,))
                values[node] = target.copy_(values[node.args[1]])
            else:
                values[node] = step(graph, node, values)
    return values


def stages(located: Located, config: Config, recompile: Recompile) -> Iterator[str]:
    """The options of `STAGES` that make the difference disappear when they are turned off."""
    for name, off in STAGES.items():
        if getattr(config, name) != off:
            compiled = recompile(located.graph, replace(config, **{name: off}))
            if difference_between(located.graph, located.before, compiled) is None:
                yield name
