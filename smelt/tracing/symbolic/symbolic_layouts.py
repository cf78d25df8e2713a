"""Layouts of inputs with symbolic sizes: how strides follow from sizes, and where the value of a symbol is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.shapes.expr import contiguous_stride

ITSELF = -1  # in the place of a dimension: the input is a number, and the size


@dataclass(frozen=True)
class SizeSource:
    """Where the value of a symbol is found in an input: it is the size of dimension `dim`, or the number that the input is
    (ITSELF), by `divisor`, rounded down, or, if `rest`, what is left. With `over`, it is by how much the stride of `dim` is
    larger than dimension `over` in memory, which is its size times its stride."""

    dim: int
    divisor: int = 1
    over: int | None = None
    rest: bool = False

    def read(self, given: Any) -> int:
        """The value, of what is given for the input."""
        if self.dim == ITSELF:
            number: int = given
        elif self.over is None:
            number = given.size(self.dim)
        else:
            number = given.stride(self.dim) - given.size(self.over) * given.stride(self.over)
        return number % self.divisor if self.rest else number // self.divisor


@dataclass(frozen=True)
class SymbolicLayout:
    """Sizes and strides of an input, in elements, symbolic numbers (`Symbols.size_leaf`) among them. `gaps`: for strides
    that do not follow from sizes (`Symbols.stride_leaf`), by dimension, the gap, and the dimension that leaves it."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    gaps: Mapping[int, tuple[Any, int]]

    @classmethod
    def row_major(cls, shape: Sequence[Any]) -> SymbolicLayout:
        """Rows of these sizes, one behind the other."""
        return cls(tuple(shape), contiguous_stride(shape), {})


@dataclass(frozen=True)
class Over:
    """A stride as large as dimension `dim`, its size times its stride; or larger, if not `exactly`."""

    dim: int
    exactly: bool


def strides_over(shape: Sequence[int], stride: Sequence[int]) -> tuple[Over | None, ...] | None:
    """How each stride follows from the dimension that lies next inside of it in memory; None for the innermost dimension,
    and for those that repeat their elements (a stride of 0). None in place of all where elements overlap otherwise. Behind a
    dimension without elements, torch's strides are those of a size of 1; and a dimension of size 1 may lie anywhere."""
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
            room = shape[inner] * stride[inner]
            if stride[dim] < room:
                return None
            found[dim] = Over(inner, stride[dim] == room)
        if shape[dim]:
            inner = dim
    return tuple(found)
