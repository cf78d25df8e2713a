"""Operators that nothing fuses with, and whose ATen kernel is faster than a generated one.

Generated code saves memory traffic where operators fuse. An operator whose operands are in memory and whose result only the
caller or ATen reads gains nothing from it, and for some functions ATen's libraries have better code (`Costs.alone`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from smelt.cost_model import Costs
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.pytree import leaves
from smelt.loops.lazy_tensor import Number, Stored, Tensor
from smelt.ops.registry import row
from smelt.shapes.expr import contiguous_stride, likely, numel
from smelt.torch_private import OpOverload

WHY = "nothing fuses with it, and ATen's kernel is faster than a generated one"


def readers(graph: Graph) -> Mapping[Node, Sequence[Node]]:
    """The nodes that read each node."""
    found: dict[Node, list[Node]] = defaultdict(list)
    for node in graph:
        for argument in argument_nodes(node):
            found[argument].append(node)
    return found


def is_better_alone(node: Node, arguments: Any, read_by: Sequence[Node], costs: Costs) -> bool:
    """Whether a node with these lowered arguments is left to ATen although it has a lowering."""
    if not costs.alone or not isinstance(node.target, OpOverload) or not isinstance(node.spec, TensorSpec):
        return False
    key = node.target._schema.name.removeprefix("aten::"), node.spec.dtype
    least = min((group.elements for group in costs.alone if key in group.operators), default=None)
    if least is None or likely(numel(node.spec.shape)) < least:
        return False
    holds = CONDITIONS.get(key[0])
    if holds is not None and not holds(*node.args, **node.kwargs):
        return False
    operands = leaves(arguments, Tensor)
    in_memory = all(isinstance(t.definition, Stored) and not isinstance(t, Number) for t in operands)
    same_dtype = all(t.dtype is node.spec.dtype for t in operands)
    return in_memory and same_dtype and not any(map(_may_fuse, read_by))


def _may_fuse(reader: Node) -> bool:
    return reader.op != "output" and (reader.target is WRITE_INPUT or row(reader.target).lowering is not None)


def _appends_runs(parts: Sequence[Node], dim: int = 0, new: int = 0) -> bool:
    """Whether the operands of a concatenation are copied in contiguous runs that are long. `new`: the dimensions that the
    result has more."""
    specs = [part.spec for part in parts]
    dim %= max(len(spec.shape) for spec in specs) + new
    return all(
        spec.stride == contiguous_stride(spec.shape)
        and likely(numel(spec.shape[dim:])) * spec.dtype.itemsize >= RUN_BYTES
        for spec in specs
    )


RUN_BYTES = 256
CONDITIONS: dict[str, Callable[..., bool]] = {
    "cat": _appends_runs,
    "stack": partial(_appends_runs, new=1),
}  # by ATen's name
