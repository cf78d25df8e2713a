"""Operators that must run although their result is unused: an error is an effect.

An operator may raise because of the values it reads: an index out of range, an integer division by zero, a singular
matrix. Its row says so (`raises`); an operator without a row is assumed to.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from smelt.graph.ir import Node, NumberSpec, argument_nodes
from smelt.graph.operator_effects import effects, is_effectful
from smelt.graph.unbacked_sizes import unbacked_sizes_of
from smelt.ops.registry import REGISTRY, row
from smelt.shapes.expr import Expr
from smelt.torch_private import OpOverload

# Operators of these that have no row compute element by element, or are views or smelt's own.
_KNOWN = frozenset({"prims", "prim", "smelt"})


def may_raise(node: Node) -> bool:
    """Whether an aten node may raise at a call because of the values that it reads."""
    if not isinstance(node.target, OpOverload):
        return False
    if REGISTRY.module(node.target) is None:
        return _is_unknown(node.target) and bool(argument_nodes(node))
    raises = row(node.target).raises
    if not (raises if isinstance(raises, bool) else raises(node)):
        return any(numbers_to_fit(node, node.args, node.kwargs))
    return True


def numbers_to_fit(
    node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, torch.dtype]]:
    """The numbers that a call or its sizes pass to a node and that may not fit the dtype to which they are converted,
    with that dtype. `args` and `kwargs`: the node's, or their lowered forms."""
    found = row(node.target)
    does = effects(node.target)
    for name in found.fits.split():
        number = does.argument(name, node.args, node.kwargs) if name in does.names else None
        is_number = isinstance(number, Node) and isinstance(number.spec, NumberSpec)
        if is_number or isinstance(number, Expr):
            dtype = found.fits_in(node.spec.dtype, node.spec.device)
            if dtype not in ((torch.float64, torch.bool) if is_number else _HOLD_SIZES):
                yield does.argument(name, args, kwargs), dtype


_HOLD_SIZES = (torch.float64, torch.float32, torch.bool, torch.int64)


def unless_half(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that a number must fit if ATen makes a tensor of one element: on a CPU it does not check half
    precision (native/TensorFactories.cpp, `scalar_tensor`)."""
    halves = (torch.bfloat16, torch.float16) if device.type == "cpu" else ()
    return torch.float64 if dtype in halves else dtype


@cache
def _is_unknown(op: OpOverload) -> bool:
    """Whether nothing is known of an operator without a row."""
    return op.namespace not in _KNOWN and torch.Tag.pointwise not in op.tags and not effects(op).view


def must_run(node: Node) -> bool:
    """Whether an unused aten node must stay: it writes, draws random numbers, may raise or defines a size."""
    return is_effectful(node.target) or may_raise(node) or bool(unbacked_sizes_of(node))
