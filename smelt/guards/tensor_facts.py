"""The metadata of tensors that guards compare, with wildcards for sizes and strides that may differ from call to call."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch

from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction

ANY = -1  # a size: any from two on; a stride: the product of the inner sizes
ANY_OR_ONE = -2  # a size: any from one on


def stride_over(dim: int, exactly: bool) -> int:
    """The wildcard of a stride that equals the size times the stride of dimension `dim`, or is larger if not `exactly`."""
    return -2 - 2 * dim - (not exactly)


@dataclass(frozen=True)
class TensorFacts:
    """The metadata of a tensor that a trace depends on. `stride` counts elements; a sparse tensor has none. A size may be
    `ANY` or `ANY_OR_ONE`, a stride `ANY` or the result of `stride_over`."""

    type: type
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    layout: torch.layout
    conj_neg: bool = False  # conjugate or negative bit set
    inference: bool = False

    def admits(self, actual: TensorFacts) -> bool:
        """Whether a tensor with the facts `actual` satisfies these."""
        return self == self.generalize(actual)

    def generalize(self, actual: TensorFacts) -> TensorFacts:
        """`actual` with the wildcards of these facts, where they admit its sizes and strides."""
        shape, stride = actual.shape, actual.stride
        if not self.has_wildcard or not len(self.shape) == len(shape) == len(stride):
            return actual
        inner = list(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1]
        return replace(
            actual,
            shape=tuple(mine if _admits_size(mine, n) else n for mine, n in zip(self.shape, shape)),
            stride=tuple(
                mine if mine < 0 and _admits_stride(mine, n, product, actual) else n
                for mine, n, product in zip(self.stride, stride, inner)
            ),
        )

    def covers(self, narrow: TensorFacts) -> bool:
        """Whether every tensor that `narrow` admits satisfies these facts."""
        if not narrow.has_wildcard:
            return self.admits(narrow)
        if replace(narrow, shape=self.shape, stride=self.stride) != self or len(self.shape) != len(
            narrow.shape
        ):
            return False
        strides = (
            a == b or (a == ANY and b == _product(narrow.shape[dim + 1 :]))
            for dim, (a, b) in enumerate(zip(self.stride, narrow.stride))
        )
        return all(map(_admits_size, self.shape, narrow.shape)) and all(strides)

    @property
    def has_wildcard(self) -> bool:
        """Whether a size or stride may differ from call to call."""
        return any(n < 0 for n in (*self.shape, *self.stride))


def tensor_facts(x: torch.Tensor) -> TensorFacts:
    """The metadata of `x`, read without the handlers of its class."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return TensorFacts(
            type=type(x),
            dtype=x.dtype,
            device=x.device,
            shape=tuple(x.shape),
            stride=tuple(x.stride()) if x.layout is torch.strided else (),
            requires_grad=x.requires_grad,
            layout=x.layout,
            conj_neg=x.is_conj() or x.is_neg(),
            inference=x.is_inference(),
        )


def _admits_size(expected: int, size: int) -> bool:
    """Whether a size or wildcard satisfies the expected size or wildcard."""
    if expected == ANY_OR_ONE:
        return size >= 1 or size in (ANY, ANY_OR_ONE)
    return size == expected or (expected == ANY and size >= 2)


def _admits_stride(wildcard: int, stride: int, inner: int, actual: TensorFacts) -> bool:
    if wildcard == ANY:
        return stride == inner
    dim, larger = divmod(-2 - wildcard, 2)
    extent = actual.shape[dim] * actual.stride[dim]
    return stride > extent if larger else stride == extent


def _product(sizes: tuple[int, ...]) -> int | None:
    return prod(sizes) if min(sizes, default=0) >= 0 else None


def shape_text(shape: tuple[int, ...]) -> str:
    """Sizes for people: `[*, 64]`; a size that may also be one is `1*`."""
    return _list_text(shape, lambda n: "1*" if n == ANY_OR_ONE else "*")


def stride_text(stride: tuple[int, ...]) -> str:
    """Strides for people: `[*, 1]`; a stride larger than the extent of another dimension is `+`."""
    return _list_text(stride, lambda n: "+" if n % 2 and n != ANY else "*")


def _list_text(numbers: tuple[int, ...], wildcard: Callable[[int], str]) -> str:
    return f"[{', '.join(str(n) if n >= 0 else wildcard(n) for n in numbers)}]"
