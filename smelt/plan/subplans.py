"""Plans of subgraphs: the argument of `smelt::run_graphs` after its graphs are compiled.

Constants of the subgraphs become constants of the graph around them, and inputs of the inner plans. So only the outer plan
has constants, which serialization stores and `update_weights` replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, TensorSpec, free_name
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import RUN_GRAPHS, Inner, Rule
from smelt.graph.tensor_specs import spec_of
from smelt.plan.steps import Plan, Subplan


@dataclass(frozen=True)
class Subplans:
    """What a handle of `run_graphs` stands for in a graph that is being compiled. `layouts`: of all operands, constants
    included."""

    rule: Rule
    plans: tuple[Subplan, ...]
    layouts: tuple[TensorSpec, ...]


def with_subplans(graph: Graph, make_plan: Callable[[Graph], Plan]) -> Graph:
    """`graph` with plans, which `make_plan` returns, in place of its subgraphs."""
    if not any(node.target is RUN_GRAPHS for node in graph):
        return graph
    made, _ = graph_passes.copied(graph.nodes, graph.constants)
    taken = {node.name for node in made} | made.constants.keys()
    added: dict[int, Node] = {}

    def node_of(constant: torch.Tensor) -> Node:
        if id(constant) not in added:
            name = free_name("inner", taken)
            made.constants[name] = constant
            spec = spec_of(constant, constant.device)
            added[id(constant)] = Node("get_attr", name, (), {}, name, spec)
        return added[id(constant)]

    for node in made:
        if node.target is RUN_GRAPHS:
            handle, tensors = node.args
            subplans, constants = _planned(handle.inner, make_plan)
            node.args = Handle.of(subplans), [*tensors, *map(node_of, constants)]
    at = len(made.placeholders)
    made.nodes[at:at] = added.values()
    return made


def _planned(inner: Inner, make_plan: Callable[[Graph], Plan]) -> tuple[Subplans, Sequence[torch.Tensor]]:
    """The plans of subgraphs, and the constants that follow the operands."""
    operands = tuple(p.spec for p in inner.graphs[0].placeholders)
    constants: dict[int, torch.Tensor] = {}
    subplans = []
    for plan in map(make_plan, inner.graphs):
        constants |= {id(c): c for c in plan.constants}
        order = list(constants)
        takes = (*range(len(operands)), *(len(operands) + order.index(id(c)) for c in plan.constants))
        subplans.append(Subplan(replace(plan, n_inputs=len(takes), constants=()), takes))
    found = list(constants.values())
    layouts = (*operands, *(spec_of(c, c.device) for c in found))
    return Subplans(inner.rule, tuple(subplans), layouts), found
