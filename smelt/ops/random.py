"""Random numbers."""

from __future__ import annotations

import torch

from smelt.ops.layouts.meta import filled, like
from smelt.ops.registry import declare

aten = torch.ops.aten

declare(aten.rand_like.default, aten.randn_like.default, layout=like)
declare(aten.rand.default, aten.randn.default, layout=filled)
declare(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor, zero_or_one=True)
declare(
    *(aten.bernoulli.p, aten.bernoulli.Tensor, aten.uniform.default, aten.normal_functional.default),
    *(aten.exponential.default, aten.geometric.default, aten.cauchy.default, aten.log_normal.default),
    redrawn="like",
)
declare(aten.bernoulli.default, aten.multinomial.default, redrawn="from")
