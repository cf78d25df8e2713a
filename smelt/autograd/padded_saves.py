"""Padded products (`rewrites/aligned_gemm.py`) are saved with their padding: a copy of the valid part would take
memory and time, and the backward's kernels read the padded matrix as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.autograd.partition import Partition, Saved
from smelt.cost_model import Costs
from smelt.graph.ir import Graph, Node, TensorSpec, map_nodes
from smelt.rewrites.aligned_gemm import align_products
from smelt.rewrites.graph_rewriter import GraphRewriter
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
    writer = GraphRewriter(backward, "part")
    padded = {node: wider[i] for i, node in enumerate(backward.placeholders) if i in wider}
    for node in backward.placeholders:
        writer.write(node, spec=padded[node][0].args[0].spec if node in padded else node.spec)
    for node, steps in padded.items():
        read = {steps[0].args[0]: writer.env[node]}
        for step in steps:
            name, args = writer.name(f"{node.name}_part"), map_nodes(step.args, read.__getitem__)
            read[step] = writer.append(replace(step, args=args, name=name))
        writer.env[node] = read[steps[-1]]
    for node in backward.nodes[len(backward.placeholders) :]:
        writer.copy(node)
    return writer.finish().graph
