"""Graphs as report data: the graphs of an entry, their nodes, and the entry of a scheduled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.capture.driver.cache_entries import Entry
from smelt.graph.graph_printer import code, spec_text, target_text
from smelt.graph.ir import Graph, Line, Node, TensorSpec, argument_nodes
from smelt.report import report_data as data
from smelt.user_lines import is_own


@dataclass(frozen=True)
class EntryGraph:
    """One graph of an entry, which belongs to `frame`. `level`: torch, aten, joint, forward or backward."""

    id: int
    frame: str
    entry: Entry
    level: str
    graph: Graph


def source_line(line: Line | None) -> data.Line | None:
    """A line of the user's code; None for a line of smelt's own (which calls a module, or steps a generator)."""
    if line is None or is_own(line.filename):
        return None
    return data.Line(line.filename, line.line, line.function)


def _node_data(node: Node, module: str | None) -> data.Node:
    target = node.target if isinstance(node.target, str) else target_text(node.target, {})
    spec = node.spec
    tensor = spec if isinstance(spec, TensorSpec) else None
    return data.Node(
        name=node.name,
        op=node.op,
        target=target.removeprefix("torch.ops."),
        inputs=tuple(dict.fromkeys(n.name for n in argument_nodes(node))),
        shape=None if tensor is None else tuple(n if isinstance(n, int) else str(n) for n in tensor.shape),
        dtype=None if tensor is None else str(tensor.dtype).removeprefix("torch."),
        type="" if spec is None or node.op == "output" else spec_text(spec),
        line=source_line(node.line),
        module=module,
    )


def _torch_level(node: Node) -> Node:
    """The torch-level node that caused a node, or whose gradients it computes; the node itself if there is none."""
    while node.source is not None:
        node = node.source
    return node


def graph_data(found: EntryGraph, modules: Mapping[Node, str]) -> data.Graph:
    """One graph of a report. `modules`: by torch-level node."""
    nodes = tuple(_node_data(node, modules.get(_torch_level(node))) for node in found.graph)
    operators = sum(node.op.startswith("call") for node in nodes)
    return data.Graph(found.id, found.frame, found.level, code(found.graph), operators, nodes)


class Owners:
    """Finds the entry of an aten graph: its nodes name the torch-level nodes that caused them; graphs for concrete
    sizes are copies whose nodes have the names and lines of the original."""

    def __init__(self, entries: Sequence[tuple[str, Entry]]) -> None:
        self.entries = entries
        self._by_source = {node: pair for pair in entries for node in pair[1].traced.torch_graph}

    def of(self, graph: Graph) -> tuple[str, Entry] | None:
        """The name of the frame, and the entry; None if the graph belongs to no known entry."""
        for node in graph:
            cause = _torch_level(node)
            if cause in self._by_source:
                return self._by_source[cause]
        named = _keys(graph)
        best = max(self.entries, key=lambda pair: len(named & _own_keys(pair[1])), default=None)
        return best if best is not None and 2 * len(named & _own_keys(best[1])) > len(named) else None

    def pair(self, entry: Entry | None) -> tuple[str, Entry] | None:
        """An entry with the name of its frame; None if it is unknown."""
        return next((pair for pair in self.entries if pair[1] is entry), None)


def _keys(graph: Graph) -> set[tuple[str, str, str]]:
    return {(n.name, str(n.target), str(n.line)) for n in graph if n.op.startswith("call")}


def _own_keys(entry: Entry) -> set[tuple[str, str, str]]:
    traced = entry.traced
    return _keys(traced.aten_graph if traced.joint is None else traced.joint.graph)
