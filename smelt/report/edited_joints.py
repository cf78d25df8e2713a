"""Joint graphs from files: an edited program replaces the joint graph before it is partitioned.

The resulting graph takes the captured one's inputs and returns its results and gradients; neither results nor values
written to inputs depend on tangents.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from smelt.errors import ArtifactError
from smelt.graph.graph_passes import eliminate_common
from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.ops.may_raise import must_run
from smelt.report.edited_graphs import graph_of
from smelt.report.edited_sources import parsed
from smelt.tracing.backward.joint import Joint


def joint_of(path: Path, joint: Joint) -> Joint:
    """The joint graph of the file's `forward`, to partition instead of `joint`.

    Raises ArtifactError if it cannot replace `joint`, with the file and the expectation.
    """
    graph = graph_of(path, joint.graph, gradients=joint.n_forward, cse=False)
    tangents = _from_tangents(graph, joint)
    _check_forward(path, graph, joint, tangents)
    backward = _backward_nodes(path, graph, joint, tangents)
    eliminate_common(graph, among=backward)
    return replace(joint, graph=graph, backward=frozenset(backward.intersection(graph.nodes)))


def _from_tangents(graph: Graph, joint: Joint) -> set[Node]:
    """Tangents and the values computed from them."""
    found = set(graph.placeholders[joint.n_primals :])
    for node in graph.nodes[:-1]:
        if not found.isdisjoint(argument_nodes(node)):
            found.add(node)
    return found


def _results(graph: Graph, joint: Joint) -> Iterator[tuple[str, Node]]:
    """Values that only the forward may compute, with their names."""
    for i, node in enumerate(graph.output.args[0][: joint.n_forward]):
        if node is not None:
            yield f"result {i} of forward", node
    for node in graph:
        if node.target is torch.ops.aten.copy_.default:
            yield f"the value written to {node.args[0]}", node


def _check_forward(path: Path, graph: Graph, joint: Joint, tangents: set[Node]) -> None:
    for what, node in _results(graph, joint):
        if node in tangents:
            line = "" if node.line is None else f":{node.line.line}"
            raise ArtifactError(
                f"{path}{line}: {what} is computed from tangents, which exist only after the forward"
            )


def _backward_nodes(path: Path, graph: Graph, joint: Joint, tangents: set[Node]) -> set[Node]:
    """The nodes of the backward: those that depend on tangents, and those that only such nodes and gradients read.
    Unedited statements stay in the forward or backward."""
    was_backward = {node.name: node in joint.backward for node in joint.graph}
    statements = _statements(path)
    needed = {node for _, node in _results(graph, joint)}  # by the forward
    backward = tangents - set(graph.placeholders)
    for node in reversed(graph.nodes[:-1]):
        if node.op == "call_function" and node not in tangents:
            name = "" if node.line is None else statements.get(node.line.line, "")
            if node not in needed and was_backward.get(name, not must_run(node)):
                backward.add(node)
            else:
                needed.update(argument_nodes(node))
    return backward


def _statements(path: Path) -> dict[int, str]:
    """By line of the file, the name that a statement of `forward` assigns."""
    found: dict[int, str] = {}
    for function in parsed(path, path.read_text(encoding="utf-8")).body:
        if isinstance(function, ast.FunctionDef) and function.name == "forward":
            for statement in function.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=name)]):
                        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
                        found |= {line: found.get(line, name) for line in lines}
    return found
