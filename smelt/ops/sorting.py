"""Sorting and searching."""

from __future__ import annotations

from smelt.ops.recompute import Class
from smelt.ops.registry import declare

declare(
    "sort topk kthvalue mode unique_dim _unique2 searchsorted bucketize argsort msort", recompute=Class.SORT
)
