"""Backwards of torch's that look at values: whether there is a zero, or NaN. For stand-ins they take another way, which is
slower and gives other results for values that are not finite. What is recorded instead gives eager's for all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Gradient = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def replaced(nodes: Iterable[Any]) -> Iterator[None]:
    """While the engine runs, what `nodes` of autograd with a rule give is the rule's; what they compute is left unused."""
    handles = [_replace(node, RULES[node.name()]) for node in nodes if node.name() in RULES]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replace(node: Any, rule: Callable[[Any], Gradient]) -> Any:
    def hook(given: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
        (tangent,) = tangents
        if tangent is None or given[0] is None or tangent.is_complex():
            return None
        return (rule(node)(tangent), *given[1:])

    return node.register_hook(hook)


def _of_prod(node: Any) -> Gradient:
    """The product over everything. Of two zeros all gradients are 0, whatever else there is."""
    x, result = node._saved_self, node._saved_result
    factors = _Factors(x, tuple(range(x.dim())))

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        others = torch.where(factors.zeros == 0, result / x, factors.beside_zeros())
        return torch.where(factors.zeros > 1, torch.zeros_like(x), tangent * others)

    return gradient


def _of_prod_along(node: Any) -> Gradient:
    """The product along one dimension. Factors are divided out if no zero is in the whole tensor."""
    x, result = node._saved_self, node._saved_result
    dim = (node._saved_dim + (1 << 63)) % (1 << 64) - (1 << 63)  # torch shows it as unsigned

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        factors = _Factors(x, (dim,) if x.dim() else ())
        whole = result
        if x.dim() and not node._saved_keepdim:
            tangent, whole = tangent.unsqueeze(dim), whole.unsqueeze(dim)
        others = torch.where(factors.zeros == 0, factors.beside_infinite(whole), factors.beside_zeros())
        return tangent * torch.where((x == 0).any(), others, whole / x)

    return gradient


class _Factors:
    """The factors `x` of products over `dims`; `zeros` is how many of each product are 0."""

    def __init__(self, x: torch.Tensor, dims: tuple[int, ...]) -> None:
        self.x, self.dims = x, dims
        self.zeros = self.count(x == 0)

    def count(self, those: torch.Tensor) -> torch.Tensor:
        """How many of `those` are in each product."""
        return those.sum(self.dims, keepdim=True) if self.dims else those.long()

    def without(self, those: torch.Tensor) -> torch.Tensor:
        """The products of the others."""
        product = torch.where(those, torch.ones_like(self.x), self.x)
        for dim in self.dims:
            product = product.prod(dim, keepdim=True)
        return product

    def beside_zeros(self) -> torch.Tensor:
        """For each factor the product of the others, where there are zeros: at a lone one it is not 0 (or NaN)."""
        infinite = ~torch.isfinite(self.x)
        invalid = self.count(infinite) > infinite.long()  # 0 times another factor that is infinite or NaN
        nothing = torch.where(invalid, torch.full_like(self.x, torch.nan), torch.zeros_like(self.x))
        return torch.where((self.x == 0) & (self.zeros == 1), self.without(self.x == 0), nothing)

    def beside_infinite(self, whole: torch.Tensor) -> torch.Tensor:
        """The same, where there is none: lone infinite factors and NaN are not divided out but left out."""
        invalid, infinite = self.x.isnan(), self.x.isinf()
        others = torch.where(infinite, whole * self.x.sign(), whole / self.x)
        for those in (infinite, invalid):
            others = torch.where(those & (self.count(those) == 1), self.without(those), others)
        return others


def _evenly(node: Any) -> Gradient:
    """An extreme over everything: its places share the tangent, which may be infinite."""
    x, result = node._saved_self, node._saved_result

    def gradient(tangent: torch.Tensor) -> torch.Tensor:
        there = (x == result) | (x.isnan() & result.isnan())
        return torch.where(there, tangent / there.sum(), torch.zeros_like(x))

    return gradient


RULES: dict[str, Callable[[Any], Gradient]] = {
    "ProdBackward0": _of_prod,
    "ProdBackward1": _of_prod_along,
    "MaxBackward1": _evenly,
    "MinBackward1": _evenly,
    "MedianBackward0": _evenly,
    "NanmedianBackward0": _evenly,
}
