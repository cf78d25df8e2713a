"""Where in their storage the elements of tensors are: whether they share memory. Symbolic sizes are tried out."""

from __future__ import annotations

import math

from smelt.graph.assignments import agreed
from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import static
from smelt.graph.specs import static_sizes

_ENUMERABLE = 1 << 16  # elements


def overlaps_itself(spec: TensorSpec) -> bool:
    """Whether elements may share memory (`expand`, overlapping `as_strided`)."""
    return bool(agreed([spec], _overlaps_itself, "sizes decide whether elements share memory"))


def _overlaps_itself(spec: TensorSpec) -> bool:
    reach = 0
    for stride, size in sorted(_layout(spec)):
        if stride <= reach:
            return 0 not in spec.shape
        reach += stride * (size - 1)
    return False


def partly_overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two tensors on one storage share some elements, but are not the same.

    Eager refuses where both are dense; what it gives where one is not depends on the order in which it visits the elements.
    """
    return bool(agreed([a, b], _partly_overlap, "sizes decide whether tensors overlap"))


def _partly_overlap(a: TensorSpec, b: TensorSpec) -> bool:
    start_a, start_b = static(a.offset), static(b.offset)
    if a.dtype is not b.dtype or start_a >= start_b + _extent(b) or start_b >= start_a + _extent(a):
        return False
    if start_a == start_b and _layout(a) == _layout(b):
        return False
    if _extent(a) == _numel(a) and _extent(b) == _numel(b):
        return True
    if _numel(a) + _numel(b) > _ENUMERABLE:
        return False
    return not set(_places(a)).isdisjoint(_places(b))


def is_dense_row_major(spec: TensorSpec) -> bool:
    """Whether the elements lie side by side in logical order, wherever in the storage they start."""
    return bool(agreed([spec], _is_dense_row_major, "sizes decide whether a tensor is row-major"))


def _is_dense_row_major(spec: TensorSpec) -> bool:
    expected = 1
    for stride, size in reversed(_layout(spec)):
        if stride != expected:
            return False
        expected *= size
    return True


def _layout(spec: TensorSpec) -> list[tuple[int, int]]:
    """(stride, size) of each dimension but those of size 1."""
    return [(s, n) for s, n in zip(static_sizes(spec.stride), static_sizes(spec.shape)) if n != 1]


def _numel(spec: TensorSpec) -> int:
    return math.prod(static_sizes(spec.shape))


def _places(spec: TensorSpec) -> list[int]:
    """Where in the storage the elements are."""
    places = [static(spec.offset)]
    for stride, size in _layout(spec):
        places = [p + i * stride for p in places for i in range(size)]
    return places


def _extent(spec: TensorSpec) -> int:
    """Elements from the first to the last, both included."""
    return 0 if 0 in spec.shape else 1 + sum((n - 1) * s for s, n in _layout(spec))
