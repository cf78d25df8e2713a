"""Which operators must run although nobody reads their result: an error is an effect, too.

An operator raises, where it does, for the values that it reads: an index out of range, a division of integers by zero, a
matrix without an inverse. Its row says so (`raises`); of an operator without a row nobody knows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

from smelt.graph.effects import effects, is_effectful
from smelt.graph.ir import Node, argument_nodes
from smelt.ops.registry import REGISTRY, row

# Operators of these that have no row compute element by element, or are views or smelt's own.
_KNOWN = frozenset({"prims", "prim", "smelt"})


def may_raise(node: Node) -> bool:
    """Whether an aten node may raise at a call because of the values that it reads then."""
    if not isinstance(node.target, OpOverload):
        return False
    if REGISTRY.module(node.target) is None:
        return _is_unknown(node.target) and bool(argument_nodes(node))
    raises = row(node.target).raises
    return raises if isinstance(raises, bool) else raises(node)


@cache
def _is_unknown(op: OpOverload) -> bool:
    """Whether it is not even known what an operator without a row does with what it reads."""
    return op.namespace not in _KNOWN and torch.Tag.pointwise not in op.tags and not effects(op).view


def must_run(node: Node) -> bool:
    """Whether an aten node must stay although nobody reads its result: it writes, draws random numbers or may raise."""
    return is_effectful(node.target) or may_raise(node)
