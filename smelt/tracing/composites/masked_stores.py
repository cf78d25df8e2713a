"""Stores under a mask (`x[mask] = row`), and at symbolic indices (`x[:, n] = column`).

In eager, the gradient of `row` is a sum over the elements that the mask selects. Their number is known only at run
time, so the backward could not be recorded. If the written value does not depend on that number, `where` writes the
same, and all sizes of its gradient are known.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.tracing.composites.row_indexing import selected
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder, Composite
from smelt.tracing.record.call_arguments import Args
from smelt.tracing.symbolic.numbers_in_containers import has_symbols


def _store(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    x, mask, value = args
    if type(x) is FakeTensor and has_symbols(mask):
        return _store_at_numbers(x, mask, value)
    if not (_is_mask(x, mask) and _is_uniform_store(x, mask, value)):
        return func(*args)
    broadcast = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    x.copy_(torch.where(broadcast, value, x))
    return None


def _store_at_numbers(x: FakeTensor, index: Any, value: Any) -> None:
    """Store at symbolic indices through `select`, which keeps them symbolic."""
    part, rest = selected(x, index)
    part[... if rest is None else rest] = value


def _is_mask(x: Any, mask: Any) -> bool:
    fakes = type(x) is FakeTensor and type(mask) is FakeTensor
    return fakes and mask.dtype is torch.bool and mask.dim() > 0 and x.shape[: mask.dim()] == mask.shape


def _is_uniform_store(x: FakeTensor, mask: FakeTensor, value: Any) -> bool:
    """Whether `value` requires grad, and is broadcast to every selected position."""
    if not (type(value) is FakeTensor and value.requires_grad and torch.is_grad_enabled()):
        return False
    n_row_dims = x.dim() - mask.dim()
    return (value.dtype, value.device) == (x.dtype, x.device) and value.dim() <= n_row_dims


COMPOSITES: dict[Any, Composite] = {torch.Tensor.__setitem__: _store}
