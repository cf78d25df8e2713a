"""Values that fit into a smaller dtype without loss.

* A float tensor drawn by `bernoulli` holds zeros and ones: saved as bool.
* Indices into a dimension hold numbers below its size: saved in the smallest integer type for that.
"""

from __future__ import annotations

import operator

import torch

from smelt.graph.ir import Node
from smelt.ops.registry import row
from smelt.shapes.expr import bounds

_INTEGERS = ((torch.uint8, 1 << 8), (torch.int16, 1 << 15), (torch.int32, 1 << 31))


def packed_dtype(node: Node) -> torch.dtype | None:
    """The smaller dtype that holds all values the node can have, or None."""
    spec = node.spec
    if row(node.target).zero_or_one:
        return torch.bool if spec.dtype.itemsize > 1 and not spec.dtype.is_complex else None
    if spec.dtype is not torch.int64:
        return None
    call = node.args[0] if node.target is operator.getitem else node
    bound = row(call.target).index_bound
    if bound is None or (call is not node and node.args[1] != 1):
        return None
    largest = bounds(bound(call))[1]
    return next((dtype for dtype, limit in _INTEGERS if largest <= limit), None)
