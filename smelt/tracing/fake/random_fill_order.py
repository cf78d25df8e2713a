"""The order in which an operator that fills a tensor with random numbers visits its elements.

The functional form of `x.bernoulli_()` returns a new, contiguous tensor. If `x` has another layout, eager may draw in
memory order, in logical order, or in an order of its own, depending on the operator, the build of torch and the CPU.
So the order is found by running the operator with a generator of its own on a tensor with the same layout.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import empty_like_spec, static_sizes
from smelt.torch_private import OpOverload

_LARGE = 1 << 20  # elements
_CPU = torch.device("cpu")
_CACHE: dict[Any, tuple[int, ...] | None] = {}


def draw_order(
    writes: OpOverload,
    pure: OpOverload,
    spec: TensorSpec,
    trailing: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[int, ...] | None:
    """The permutation of dimensions under which `pure`, on a contiguous tensor, draws what `writes` draws on a tensor
    of `spec`; None if there is none, or none can be found.

    Args:
        trailing, keywords: the arguments after the tensor.
    """
    key = (writes, spec.shape, spec.stride, spec.dtype, repr(trailing), repr(keywords))
    if key not in _CACHE:
        _CACHE[key] = _find(writes, pure, spec, trailing, keywords)
    return _CACHE[key]


def _find(
    writes: OpOverload,
    pure: OpOverload,
    spec: TensorSpec,
    trailing: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[int, ...] | None:
    shape, stride = static_sizes(spec.shape), static_sizes(spec.stride)
    n = len(shape)
    count = torch.Size(shape).numel()
    if count > _LARGE or any(k == "generator" and v is not None for k, v in keywords.items()):
        return None
    generator = torch.Generator()
    laid_out = empty_like_spec(spec, _CPU).zero_()
    wanted = writes(laid_out, *trailing, **{**keywords, "generator": generator.manual_seed(0)})
    in_memory = tuple(sorted(range(n), key=lambda d: (-stride[d], d)))
    for order in (tuple(range(n)), in_memory):
        permuted = torch.zeros([shape[d] for d in order], dtype=spec.dtype)
        drawn = pure(permuted, *trailing, **{**keywords, "generator": generator.manual_seed(0)})
        if torch.equal(drawn.permute(inverse(order)), wanted):
            return order
    return None


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The inverse permutation of `order`."""
    return tuple(order.index(d) for d in range(len(order)))
