"""The joint graph: forward and backward of one trace as one functional aten graph."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.graph.ir import Graph, Node


@dataclass(frozen=True)
class Joint:
    """`graph` takes `primals_1..` (the tensors and numbers of the trace) and `tangents_1..`, and gives the forward's
    outputs, then the gradients (None where there is none).

    It is functional but for `copy_` nodes that write primals; those belong to the forward.
    """

    graph: Graph
    n_primals: int
    n_outputs: int
    tangents: tuple[int, ...]  # tangents[k]: the forward output that tangent k belongs to
    gradients: tuple[int, ...]  # gradients[k]: the primal that gradient k belongs to
    backward: frozenset[Node]  # recorded by the backward; all others must run in the forward
    eager_saved: frozenset[Node]  # forward nodes (primals included) that eager's backward reads
