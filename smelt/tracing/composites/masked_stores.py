"""Writing where a mask is set: `x[mask] = row`.

The gradient of `row` in eager is a sum over the places that the mask selects: their number is known only when it runs, so no
backward could be recorded. If what is written does not depend on that number, `where` writes the same, and all sizes of its
gradient are known.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.aten_call_recorder import Composite, AtenCallRecorder
from smelt.tracing.record.call_arguments import Args


def _store(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    x, mask, value = args
    if not (_is_mask(x, mask) and _is_written_alike(x, mask, value)):
        return func(*args)
    everywhere = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    x.copy_(torch.where(everywhere, value, x))
    return None


def _is_mask(x: Any, mask: Any) -> bool:
    fakes = type(x) is FakeTensor and type(mask) is FakeTensor
    return fakes and mask.dtype is torch.bool and mask.dim() > 0 and x.shape[: mask.dim()] == mask.shape


def _is_written_alike(x: FakeTensor, mask: FakeTensor, value: Any) -> bool:
    """Whether `value` has a gradient, and every place gets the same of it."""
    if not (type(value) is FakeTensor and value.requires_grad and torch.is_grad_enabled()):
        return False
    rest = x.dim() - mask.dim()
    return (value.dtype, value.device) == (x.dtype, x.device) and value.dim() <= rest


COMPOSITES: dict[Any, Composite] = {torch.Tensor.__setitem__: _store}
