"""Random numbers."""

from __future__ import annotations

import torch

from smelt.ops.layouts.meta import filled, like
from smelt.ops.registry import declare

aten = torch.ops.aten

declare(aten.rand_like.default, aten.randn_like.default, layout=like)
declare(aten.rand.default, aten.randn.default, layout=filled)
