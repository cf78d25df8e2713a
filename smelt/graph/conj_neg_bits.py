"""Views of which only a bit differs: complex conjugates, and negatives, that nobody has computed. What is in memory has
other signs than they show."""

from __future__ import annotations

import torch

from smelt.torch_private import OpOverload

CONJUGATE: OpOverload = torch.ops.aten._conj.default
NEGATIVE: OpOverload = torch.ops.aten._neg_view.default
LAZY = frozenset({CONJUGATE, NEGATIVE})
