"""Which ATen operators have an `out=` form that a plan should call instead."""

from __future__ import annotations

from functools import cache

import torch

from smelt.ops.registry import row
from smelt.torch_private import OpOverload

aten = torch.ops.aten


def out_variant(op: OpOverload) -> OpOverload | None:
    """The operator that computes what `op` does, in memory given as `out`."""
    if op is aten.bernoulli.p and draws_alike():
        return torch.ops.smelt.bernoulli.out
    return row(op).out


@cache
def draws_alike() -> bool:
    """Whether `smelt::bernoulli` (native/operators/bernoulli.cpp), some six times faster, gives the numbers that ATen gives
    here: on some CPUs torch draws them with MKL."""
    ours, theirs = torch.Generator(), torch.Generator()
    drawn = torch.ops.smelt.bernoulli.out(torch.empty(0), 0.3, generator=ours, out=torch.empty(1500))
    expected = torch.empty(1500).bernoulli_(0.3, generator=theirs)
    return torch.equal(drawn, expected) and torch.equal(ours.get_state(), theirs.get_state())
