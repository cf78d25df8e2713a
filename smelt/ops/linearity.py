"""The arguments in which ATen operators are linear.

An operator that is linear in a set of arguments, taken together, maps zeros to zero and sums to sums. Gradients are
linear in tangents operator by operator, unless a user's backward is not.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from typing import Any

from smelt.graph.graph_passes import base_of
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import Effects, effects
from smelt.graph.pytree import leaves
from smelt.ops.registry import row
from smelt.torch_private import OpOverload


def linear_in(op: OpOverload, does: Effects) -> Iterable[tuple[str, ...]]:
    """Sets of arguments: if all of one set are zero, so are the results."""
    name = op._schema.name.split("::")[1]
    if op.namespace != "aten":
        return ()
    if does.view:
        return [(next(r.arg for r in does.results if r.kind == "view"),)]
    if row(op).linear:
        sets = [tuple(names.split()) for names in row(op).linear]
        return [names for names in sets if set(names) <= set(does.names)]
    if "backward" in name and "double" not in name:
        gradients = [
            a.name for a in op._schema.arguments if a.name.startswith("grad") and "Tensor" in str(a.type)
        ]
        return [tuple(gradients)] if gradients else ()
    return ()


def is_zero_constant(node: Node) -> bool:
    """Whether the node's result is zero whatever the tangents are, such as where a condition cuts gradients off, or for the
    other parts of an `unbind`. A view of zeros is zero, as a functional graph writes none."""
    base = base_of(node)
    filled = row(base.target).filled
    if filled is None:
        return False
    number = filled(*base.args)
    return isinstance(number, (int, float)) and number == 0


def is_linear(node: Node, depends: Container[Node]) -> bool:
    """Whether a functional node's result is linear in its arguments in `depends`, as far as the table knows.
    Conversions to integers and divisions that round are not."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or not _keeps_sums(node):
        return False
    does = effects(node.target)
    arguments = {name: does.argument(name, node.args, node.kwargs) for name in does.names}
    varying = {name for name, value in arguments.items() if any(n in depends for n in leaves(value, Node))}
    return does.pure and any(
        varying <= set(names) and all(_all_in(arguments[n], depends) for n in names)
        for names in linear_in(node.target, does)
    )


def _keeps_sums(node: Node) -> bool:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    tensors = [s for s in specs if isinstance(s, TensorSpec)]
    rounds = node.kwargs.get("rounding_mode") or node.kwargs.get("reduce")
    return not rounds and all(s.dtype.is_floating_point or s.dtype.is_complex for s in tensors)


def _all_in(value: Any, depends: Container[Node]) -> bool:
    """Whether an argument is linear, or zero."""
    if isinstance(value, (list, tuple)):
        return all(_all_in(v, depends) for v in value)
    return (value in depends or is_zero_constant(value)) if isinstance(value, Node) else not value
