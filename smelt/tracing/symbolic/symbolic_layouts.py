"""Layouts of inputs with symbolic sizes: how strides follow from sizes, and where the value of a symbol is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.shapes.expr import contiguous_stride

ITSELF = -1  # as `SizeSource.dim`: the input is a number, and the size


@dataclass(frozen=True)
class SizeSource:
    """Where the value of a symbol is found in an input: the size of dimension `dim`, or the number that the input is
    (ITSELF), floor-divided by `divisor` or, if `is_remainder`, modulo `divisor`. With `over`: the gap between the
    stride of `dim` and the extent of dimension `over` (its size times its stride)."""

    dim: int
    divisor: int = 1
    over: int | None = None
    is_remainder: bool = False

    def read(self, value: Any) -> int:
        """The symbol's value, from the value of the input."""
        if self.dim == ITSELF:
            number: int = value
        elif self.over is None:
            number = value.size(self.dim)
        else:
            number = value.stride(self.dim) - value.size(self.over) * value.stride(self.over)
        return number % self.divisor if self.is_remainder else number // self.divisor


@dataclass(frozen=True)
class SymbolicLayout:
    """Sizes and strides of an input, in elements, including symbolic numbers (`Symbols.size_leaf`). `gaps`: for
    strides that do not follow from sizes (`Symbols.stride_leaf`), by dimension, the gap, and the inner dimension that
    it follows."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    gaps: Mapping[int, tuple[Any, int]]

    @classmethod
    def row_major(cls, shape: Sequence[Any]) -> SymbolicLayout:
        """The contiguous row-major layout of these sizes."""
        return cls(tuple(shape), contiguous_stride(shape), {})


@dataclass(frozen=True)
class Over:
    """A stride equal to the extent of dimension `dim` (its size times its stride), or larger if not `exactly`."""

    dim: int
    exactly: bool


def strides_over(shape: Sequence[int], stride: Sequence[int]) -> tuple[Over | None, ...] | None:
    """How each stride follows from the next inner dimension in memory; None for the innermost dimension, and for
    expanded ones (stride 0). None for all where elements overlap otherwise. Outside of a dimension without elements,
    torch's strides are those for size 1; a dimension of size 1 may have any stride."""
    order = sorted((d for d in range(len(shape)) if stride[d]), key=lambda d: (stride[d], -d))
    found = _over(shape, stride, order)
    if found is not None:
        return found
    longer = [dim for dim in order if shape[dim] != 1]
    found = _over(shape, stride, longer)
    if found is None:
        return None
    ends = {shape[inner] * stride[inner]: Over(inner, True) for inner in longer}
    return tuple(over if n != 1 else ends.get(step) for over, n, step in zip(found, shape, stride))


def _over(
    shape: Sequence[int], stride: Sequence[int], order: Sequence[int]
) -> tuple[Over | None, ...] | None:
    found: list[Over | None] = [None] * len(shape)
    inner: int | None = None
    for dim in order:
        if inner is not None:
            extent = shape[inner] * stride[inner]
            if stride[dim] < extent:
                return None
            found[dim] = Over(inner, stride[dim] == extent)
        if shape[dim]:
            inner = dim
    return tuple(found)
