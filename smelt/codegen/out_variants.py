"""The `out=` overloads that a plan calls on the CPU in place of functional operators."""

from __future__ import annotations

from functools import cache

import torch

from smelt.ops.registry import row
from smelt.torch_private import OpOverload

aten = torch.ops.aten


def out_variant(op: OpOverload) -> OpOverload | None:
    """The `out=` overload of `op`, or None."""
    if op is aten.bernoulli.p and draws_as_aten():
        return torch.ops.smelt.bernoulli.out
    return row(op).out


@cache
def draws_as_aten() -> bool:
    """Whether `smelt::bernoulli` (native/operators/bernoulli.cpp), some six times faster, draws the same numbers as ATen on
    this CPU: on some CPUs torch draws them with MKL."""
    ours, theirs = torch.Generator(), torch.Generator()
    drawn = torch.ops.smelt.bernoulli.out(torch.empty(0), 0.3, generator=ours, out=torch.empty(1500))
    expected = torch.empty(1500).bernoulli_(0.3, generator=theirs)
    return torch.equal(drawn, expected) and torch.equal(ours.get_state(), theirs.get_state())
