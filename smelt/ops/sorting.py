"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.graph.tensor_specs import make_spec, row_major_spec
from smelt.ops.index_bounds import along
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Size, contiguous_stride, numel

aten = torch.ops.aten

declare(
    "sort topk kthvalue mode unique_dim _unique2 searchsorted bucketize argsort msort", recompute=Class.SORT
)
declare("argsort bucketize searchsorted sort", any_size=True)
declare("searchsorted bucketize", raises=True)  # a sorter out of range
declare(aten.topk.default, needs_room=True)
declare("_unique2 unique_dim unique_consecutive", trace_rule=TraceRule.VALUES)
declare(aten.mode.default, aten.sort.default, aten.argsort.default, index_bound=along(1))
declare(aten.topk.default, aten.kthvalue.default, index_bound=along(2))


# ---- result sizes that values decide


def _unique(new: Callable[[], Size], self: Any, return_inverse: bool, return_counts: bool, **_: Any) -> Any:
    size, spec = new(), self.spec
    inverse, counts = spec.shape if return_inverse else (0,), (size,) if return_counts else (0,)
    indices = [row_major_spec(shape, torch.int64, spec.device) for shape in (inverse, counts)]
    return row_major_spec((size,), spec.dtype, spec.device), *indices


def _unique_rows(new: Callable[[], Size], self: Any, dim: int | None, **flags: Any) -> Any:
    shape, device = self.spec.shape, self.spec.device
    if dim is None:
        return _unique(new, self, **flags)
    if not -len(shape) <= dim < len(shape) or 0 in shape:
        return NotImplemented
    dim, size = dim % len(shape), new()
    others = (*shape[:dim], *shape[dim + 1 :])
    _, *strides = contiguous_stride((size, *others))  # it sorts contiguous rows
    strides.insert(dim, numel(others))
    rows = make_spec((*shape[:dim], size, *shape[dim + 1 :]), tuple(strides), self.spec.dtype, device)
    return rows, *(row_major_spec((n,), torch.int64, device) for n in (shape[dim], size))


declare("_unique2", unbacked=("how many values are different", _unique))
declare("unique_dim", unbacked=("how many rows are different", _unique_rows))
declare("unique_consecutive", unbacked=("how many values are different from those before", _unique_rows))
