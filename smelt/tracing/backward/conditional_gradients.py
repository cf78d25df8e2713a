"""Gradients that only one branch of a condition gives: undefined in eager if the other branch ran, not zero.

    gradient  = defined_if(value, condition)   # recorded by a branch's backward; the value is zero if undefined
    condition = disjunction of conjunctions of flags of the forward

A sum of a defined and an undefined gradient is the defined one. An operator of the backward passes "undefined" on, while it
may make NaN of a zero; so an operand that may be undefined where the result is defined is masked first. The joint graph
returns the condition of each gradient as an output of the forward: the autograd node omits the edges of gradients that are
undefined, so the engine runs what eager's would.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from smelt.graph import graph_passes
from smelt.graph.ir import Graph, Node, argument_nodes, map_nodes
from smelt.graph.symbolic_strides import is_dense
from smelt.torch_private import OpOverload
from smelt.tracing.backward.not_differentiable import refuse

_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("defined_if(Tensor gradient, Tensor condition) -> Tensor")
_library.impl("defined_if", lambda gradient, condition: gradient.clone(), "CompositeExplicitAutograd")
DEFINED_IF: OpOverload = torch.ops.smelt.defined_if.default
_AND, _OR = torch.ops.aten.logical_and.default, torch.ops.aten.logical_or.default
_MASKED = torch.ops.aten.where.ScalarOther

_Condition = frozenset[frozenset[Node]]
_ALWAYS: _Condition = frozenset((frozenset(),))
_MOST_TERMS = 64


@dataclass(frozen=True)
class Resolved:
    """The gradients of a graph without `defined_if`. `conditions`: for each the flag that decides whether it is defined, or
    None for one that always is. `masks`: new nodes of the backward."""

    gradients: list[Node | None]
    conditions: list[Node | None]
    masks: frozenset[Node] = frozenset()


def resolve(graph: Graph, tangents: Sequence[Node], gradients: Sequence[Node | None]) -> Resolved:
    """Remove the `defined_if` nodes of a joint graph without placeholders and output. Raises NotDifferentiable where a
    gradient is defined for some tangents only."""
    marks = [node for node in graph.nodes if node.target is DEFINED_IF]
    if not marks:
        return Resolved([*gradients], [None] * len(gradients))
    defined = _definedness(graph, tangents)
    flags = _Flags()
    masks = _mask_operands(graph, defined, flags)
    conditions = [None if g is None else flags.of(_condition(defined.get(g, {}))) for g in gradients]
    first = next(i for i, node in enumerate(graph.nodes) if node in defined)
    graph.nodes[first:first] = flags.nodes
    values: dict[Node, Node] = {}
    for mark in marks:
        values[mark] = values.get(mark.args[0], mark.args[0])
    graph_passes.substitute(graph, values)
    return Resolved([None if g is None else values.get(g, g) for g in gradients], conditions, masks)


_Definedness = dict[
    int, _Condition
]  # by the tangents that a value is computed from: when it is defined for these


def _definedness(graph: Graph, tangents: Sequence[Node]) -> dict[Node, _Definedness]:
    """For each node that depends on tangents. A value is defined if one of those that it is computed from is."""
    found: dict[Node, _Definedness] = {node: {k: _ALWAYS} for k, node in enumerate(tangents)}
    for node in graph.nodes:
        read = [found[a] for a in argument_nodes(node) if a in found]
        if not read and node.target is DEFINED_IF:
            raise refuse("a gradient that one branch gives, and that depends on no other")
        if read:
            here = {
                k: _any(each[k] for each in read if k in each) for k in {k for each in read for k in each}
            }
            flag = {node.args[1]} if node.target is DEFINED_IF else set[Node]()
            found[node] = {k: frozenset(term | flag for term in condition) for k, condition in here.items()}
    return found


def _any(conditions: Iterable[_Condition]) -> _Condition:
    """The condition that one of these holds."""
    terms = frozenset[frozenset[Node]]().union(*conditions)
    if len(terms) > _MOST_TERMS:
        raise refuse("a gradient that many conditions decide")
    return frozenset(term for term in terms if not any(other < term for other in terms))


def _condition(defined: _Definedness) -> _Condition:
    """The condition of a value, which is the same for all tangents."""
    conditions = {*defined.values()} or {_ALWAYS}
    if len(conditions) > 1:
        raise refuse("a gradient that one branch gives for one of several results")
    return conditions.pop()


def _mask_operands(graph: Graph, defined: dict[Node, _Definedness], flags: _Flags) -> frozenset[Node]:
    """Mask each operand that may be undefined where the result of its node is defined; return the masks."""
    masks: dict[Node, Node] = {}

    def operand(argument: Node, user: Node) -> Node:
        here = defined.get(argument, {})
        is_zero = argument.target is DEFINED_IF  # where it is undefined
        if is_zero or all(condition == defined[user][k] for k, condition in here.items()):
            return argument
        if argument not in masks:
            spec = replace(argument.spec, offset=0)
            if not is_dense(spec.shape, spec.stride):
                raise refuse("a gradient with gaps, which one branch gives")
            args, name = (flags.of(_condition(here)), argument, 0), f"{argument.name}_if_defined"
            masks[argument] = Node(
                "call_function", _MASKED, args, {}, name, spec, argument.line, argument.source
            )
            nodes.append(masks[argument])
        return masks[argument]

    nodes: list[Node] = []
    for node in graph.nodes:
        if node in defined and node.target is not DEFINED_IF:
            read = functools.partial(operand, user=node)
            node.args, node.kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read)
        nodes.append(node)
    graph.nodes[:] = nodes
    return frozenset(masks.values())


class _Flags:
    """The `nodes` that compute conditions from flags."""

    def __init__(self) -> None:
        self._found: dict[tuple[OpOverload, Node, Node], Node] = {}

    @property
    def nodes(self) -> list[Node]:
        return [*self._found.values()]

    def of(self, condition: _Condition) -> Node | None:
        """The flag of a condition; None if it always holds."""
        if condition == _ALWAYS:
            return None
        terms = [self._joined(_AND, sorted(term, key=str)) for term in condition]
        return self._joined(_OR, sorted(terms, key=str))

    def _joined(self, op: OpOverload, flags: Sequence[Node]) -> Node:
        return functools.reduce(functools.partial(self._pair, op), flags)

    def _pair(self, op: OpOverload, a: Node, b: Node) -> Node:
        if (op, a, b) not in self._found:
            name = f"condition_of_gradients_{len(self._found) + 1}"
            self._found[op, a, b] = Node("call_function", op, (a, b), {}, name, a.spec)
        return self._found[op, a, b]
