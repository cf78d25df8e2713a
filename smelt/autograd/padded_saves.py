"""Padded products (`rewrites/aligned_gemm.py`) are saved with their padding: a copy of the valid part would take
memory and time, and the backward's kernels read the padded matrix as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.autograd.partition import Partition, Saved
from smelt.cost_model import Costs
from smelt.graph.ir import Graph, Node, TensorSpec, free_name, map_nodes
from smelt.rewrites.aligned_gemm import align_products
from smelt.shapes.expr import numel, static


def save_padded_results(parts: Partition, costs: Costs) -> Partition:
    """`parts` with the forward's products aligned where that pays; temporaries that are results of such products are
    saved with their padding."""
    temporaries = [i for i, s in enumerate(parts.saved) if s.kind == "temporary"]
    n_outputs = len(parts.forward.output.args[0]) - len(temporaries)
    aligned = align_products(parts.forward, costs, n_outputs)
    slices = {i: aligned.wider.get(n_outputs + parts.saved[i].index) for i in temporaries}
    wider = {i: nodes for i, nodes in slices.items() if nodes is not None}
    saved = tuple(_with_padding(s, wider[i]) if i in wider else s for i, s in enumerate(parts.saved))
    return Partition(aligned.graph, _reading_padded(parts.backward, wider), saved)


def _with_padding(saved: Saved, slices: Sequence[Node]) -> Saved:
    spec: TensorSpec = slices[0].args[0].spec
    return replace(saved, spec=spec, nbytes=static(numel(spec.shape)) * spec.dtype.itemsize)


def _reading_padded(backward: Graph, wider: Mapping[int, Sequence[Node]]) -> Graph:
    """`backward` with padded matrices as the placeholders in `wider`, followed by the slices that restore the former
    values."""
    if not wider:
        return backward
    graph = Graph("aten")
    graph.constants = dict(backward.constants)
    names = {node.name for node in backward}
    current: dict[Node, Node] = {}
    added: list[Node] = []
    for index, node in enumerate(backward.placeholders):
        placeholder = current[node] = replace(node)
        graph.nodes.append(placeholder)
        if index in wider:
            first, *_ = wider[index]
            placeholder.spec = first.args[0].spec
            read = {first.args[0]: placeholder}
            for step in wider[index]:
                name = free_name(f"{node.name}_part", names)
                read[step] = replace(step, args=map_nodes(step.args, read.__getitem__), name=name)
                added.append(read[step])
            current[node] = added[-1]
    graph.nodes += added
    for node in backward.nodes[len(backward.placeholders) :]:
        args, kwargs = (map_nodes(x, current.__getitem__) for x in (node.args, node.kwargs))
        current[node] = replace(node, args=args, kwargs=kwargs)
        graph.nodes.append(current[node])
    return graph
