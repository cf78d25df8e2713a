"""Substitution of concrete or other sizes for the symbols of a trace: the trace that these sizes would have
produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.graph.ir import Node, copy_at
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitute
from smelt.tracing.backward.joint import Joint
from smelt.tracing.backward.torch_level_index import in_copied_graph
from smelt.tracing.record.traced import Traced


def traced_at(traced: Traced, values: Mapping[Sym, Size]) -> Traced:
    """The trace with `values` (sizes or other symbols) in place of symbols. Parts that are not compiled stay: fakes,
    the aten graph if there is a joint graph, the torch-level graph if there is none."""
    if traced.joint is None:
        return replace(traced, aten_graph=substitute(traced.aten_graph, values), sizes={})
    torch_graph, torch_nodes = copy_at(traced.torch_graph, values)
    joint = _joint_at(traced.joint, values, torch_nodes)
    return replace(traced, torch_graph=torch_graph, joint=joint, sizes={})


def within_bounds(traced: Traced) -> Traced:
    """The trace with symbols that carry the range required of their sizes, and this call's value as the likely one."""
    symbols = {}
    for sym, source in traced.sizes.items():
        low, high = source.bounds
        least = max(sym.lo, low)
        least = 1 if source.may_be_one and least == 2 else least
        symbols[sym] = Sym(sym.name, least, min(sym.hi, high), likely=source.hint)
    sizes = {symbols[sym]: source for sym, source in traced.sizes.items()}
    return replace(traced_at(traced, symbols), sizes=sizes)


def _joint_at(joint: Joint, values: Mapping[Sym, Size], torch_nodes: Mapping[Node, Node]) -> Joint:
    graph, copy_of = copy_at(joint.graph, values)
    return replace(
        sources_at(joint, values),
        graph=graph,
        backward=frozenset(copy_of[node] for node in joint.backward if node in copy_of),
        torch_level_tensors=tuple(t and in_copied_graph(t, torch_nodes) for t in joint.torch_level_tensors),
    )


def sources_at(joint: Joint, values: Mapping[Sym, Size]) -> Joint:
    """The joint graph with the output sources and epilogue for these sizes."""
    results, epilogue = substitute((joint.results, joint.epilogue), values)
    unchanged = results is joint.results and epilogue is joint.epilogue
    return joint if unchanged else replace(joint, results=results, epilogue=epilogue)
