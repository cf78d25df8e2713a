"""torch.fx's graph, with a table that needs no library."""

from __future__ import annotations

from typing import Any

import torch.fx

from smelt.graph.graph_printer import columns


class Graph(torch.fx.Graph):
    """`torch.fx.Graph`: nodes of six opcodes (placeholder, get_attr, call_function, call_method, call_module, output), which
    can be inserted, replaced, erased and printed."""

    def print_tabular(self) -> None:
        """Print one row per node."""
        rows = [("opcode", "name", "target", "args", "kwargs")]
        rows += [tuple(map(str, (n.op, n.name, n.target, n.args, n.kwargs))) for n in self.nodes]
        print(columns(rows))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Graph:
        return as_smelt_graph(super().__deepcopy__({} if memo is None else memo))


def as_smelt_graph(graph: torch.fx.Graph) -> Graph:
    """The same graph, of smelt's class; a subclass remains."""
    if type(graph) is torch.fx.Graph:
        graph.__class__ = Graph
    return graph  # type: ignore[return-value]
