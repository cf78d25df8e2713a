"""Graphs as report rows: the graphs of an entry, their nodes, and the entry of a scheduled graph."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.autograd.partition import Partition
from smelt.capture.driver.cache_entries import Entry
from smelt.graph.graph_printer import code, spec_text, target_text
from smelt.graph.ir import Graph, Line, Node, TensorSpec, argument_nodes
from smelt.user_lines import is_own


@dataclass(frozen=True)
class Placed:
    """One graph of a report. `level`: torch, aten, joint, forward or backward."""

    id: int
    frame: str
    entry: Entry
    level: str
    graph: Graph


def line_row(line: Line | None, text: bool = False) -> dict[str, Any] | None:
    """A line of the user's code; None for a line of smelt's own (which calls a module, or steps a generator). `text`:
    include the source line."""
    if line is None or is_own(line.filename):
        return None
    row: dict[str, Any] = {"file": line.filename, "line": line.line, "function": line.function}
    if text:
        row["text"] = source_line(line)
    return row


def source_line(line: Line) -> str:
    """The text of a line without indentation; empty if the file is missing."""
    return linecache.getline(line.filename, line.line).strip()


def hints_of(entry: Entry) -> Mapping[str, int]:
    """The values of an entry's size symbols in its capture."""
    traced = entry.traced
    of_data = traced.unbacked.hints if traced.unbacked is not None else {}
    sizes = {sym: source.hint for sym, source in traced.sizes.items()}
    return {str(sym): hint for sym, hint in {**sizes, **of_data}.items()}


def node_row(node: Node, module: str | None) -> dict[str, Any]:
    """One node in the report schema. `module`: its module, if known."""
    target = node.target if isinstance(node.target, str) else target_text(node.target, {})
    spec = node.spec
    tensor = spec if isinstance(spec, TensorSpec) else None
    return {
        "name": node.name,
        "op": node.op,
        "target": target.removeprefix("torch.ops."),
        "inputs": list(dict.fromkeys(n.name for n in argument_nodes(node))),
        "shape": None if tensor is None else [n if isinstance(n, int) else str(n) for n in tensor.shape],
        "dtype": None if tensor is None else str(tensor.dtype).removeprefix("torch."),
        "type": "" if spec is None or node.op == "output" else spec_text(spec),
        "line": line_row(node.line),
        "module": module,
    }


def torch_level(node: Node) -> Node:
    """The torch-level node that caused a node, or whose gradients it computes; the node itself if there is none."""
    while node.source is not None:
        node = node.source
    return node


def graph_row(placed: Placed, modules: Mapping[Node, str]) -> dict[str, Any]:
    """One graph in the report schema. `modules`: by torch-level node."""
    nodes = [node_row(node, modules.get(torch_level(node))) for node in placed.graph]
    return {
        "id": placed.id,
        "frame": placed.frame,
        "level": placed.level,
        "code": code(placed.graph),
        "operators": sum(node["op"].startswith("call") for node in nodes),
        "nodes": nodes,
    }


class Owners:
    """Finds the entry of an aten graph: its nodes name the torch-level nodes that caused them; graphs for concrete
    sizes are copies whose nodes have the names and lines of the original."""

    def __init__(self, entries: Sequence[tuple[str, Entry]]) -> None:
        self.entries = entries
        self._by_source = {node: pair for pair in entries for node in pair[1].traced.torch_graph}

    def of(self, graph: Graph) -> tuple[str, Entry] | None:
        """The name of the frame, and the entry; None if the graph belongs to no known entry."""
        for node in graph:
            cause = torch_level(node)
            if cause in self._by_source:
                return self._by_source[cause]
        named = _keys(graph)
        best = max(self.entries, key=lambda pair: len(named & _own_keys(pair[1])), default=None)
        return best if best is not None and 2 * len(named & _own_keys(best[1])) > len(named) else None

    def pair(self, entry: Entry | None) -> tuple[str, Entry] | None:
        """An entry with the name of its frame; None if it is unknown."""
        return next((pair for pair in self.entries if pair[1] is entry), None)

    def of_partition(self, parts: Partition) -> tuple[str, Entry] | None:
        """The same for a partitioned joint graph."""
        return self.of(parts.forward) or self.of(parts.backward)


def _keys(graph: Graph) -> set[tuple[str, str, str]]:
    return {(n.name, str(n.target), str(n.line)) for n in graph if n.op.startswith("call")}


def _own_keys(entry: Entry) -> set[tuple[str, str, str]]:
    traced = entry.traced
    return _keys(traced.aten_graph if traced.joint is None else traced.joint.graph)


def lines_in(graphs: Iterable[Graph]) -> Iterable[Line]:
    """The lines of nodes, with repetitions."""
    return (node.line for graph in graphs for node in graph if node.line is not None)
