"""Graphs as report data: the graphs of an entry, their nodes, and the entry of a scheduled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.capture.driver.cache_entries import Entry
from smelt.graph.graph_printer import code, spec_text, target_text
from smelt.graph.ir import Graph, Line, Node, TensorSpec, argument_nodes
from smelt.report import report_data as data
from smelt.user_lines import file_name, is_own


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
    return data.Line(file_name(line.filename), line.line, line.function)


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
    """Finds the entry of a graph, whose nodes name the torch-level nodes that caused them."""

    def __init__(self, entries: Sequence[tuple[str, Entry]]) -> None:
        self._by_node = {node: pair for pair in entries for node in pair[1].traced.torch_graph}
        self._by_entry = {id(pair[1]): pair for pair in entries}

    def of(self, graph: Graph, entry: Entry | None = None) -> tuple[str, Entry] | None:
        """The name of the frame, and the entry: `entry` if no node tells; None if the entry is unknown."""
        causes = map(_torch_level, graph)
        found = next((self._by_node[node] for node in causes if node in self._by_node), None)
        return found or self._by_entry.get(id(entry))
