"""Work of ATen calls, for reports, where the sizes of their tensors do not determine it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

# Operators that read of their first tensor, at most, as many elements as they give.
PICKING = frozenset(
    {aten.embedding.default, aten.gather.default, aten.index.Tensor, aten.index_select.default}
)
# The argument that holds the left matrices of a product.
_LEFT = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.mv.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}


def operations(op: Any, args: Sequence[Any], result_sizes: Sequence[int]) -> int | None:
    """Twice the multiplications of a product or convolution; None for other operators.

    Args:
        args: the call's arguments, with sizes in place of tensors.
        result_sizes: the sizes of the first result.
    """
    if op in _LEFT:
        return 2 * math.prod(result_sizes) * int(args[_LEFT[op]][-1])
    if op is aten.convolution.default and args[6] is False:  # each element with a window of the weights
        return 2 * math.prod(result_sizes) * math.prod(args[1][1:])
    return None
