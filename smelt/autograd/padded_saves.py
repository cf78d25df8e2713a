"""What a product gave in a larger matrix (`rewrites/aligned_gemm.py`) is saved as such: a copy of the part that counts would
take memory and time, and the backward's kernels read it there as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.autograd.partition import Partition, Saved
from smelt.cost_model import Costs
from smelt.graph.ir import Graph, Node, TensorSpec, free_name, map_nodes
from smelt.rewrites.aligned_gemm import align_products
from smelt.shapes.expr import numel, static


def save_padded_results(parts: Partition, costs: Costs) -> Partition:
    """`parts` with the forward's products aligned where that pays; temporaries that are results of such are saved whole."""
    temporaries = [i for i, s in enumerate(parts.saved) if s.kind == "temporary"]
    n_outputs = len(parts.forward.output.args[0]) - len(temporaries)
    aligned = align_products(parts.forward, costs, n_outputs)
    made_of = {i: aligned.wider.get(n_outputs + parts.saved[i].index) for i in temporaries}
    wider = {i: nodes for i, nodes in made_of.items() if nodes is not None}
    saved = tuple(_saved(s, wider[i]) if i in wider else s for i, s in enumerate(parts.saved))
    return Partition(aligned.graph, _reading(parts.backward, wider), saved)


def _saved(saved: Saved, made_of: Sequence[Node]) -> Saved:
    spec: TensorSpec = made_of[0].args[0].spec
    return replace(saved, spec=spec, nbytes=static(numel(spec.shape)) * spec.dtype.itemsize)


def _reading(backward: Graph, wider: Mapping[int, Sequence[Node]]) -> Graph:
    """`backward` whose placeholders named in `wider` are larger matrices, of which the nodes make what they were."""
    if not wider:
        return backward
    made = Graph("aten")
    made.constants = dict(backward.constants)
    names = {node.name for node in backward}
    now: dict[Node, Node] = {}
    added: list[Node] = []
    for place, node in enumerate(backward.placeholders):
        given = now[node] = replace(node)
        made.nodes.append(given)
        if place in wider:
            first, *_ = wider[place]
            given.spec = first.args[0].spec
            read = {first.args[0]: given}
            for step in wider[place]:
                name = free_name(f"{node.name}_part", names)
                read[step] = replace(step, args=map_nodes(step.args, read.__getitem__), name=name)
                added.append(read[step])
            now[node] = added[-1]
    made.nodes += added
    for node in backward.nodes[len(backward.placeholders) :]:
        args, kwargs = (map_nodes(x, now.__getitem__) for x in (node.args, node.kwargs))
        now[node] = replace(node, args=args, kwargs=kwargs)
        made.nodes.append(now[node])
    return made
