"""Sorting and searching."""

from __future__ import annotations

import torch

from smelt.ops.index_bounds import along
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare
from smelt.ops.trace_rules import TraceRule

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
