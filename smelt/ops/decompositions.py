"""ATen operators written as smaller ones.

`table(excluded)` maps an OpOverload to a Python function over `torch.ops`, with the operator's own signature. Only
operators that fuse better in pieces are here; those that the loops lower whole (softmax, normalization, activations) are
named in `excluded` by the caller. The functions are torch's own reference decompositions: they round as eager does, up to
the order of float32 sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._ops import OpOverload

aten = torch.ops.aten

Decomposition = Callable[..., Any]

# Pointwise formulas, losses and small compositions. Not those that check their inputs' values (binary_cross_entropy,
# nll_loss): the checks would be lost.
_DECOMPOSED = (
    "elu celu selu mish softplus hardsigmoid hardtanh hardshrink softshrink threshold relu6 log_sigmoid_forward glu "
    "_prelu_kernel addcdiv lerp logit xlogy special_xlog1py sinc heaviside logaddexp logaddexp2 nan_to_num "
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss "
    "std std_mean norm linalg_vector_norm logsumexp trace dist aminmax frac rot90 "
    "eye tril triu pixel_shuffle pixel_unshuffle channel_shuffle"
)


@cache
def _all() -> dict[OpOverload, Decomposition]:
    packets = [getattr(aten, name) for name in _DECOMPOSED.split(" ") if hasattr(aten, name)]
    found = get_decompositions(packets)
    return {
        op: function
        for op, function in found.items()
        if isinstance(op, OpOverload) and "out" not in op._overloadname
    }


def table(excluded: Collection[OpOverload] = ()) -> dict[OpOverload, Decomposition]:
    """The decompositions of all operators but `excluded` ones and those that write memory."""
    return {op: f for op, f in _all().items() if op not in excluded and not op._schema.is_mutable}
