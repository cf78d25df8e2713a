"""One-dimensional pooling along a dimension of symbolic size, which torch's C++ code specializes.

The result is that of torch's code where gradients may be needed: two-dimensional pooling with windows of one row.
Other calls are left to torch.
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
    options = [_single(value) for value in (kernel_size, stride or kernel_size, padding, dilation)]
    if any(type(n) is not int for n in options):
        return NotImplemented
    kernel, step, pad, spread = options
    if kernel < 1 or step < 1 or spread < 1 or not 0 <= pad <= kernel // 2:
        return NotImplemented
    rows = [1, kernel], [1, step], [0, pad], [1, spread]
    results = MAX_POOL(x.unsqueeze(-2), *rows, ceil_mode)
    values, indices = (result.squeeze(-2) for result in results)
    return (values, indices) if return_indices else values


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _max_pool(args: Args, kwargs: Kwargs, **more: Any) -> Any:
    named = {**kwargs, **more}
    return _pooled(*((named.pop("input"),) if "input" in named else ()), *args, **named)


def _max_pool_with_indices(args: Args, kwargs: Kwargs) -> Any:
    return _max_pool(args, kwargs, return_indices=True)


COMPOSITES = {
    F.max_pool1d: _max_pool,
    torch.max_pool1d: _max_pool,
    F.max_pool1d_with_indices: _max_pool_with_indices,
    torch.max_pool1d_with_indices: _max_pool_with_indices,
}
