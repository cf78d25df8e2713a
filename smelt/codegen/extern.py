"""Which ATen operators have an `out=` form that a plan should call instead."""

from __future__ import annotations

from functools import cache

import torch

aten = torch.ops.aten

# Operators whose `out=` overload computes into given memory, whatever its strides, with the very code of the functional
# one: no allocation and no page faults per call. (Many other `out=` overloads are generated: they copy.)
OUT_VARIANTS: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
    aten.mv.default: aten.mv.out,
    aten.addmv.default: aten.addmv.out,
    aten.cat.default: aten.cat.out,
    aten.index_select.default: aten.index_select.out,
    aten.gather.default: aten.gather.out,
    aten._softmax.default: aten._softmax.out,
    aten._log_softmax.default: aten._log_softmax.out,
    aten.cumsum.default: aten.cumsum.out,
    aten.cumprod.default: aten.cumprod.out,
    aten.avg_pool2d.default: aten.avg_pool2d.out,
    aten._adaptive_avg_pool2d.default: aten._adaptive_avg_pool2d.out,
    aten.upsample_nearest2d.default: aten.upsample_nearest2d.out,
    aten.upsample_bilinear2d.default: aten.upsample_bilinear2d.out,
    aten.upsample_bicubic2d.default: aten.upsample_bicubic2d.out,
    aten.index.Tensor: aten.index.Tensor_out,
    aten.tril.default: aten.tril.out,
    aten.triu.default: aten.triu.out,
}


def out_variant(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that computes what `op` does, in memory given as `out`."""
    if op is aten.bernoulli.p and draws_alike():
        return torch.ops.smelt.bernoulli.out
    return OUT_VARIANTS.get(op)


@cache
def draws_alike() -> bool:
    """Whether `smelt::bernoulli` (native/operators/random.cpp), some six times faster, gives the numbers that ATen gives
    here: on some CPUs torch draws them with MKL."""
    ours, theirs = torch.Generator(), torch.Generator()
    drawn = torch.ops.smelt.bernoulli.out(torch.empty(0), 0.3, generator=ours, out=torch.empty(1500))
    expected = torch.empty(1500).bernoulli_(0.3, generator=theirs)
    return torch.equal(drawn, expected) and torch.equal(ours.get_state(), theirs.get_state())
