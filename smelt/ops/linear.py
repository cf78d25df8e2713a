"""In which of their arguments ATen operators are linear.

An operator that is linear in a set of arguments, taken together, gives zero where all of them are zero, and of a sum the
sum of what it gives. Gradients are linear in tangents operator by operator, except where a backward of the user's is not.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.graph.effects import Effects, effects
from smelt.graph.ir import Node, TensorSpec

aten = torch.ops.aten

# Sets of arguments -> operators whose result is zero if all arguments of one of the sets are (None and the number 0 count
# as zero, and a list whose tensors all are). Views and `*_backward` need no entry.
_SETS: dict[tuple[str, ...], str] = {
    ("self other",): "add sub rsub where",
    ("self", "other"): "mul dot vdot",
    ("self", "mat2"): "mm bmm",
    ("self", "vec"): "mv",
    ("self mat1", "self mat2"): "addmm",
    ("self batch1", "self batch2"): "baddbmm",
    ("self tensor1", "self tensor2"): "addcmul",
    ("self tensor1",): "addcdiv",
    ("self end",): "lerp",
    ("input bias", "weight bias"): "convolution",
    ("tensors",): "cat stack",
    ("self values",): "index_put _unsafe_index_put",
    ("self src",): "scatter_add slice_scatter select_scatter diagonal_scatter as_strided_scatter",
    ("self src", "self value"): "scatter",
    ("self source",): "index_add",
    ("self value",): "masked_fill constant_pad_nd",
    ("src",): "copy",
    ("weight",): "embedding",
    (
        "self",
    ): "neg sum mean div clone _to_copy cumsum flip roll index index_select gather tril triu repeat trace real "
    "imag _conj_physical _unsafe_view _reshape_copy view_copy channel_shuffle pixel_shuffle pixel_unshuffle im2col "
    "col2im zeros_like new_zeros",
}
LINEAR = {name: sets for sets, names in _SETS.items() for name in names.split()}

# What makes a tensor that holds one number: the argument that is that number; None if it is zero by name.
_CONSTANTS = {
    aten.scalar_tensor.default: 0,
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.zeros.default: None,
    aten.zeros_like.default: None,
    aten.new_zeros.default: None,
}


def linear_in(op: OpOverload, does: Effects) -> Iterable[tuple[str, ...]]:
    """Sets of arguments: where all of one set are zero, so are the results."""
    name = op._schema.name.split("::")[1]
    if op.namespace != "aten":
        return ()
    if does.view:
        return [(next(r.arg for r in does.results if r.kind == "view"),)]
    if name in LINEAR:
        sets = [tuple(names.split()) for names in LINEAR[name]]
        return [names for names in sets if set(names) <= set(does.names)]
    if "backward" in name and "double" not in name:
        gradients = [
            a.name for a in op._schema.arguments if a.name.startswith("grad") and "Tensor" in str(a.type)
        ]
        return [tuple(gradients)] if gradients else ()
    return ()


def is_zero_constant(node: Node) -> bool:
    """Whether it is zero whatever the tangents are: where a condition cuts gradients off, say."""
    if node.target not in _CONSTANTS:
        return False
    place = _CONSTANTS[node.target]
    return place is None or (isinstance(node.args[place], (int, float)) and node.args[place] == 0)


def is_linear(node: Node, depends: Container[Node]) -> bool:
    """Whether what a functional node gives is linear in those of its arguments that are in `depends`, as far as the table
    says. Conversions to whole numbers and divisions that round are not."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or not _keeps_sums(node):
        return False
    does = effects(node.target)
    given = {name: does.argument(name, node.args, node.kwargs) for name in does.names}
    varying = {name for name, value in given.items() if _any_in(value, depends)}
    return does.pure and any(
        varying <= set(names) and all(_all_in(given[n], depends) for n in names)
        for names in linear_in(node.target, does)
    )


def _keeps_sums(node: Node) -> bool:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    tensors = [s for s in specs if isinstance(s, TensorSpec)]
    rounds = node.kwargs.get("rounding_mode") or node.kwargs.get("reduce")
    return not rounds and all(s.dtype.is_floating_point or s.dtype.is_complex for s in tensors)


def _any_in(value: Any, depends: Container[Node]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_any_in(v, depends) for v in value)
    return isinstance(value, Node) and value in depends


def _all_in(value: Any, depends: Container[Node]) -> bool:
    """Whether an argument is linear, or zero."""
    if isinstance(value, (list, tuple)):
        return all(_all_in(v, depends) for v in value)
    return (value in depends or is_zero_constant(value)) if isinstance(value, Node) else not value
