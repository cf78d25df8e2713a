"""The dtypes in which ATen computes and accumulates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.loops.lazy_tensor import Number

LOWERABLE = {
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip

_OPMATH = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype of ATen's arithmetic on `dtype`, between loads and rounding."""
    return _OPMATH.get(dtype, dtype)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which ATen accumulates scans and variances of `dtype` on a CPU (`at::acc_type`)."""
    return torch.float64 if dtype is torch.float32 else opmath(dtype)


def floating(dtype: torch.dtype) -> torch.dtype:
    """The dtype to which operators with float results convert an integer dtype."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def result_type(operands: Sequence[Any]) -> torch.dtype:
    """torch's type promotion: the category is that of tensors with dimensions, then 0-d tensors, then numbers."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        rank, dtype = _rank(x)
        other = ranks[rank]
        ranks[rank] = dtype if other is None or other is dtype else torch.promote_types(other, dtype)
    result: torch.dtype | None = None
    for lower in ranks:
        if result is None:
            result = lower
        elif lower is not None and _category(lower) > _category(result):
            result = torch.promote_types(result, lower)
    assert result is not None, "an operator without operands has no result type"
    return result


def _rank(x: Any) -> tuple[int, torch.dtype]:
    if isinstance(x, bool):
        return 2, torch.bool
    if isinstance(x, int):
        return 2, torch.int64
    if isinstance(x, float):
        return 2, torch.get_default_dtype()
    if isinstance(x, Number):
        return _rank(x.type())
    return (0 if x.shape else 1), x.dtype


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1
