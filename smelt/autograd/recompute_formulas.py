"""Other ways to compute what the backward needs, which the cut may choose.

* A *formula* computes a value of the forward from other values: the result of a normalization from its input and the
  saved statistics. The normalization need not run again, and its result need not be saved.
* A *replacement* is another operator for one of the backward that reads less: a mask of one byte per element instead
  of the input of an activation, or nothing where only the shape of an argument matters.

Nodes created here refer to nodes of the joint graph and are not part of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.ops.linearity import is_linear
from smelt.ops.node_builders import CLONE, FULL, converted, uninitialized
from smelt.ops.registry import row
from smelt.rewrites.graph_rewriter import NodeBuilder

aten = torch.ops.aten

BackwardOnly = Container[Node]  # nodes that depend on tangents


@dataclass(frozen=True)
class Formula:
    """`nodes` in order; the last has the name and the value of the node that it stands for."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Provision:
    """What the forward computes with an operator for the backward alone: `state`, in order; its `saved` nodes are
    inputs of the backward, and `why` they are not recomputed. `formulas`: how values follow from them, each by those
    before."""

    state: tuple[Node, ...]
    saved: tuple[Node, ...]
    formulas: dict[Node, Formula]
    why: str


@dataclass(frozen=True)
class Replacement:
    """`node` replaces an operator of the backward and does not read the values `spared`.

    `masks`: in order; `node` reads the last one instead, and replaces the operator if that one is saved. Without
    masks, it does if the spared values are not available anyway, or `always`. `extras` are created just before `node`.
    """

    node: Node
    spared: tuple[Node, ...]
    masks: tuple[Node, ...] = ()
    extras: tuple[Node, ...] = ()
    always: bool = False


def replaces(new: Node, old: Node, make: NodeBuilder) -> bool:
    """Give `new` the name of `old` and return True; False if the layout or precision would differ."""
    if layout(new.spec) != layout(old.spec):
        return False
    make.rename(new, old.name)
    return True


def formula_from(make: NodeBuilder, result: Node, value: Node) -> Formula | None:
    """The nodes of `make` as a formula of `value`, which `result` replaces; None if it may not."""
    return Formula(tuple(make.nodes)) if replaces(result, value, make) else None


def layout(spec: TensorSpec) -> Any:
    """The properties that a value shares with one that replaces it."""
    return spec.shape, spec.stride, spec.dtype


# ---- formulas

_Items = dict[int, Node]  # result index of an operator -> its `getitem` node


def formula(value: Node, items: _Items, make: NodeBuilder) -> Formula | None:
    """How `value`, the first of the results `items` of an operator, follows from the others. None if there is no
    formula, or if its layout or precision would differ."""
    call: Node = value.args[0]
    rule = row(call.target).from_statistics
    if rule is None or value.args[1] != 0:
        return None
    by_name = arguments(call)
    if not _precise(by_name["input"].spec, items):
        return None
    make.begin(value)
    result = rule(make, by_name, items)
    if result is None:
        return None
    result = converted(make, result, value.spec.dtype)
    if layout(result.spec) != layout(value.spec):  # pointwise operators keep a permuted layout
        result = make(CLONE, result, memory_format=torch.contiguous_format)
    return formula_from(make, result, value)


def arguments(call: Node) -> dict[str, Any]:
    """The arguments of a call by name, without defaults."""
    names = (a.name for a in call.target._schema.arguments)
    return {**dict(zip(names, call.args)), **call.kwargs}


def _precise(spec: TensorSpec, items: _Items) -> bool:
    """Whether statistics have the precision of their computation: not rounded to a half-precision type."""
    wide = (torch.float32, torch.float64)
    statistics = [n.spec.dtype for i, n in items.items() if i in (1, 2)]
    return spec.dtype.is_floating_point and all(d in wide for d in statistics)


# ---- replacements


def replacement(node: Node, make: NodeBuilder, backward_only: BackwardOnly) -> Replacement | None:
    """The replacement for an operator of the backward, or None. `backward_only`: nodes that depend on tangents."""
    make.begin(node)
    known = row(node.target)
    if known.unread is not None:
        return _without_unread(node, known.unread(*node.args))
    if known.filled is not None:
        return _filled(node, known.filled(*node.args), make, backward_only)
    if known.reads_shape_only:
        return _without_values(node, 1, make)
    return None if known.zero_where is None else _masked(node, known.zero_where, make)


def _without_unread(node: Node, unread: Sequence[int]) -> Replacement | None:
    """The operator without optional arguments that it does not read, such as a batch norm's running statistics, which
    the next forward may write before this backward runs."""
    declared = node.target._schema.arguments
    positions = [i for i in unread if isinstance(declared[i].type, torch.OptionalType)]
    spared = tuple(a for i in positions if isinstance(a := node.args[i], Node))
    args = tuple(None if i in positions else a for i, a in enumerate(node.args))
    return Replacement(replace(node, args=args), spared, always=True) if positions else None


def _filled(node: Node, number: Any, make: NodeBuilder, backward_only: BackwardOnly) -> Replacement | None:
    """A constant result (`zeros_like`) reads no other tensor; but zeros that depend on a tangent are created from that
    tangent, because they are no gradient where it is undefined."""
    spared = tuple(a for a in node.args if isinstance(a, Node) and isinstance(a.spec, TensorSpec))
    if not spared or node.target._schema.is_mutable or not isinstance(number, (bool, int, float)):
        return None
    size, options = list(node.spec.shape), {"dtype": node.spec.dtype, "device": node.spec.device}
    if row(node.target).linear and any(a in backward_only for a in spared):
        tangent = _only_tangent(spared, backward_only)
        if tangent is None or tangent in spared:
            return None
        new = make(aten.new_zeros.default, tangent, size, **options)
    else:
        new = make(FULL, size, number, **options)
    return Replacement(new, spared, always=True) if replaces(new, node, make) else None


def _only_tangent(values: Iterable[Node], backward_only: BackwardOnly) -> Node | None:
    """The one tangent with which all of `values` are undefined; None if there are several, or one in which they are
    not linear."""
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [v for v in values if v in backward_only]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            found.add(node)
        elif not is_linear(node, backward_only):
            return None
        else:
            stack += [a for a in argument_nodes(node) if a in backward_only]
    return found.pop() if len(found) == 1 else None


def _without_values(node: Node, index: int, make: NodeBuilder) -> Replacement | None:
    argument = node.args[index]
    if node.args.count(argument) != 1 or not isinstance(argument, Node):
        return None
    empty = uninitialized(make, argument.spec)
    args = (*node.args[:index], empty, *node.args[index + 1 :])
    return Replacement(replace(node, args=args), (argument,), extras=(empty,))


def _masked(node: Node, rule: Callable[..., Node], make: NodeBuilder) -> Replacement | None:
    gradient, value, *rest = node.args
    if not isinstance(value, Node) or value is gradient:
        return None
    mask = rule(make, value, *rest)
    masks = tuple(make.nodes)
    new = make(aten.where.ScalarSelf, mask, 0, gradient)
    return Replacement(new, (value,), masks) if replaces(new, node, make) else None


def items_of(nodes: Iterable[Node]) -> dict[Node, _Items]:
    """Operators with several results -> the `getitem` node of each result."""
    found: dict[Node, _Items] = {}
    for node in nodes:
        if node.target is operator.getitem:
            found.setdefault(node.args[0], {})[node.args[1]] = node
    return found
