"""Plans of subgraphs: the argument of `smelt::run_graphs` after its graphs are compiled.

Constants of the subgraphs become constants of the graph around them, and inputs of the inner plans. So only the outer plan
has constants, which serialization stores and `update_weights` replaces. Numbers become operands like tensors.

A subgraph with symbolic sizes has a template over the symbols of the graph around it, whose plan is built with that
graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, NumberSpec, TensorSpec, free_name
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import RUNS, Inner, Rule
from smelt.graph.tensor_specs import spec_of
from smelt.plan.size_decisions import Decisions
from smelt.plan.steps import CPU, Plan, Subplan


class PlanTemplate(Protocol):
    """A plan with symbolic sizes (`plan/plan_template.py`)."""

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """The constants of each of its plans."""

    def within(self, decisions: Decisions) -> Subplan:
        """Its plan within one with these decisions; `takes` is empty."""


@dataclass(frozen=True)
class Subplans:
    """What a handle of `run_graphs` stands for in a graph that is being compiled. `plans`: each with its inputs, as
    positions in the operands. `layouts`: of all operands, constants included."""

    rule: Rule
    plans: tuple[tuple[Plan | PlanTemplate, tuple[int, ...]], ...]
    layouts: tuple[TensorSpec, ...]

    def within(self, decisions: Decisions) -> tuple[Subplan, ...]:
        """The plans within one with these decisions."""
        return tuple(_subplan(plan, takes, decisions) for plan, takes in self.plans)


def _subplan(plan: Plan | PlanTemplate, takes: tuple[int, ...], decisions: Decisions) -> Subplan:
    made = Subplan(plan, ()) if isinstance(plan, Plan) else plan.within(decisions)
    bare = replace(made.plan, n_inputs=len(takes), constants=())
    return replace(made, plan=bare, takes=takes)


def with_subplans(graph: Graph, make_plan: Callable[[Graph], Plan | PlanTemplate]) -> Graph:
    """`graph` with plans, which `make_plan` returns, in place of its subgraphs."""
    if not any(node.target in RUNS for node in graph):
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
        if node.target in RUNS:
            handle, tensors, *rest = node.args
            numbers = rest[0] if rest else []
            inner = _with_known_numbers(handle.inner, len(tensors), numbers)
            subplans, constants = _planned(inner, make_plan)
            unknown = [n for n in numbers if isinstance(n, Node)]
            node.args = Handle.of(subplans), [*tensors, *unknown, *map(node_of, constants)]
    at = len(made.placeholders)
    made.nodes[at:at] = added.values()
    return made


def _with_known_numbers(inner: Inner, n_tensors: int, numbers: Sequence[Any]) -> Inner:
    """`inner` with the numbers that are no nodes in place of its inputs: they were specialized after it was recorded."""
    if all(isinstance(n, Node) for n in numbers):
        return inner
    first = n_tensors - inner.rule.n_own

    def folded(graph: Graph) -> Graph:
        inputs = graph.placeholders[first : first + len(numbers)]
        made, copy_of = graph_passes.copied(graph.nodes, graph.constants)
        pairs = zip(inputs, numbers, strict=True)
        known = {copy_of[p]: n for p, n in pairs if not isinstance(n, Node)}
        graph_passes.substitute(made, known)
        return made

    return Inner(inner.rule, [folded(graph) for graph in inner.graphs], inner.held)


def _planned(
    inner: Inner, make_plan: Callable[[Graph], Plan | PlanTemplate]
) -> tuple[Subplans, Sequence[torch.Tensor]]:
    """The plans of subgraphs, and the constants that follow the operands."""
    held = inner.held[0]
    placeholders = inner.graphs[0].placeholders
    operands = tuple(map(_layout, placeholders[: len(placeholders) - len(held)]))
    constants: dict[int, torch.Tensor] = {}
    plans = []
    for plan, held in zip(map(make_plan, inner.graphs), inner.held):
        constants |= {id(c): c for c in plan.constants}
        order = list(constants)
        positions = (len(operands) + order.index(id(c)) for c in plan.constants)
        plans.append((plan, (*range(len(operands)), *held, *positions)))
    found = list(constants.values())
    layouts = (*operands, *(spec_of(c, c.device) for c in found))
    return Subplans(inner.rule, tuple(plans), layouts), found


def _layout(placeholder: Node) -> TensorSpec:
    """The layout of an operand; a number is held as a 0-d tensor."""
    spec = placeholder.spec
    return TensorSpec((), (), spec.dtype, CPU) if isinstance(spec, NumberSpec) else spec
