"""ATen operators written as smaller ones.

`table(excluded)` maps an OpOverload to a Python function over `torch.ops`, with the operator's own signature. Only
operators that fuse better in pieces are declared as `decomposed`: pointwise formulas, losses and small compositions, but
not those that check their inputs' values (binary_cross_entropy, nll_loss): the checks would be lost. Those that the loops
lower whole are named in `excluded` by the caller. The functions are torch's own reference decompositions: they round as
eager does, up to the order of float32 sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._ops import OpOverload

from smelt.ops.registry import REGISTRY

aten = torch.ops.aten

Decomposition = Callable[..., Any]


@cache
def _all() -> dict[OpOverload, Decomposition]:
    names = [
        key.removeprefix("aten::")
        for key, facts in REGISTRY.declared()
        if isinstance(key, str) and "decomposed" in facts
    ]
    packets = [getattr(aten, name) for name in names]
    found = get_decompositions(packets)
    return {
        op: function
        for op, function in found.items()
        if isinstance(op, OpOverload) and "out" not in op._overloadname
    }


def table(excluded: Collection[OpOverload] = ()) -> dict[OpOverload, Decomposition]:
    """The decompositions of all operators but `excluded` ones and those that write memory."""
    return {op: f for op, f in _all().items() if op not in excluded and not op._schema.is_mutable}
