"""Sorting and searching."""

from __future__ import annotations

import torch

from smelt.ops.recompute import Class
from smelt.ops.registry import declare

aten = torch.ops.aten

declare(
    "sort topk kthvalue mode unique_dim _unique2 searchsorted bucketize argsort msort", recompute=Class.SORT
)
declare(aten.topk.default, needs_room=True)
