"""Random numbers."""

from __future__ import annotations

import torch

from smelt.ops.layouts.meta import filled, like
from smelt.ops.registry import declare

aten = torch.ops.aten

# for a probability, a rate or a deviation out of range
declare("multinomial poisson binomial _standard_gamma _sample_dirichlet", raises=True)
declare(aten.bernoulli.default, aten.bernoulli.Tensor, raises=True)
declare(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, raises=True)
declare(aten.rand_like.default, aten.randn_like.default, layout=like)
declare(aten.rand.default, aten.randn.default, layout=filled)
declare(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor, zero_or_one=True)
declare(
    *(aten.bernoulli.p, aten.bernoulli.Tensor, aten.uniform.default, aten.normal_functional.default),
    *(aten.exponential.default, aten.geometric.default, aten.cauchy.default, aten.log_normal.default),
    redrawn="like",
)
declare(aten.bernoulli.default, aten.multinomial.default, redrawn="from")
