"""Conj and neg bits: views whose conjugation or negation is not materialized. Their memory holds other signs than
their values."""

from __future__ import annotations

import torch

from smelt.torch_private import OpOverload

CONJUGATE: OpOverload = torch.ops.aten._conj.default
NEGATIVE: OpOverload = torch.ops.aten._neg_view.default
LAZY = frozenset({CONJUGATE, NEGATIVE})
