"""Substitution of sizes in traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.graph.ir import Node, copy_at
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.torch_level_index import place_at
from smelt.tracing.record.traced import Traced


def traced_at(traced: Traced, values: Mapping[Sym, Size]) -> Traced:
    """The trace for these sizes, numbers or other symbols. What no backend compiles stays as it is: fakes, the aten graph
    of a trace with a joint graph, and the torch-level graph of one without."""
    if traced.joint is None:
        return replace(traced, aten_graph=substitute(traced.aten_graph, values), sizes={})
    torch_graph, torch_nodes = copy_at(traced.torch_graph, values)
    joint = _joint_at(traced.joint, values, torch_nodes)
    return replace(traced, torch_graph=torch_graph, joint=joint, sizes={})


def within_bounds(traced: Traced) -> Traced:
    """The trace with symbols that carry the guarded range of their sizes, and the sizes of this call as likely ones."""
    symbols = {}
    for sym, place in traced.sizes.items():
        low, high = place.bounds
        least = max(sym.lo, low)
        least = 1 if place.may_be_one and least == 2 else least
        symbols[sym] = Sym(sym.name, least, min(sym.hi, high), likely=place.hint)
    sizes = {symbols[sym]: place for sym, place in traced.sizes.items()}
    return replace(traced_at(traced, symbols), sizes=sizes)


def _joint_at(joint: Joint, values: Mapping[Sym, Size], torch_nodes: Mapping[Node, Node]) -> Joint:
    graph, copy_of = copy_at(joint.graph, values)
    return replace(
        sources_at(joint, values),
        graph=graph,
        backward=frozenset(copy_of[node] for node in joint.backward if node in copy_of),
        torch_places=tuple(place and place_at(place, torch_nodes) for place in joint.torch_places),
    )


def sources_at(joint: Joint, values: Mapping[Sym, Size]) -> Joint:
    """The joint graph with the sources of its results and mutations for these sizes."""
    results, taken = substitute((joint.results, joint.taken), values)
    unchanged = results is joint.results and taken is joint.taken
    return joint if unchanged else replace(joint, results=results, taken=taken)
