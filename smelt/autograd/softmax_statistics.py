"""The logarithm of a softmax over long rows, recomputed from statistics of its forward.

A backward needs the logarithms again (eager saves them), and those of a language model's classes are many: they are
recomputed from the logits. That takes each row's maximum and the sum of its exponentials, two passes before the one
that the backward makes; both are two numbers per row, which the forward has.
"""

from __future__ import annotations

import torch

from smelt.autograd.recompute_formulas import Formula, NodeBuilder, Provision
from smelt.config import Config
from smelt.graph.ir import Node

aten = torch.ops.aten

LONG = 1024  # elements: for shorter rows, two numbers are not negligible, and another pass is cheap
WHY = "statistics: two numbers a row that the forward has; its logarithms come back from them"


def statistics(node: Node, make: NodeBuilder, config: Config) -> Provision | None:
    """How the result of `_log_softmax` follows from its input, the maximum and the logarithm of the sum of each row.
    None for other operators, and where memory matters more than work."""
    if node.target is not aten._log_softmax.default or config.activation_memory_budget < 1:
        return None
    x, dim, _ = node.args
    shape = x.spec.shape
    if not shape or any(type(n) is not int or not n for n in shape) or shape[dim] < LONG:
        return None
    narrow = x.spec.dtype in (torch.float16, torch.bfloat16)
    make.begin(node)
    wide = make(aten._to_copy.default, x, dtype=torch.float32) if narrow else x
    top = make(aten.amax.default, wide, [dim], True)
    exponentials = make(aten.exp.default, make(aten.sub.Tensor, wide, top))
    log = make(aten.log.default, make(aten.sum.dim_IntList, exponentials, [dim], True))
    state = tuple(make.nodes)
    make.begin(node)
    if narrow:
        wide = make(aten._to_copy.default, x, dtype=torch.float32)
    result = make(aten.sub.Tensor, make(aten.sub.Tensor, wide, top), log)
    if result.spec.dtype is not node.spec.dtype:
        result = make(aten._to_copy.default, result, dtype=node.spec.dtype)
    if (result.spec.shape, result.spec.stride) != (node.spec.shape, node.spec.stride):
        return None
    make.names.discard(result.name)
    result.name = node.name
    return Provision(state, (top, log), {node: Formula(tuple(make.nodes))}, WHY)
