"""Pooling along one dimension of symbolic size, for which torch's C++ code asks for a number.

What comes out is what torch's code comes to where gradients may be needed: windows of one row. Other calls are left to
torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from smelt.graph.sample_sizes import syms_of
from smelt.ops.symbolic_rules import MAX_POOL
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs


def _pooled(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if type(x) is not FakeTensor or x.dim() not in (2, 3) or not syms_of(x.spec):
        return NotImplemented
    given = [_one(value) for value in (kernel_size, stride or kernel_size, padding, dilation)]
    if any(type(n) is not int for n in given):
        return NotImplemented
    kernel, step, pad, spread = given
    if kernel < 1 or step < 1 or spread < 1 or not 0 <= pad <= kernel // 2:
        return NotImplemented
    rows = [1, kernel], [1, step], [0, pad], [1, spread]
    made = MAX_POOL(x.unsqueeze(-2), *rows, ceil_mode)
    values, indices = (result.squeeze(-2) for result in made)
    return (values, indices) if return_indices else values


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _largest(args: Args, kwargs: Kwargs, **more: Any) -> Any:
    given = {**kwargs, **more}
    return _pooled(*((given.pop("input"),) if "input" in given else ()), *args, **given)


def _with_indices(args: Args, kwargs: Kwargs) -> Any:
    return _largest(args, kwargs, return_indices=True)


# `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
COMPOSITES = {
    F.max_pool1d: _largest,
    torch.max_pool1d: _largest,
    F.max_pool1d_with_indices: _with_indices,
    torch.max_pool1d_with_indices: _with_indices,
}
