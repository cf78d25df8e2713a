"""Replacements for torch's backwards that inspect values (for zeros or NaN). On fakes these take a slower path that
gives other results for non-finite values; the replacements give eager's results for all values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Gradient = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def replace_backwards(nodes: Iterable[Any]) -> Iterator[None]:
    """While the engine runs, replace the results of autograd nodes that have a rule by those of the rule."""
    handles = [_replace_backward(node, RULES[node.name()]) for node in nodes if node.name() in RULES]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replace_backward(node: Any, rule: Callable[[Any], Gradient]) -> Any:
    def hook(gradients: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
        (tangent,) = tangents
        if tangent is None or gradients[0] is None or tangent.is_complex():
            return None
        return (rule(node)(tangent), *gradients[1:])

    return node.register_hook(hook)


def _prod_backward(node: Any) -> Gradient:
    """The product of all elements. With two zeros, all gradients are 0, whatever the other factors are."""
    x, result = node._saved_self, node._saved_result
    factors = _Factors(x, tuple(range(x.dim())))

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        others = torch.where(factors.zeros == 0, result / x, factors.others_with_zeros())
        return torch.where(factors.zeros > 1, torch.zeros_like(x), tangent * others)

    return gradient


def _prod_dim_backward(node: Any) -> Gradient:
    """The product along one dimension. Factors are divided out if the whole tensor has no zero."""
    x, result = node._saved_self, node._saved_result
    dim = (node._saved_dim + (1 << 63)) % (1 << 64) - (1 << 63)  # torch reports it as unsigned

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        factors = _Factors(x, (dim,) if x.dim() else ())
        product = result
        if x.dim() and not node._saved_keepdim:
            tangent, product = tangent.unsqueeze(dim), product.unsqueeze(dim)
        others = torch.where(
            factors.zeros == 0, factors.others_without_zeros(product), factors.others_with_zeros()
        )
        return tangent * torch.where((x == 0).any(), others, product / x)

    return gradient


class _Factors:
    """The factors `x` of products over `dims`; `zeros` is the number of zeros in each product."""

    def __init__(self, x: torch.Tensor, dims: tuple[int, ...]) -> None:
        self.x, self.dims = x, dims
        self.zeros = self.count(x == 0)

    def count(self, mask: torch.Tensor) -> torch.Tensor:
        """The number of factors in `mask`, for each product."""
        return mask.sum(self.dims, keepdim=True) if self.dims else mask.long()

    def without(self, mask: torch.Tensor) -> torch.Tensor:
        """The products of the factors not in `mask`."""
        product = torch.where(mask, torch.ones_like(self.x), self.x)
        for dim in self.dims:
            product = product.prod(dim, keepdim=True)
        return product

    def others_with_zeros(self) -> torch.Tensor:
        """For each factor the product of the others, in products with zeros: nonzero (or NaN) only at a single zero."""
        infinite = ~torch.isfinite(self.x)
        invalid = self.count(infinite) > infinite.long()  # 0 times another factor that is infinite or NaN
        nothing = torch.where(invalid, torch.full_like(self.x, torch.nan), torch.zeros_like(self.x))
        return torch.where((self.x == 0) & (self.zeros == 1), self.without(self.x == 0), nothing)

    def others_without_zeros(self, product: torch.Tensor) -> torch.Tensor:
        """For each factor the product of the others, in products without zeros: a single infinite factor or NaN is omitted,
        not divided out."""
        invalid, infinite = self.x.isnan(), self.x.isinf()
        others = torch.where(infinite, product * self.x.sign(), product / self.x)
        for mask in (infinite, invalid):
            others = torch.where(mask & (self.count(mask) == 1), self.without(mask), others)
        return others


def _extreme_backward(node: Any) -> Gradient:
    """The extreme of all elements: elements equal to it share the tangent, which may be infinite."""
    x, result = node._saved_self, node._saved_result

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        is_extreme = (x == result) | (x.isnan() & result.isnan())
        return torch.where(is_extreme, tangent / is_extreme.sum(), torch.zeros_like(x))

    return gradient


RULES: dict[str, Callable[[Any], Gradient]] = {
    "ProdBackward0": _prod_backward,
    "ProdBackward1": _prod_dim_backward,
    "MaxBackward1": _extreme_backward,
    "MinBackward1": _extreme_backward,
    "MedianBackward0": _extreme_backward,
    "NanmedianBackward0": _extreme_backward,
}
