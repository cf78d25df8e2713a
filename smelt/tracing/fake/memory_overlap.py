"""Memory overlap of tensors in a storage. Symbolic sizes are evaluated at sample values."""

from __future__ import annotations

import math

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.sample_sizes import agreed, syms_of
from smelt.graph.tensor_specs import static_sizes
from smelt.shapes.expr import Size, evaluate, static
from smelt.tracing.symbolic.symbolic_numbers import Symbols

_ENUMERABLE = 1 << 16  # elements


def overlaps_itself(spec: TensorSpec) -> bool:
    """Whether elements may share memory (`expand`, overlapping `as_strided`)."""
    return not _is_dense(spec) and bool(
        agreed([spec], _overlaps_itself, "sizes decide whether elements share memory")
    )


def _is_dense(spec: TensorSpec) -> bool:
    """Whether elements are contiguous in some order of the dimensions, for all sizes."""
    remaining = [(stride, n) for stride, n in zip(spec.stride, spec.shape) if n != 1]
    step: Size = 1
    while remaining:
        inner = next((dim for dim in remaining if dim[0] == step), None)
        if inner is None:
            return False
        remaining.remove(inner)
        step = step * inner[1]
    return True


def _overlaps_itself(spec: TensorSpec) -> bool:
    reach = 0
    for stride, size in sorted(_layout(spec)):
        if stride <= reach:
            return 0 not in spec.shape
        reach += stride * (size - 1)
    return False


def partly_overlap(a: TensorSpec, b: TensorSpec, symbols: Symbols | None = None) -> bool:
    """Whether two tensors in one storage share some elements without being identical. For symbolic sizes, later calls
    are required to have them disjoint or identical, as in this call. Raises NeedsFixedSize where that cannot be
    decided.

    Eager refuses where both are dense; its result where one is not depends on the order in which it visits the
    elements.
    """
    symbolic = symbols is not None and a is not b and bool(syms_of(a) or syms_of(b))
    if symbols is not None and symbolic and (_are_disjoint(a, b, symbols) or _are_identical(a, b, symbols)):
        return False
    overlap = bool(agreed([a, b], _partly_overlap, why := "sizes decide whether tensors overlap"))
    if symbolic and not overlap:
        raise NeedsFixedSize(why, syms_of(a) | syms_of(b))
    return overlap


def _are_disjoint(a: TensorSpec, b: TensorSpec, symbols: Symbols) -> bool:
    """Whether one ends before the other begins, or their rows interleave without overlap."""

    def before(end: Size, start: Size) -> bool:
        return evaluate(end - start, symbols.hints) <= 0 and symbols.compare("le", end, start)

    first, second = (a, b) if evaluate(a.offset - b.offset, symbols.hints) <= 0 else (b, a)
    if before(first.offset + _symbolic_extent(first), second.offset):
        return True
    strides = sorted(set(a.stride) & set(b.stride), key=lambda s: int(evaluate(s, symbols.hints)))
    if not strides:
        return False
    rows = [spec.offset + _symbolic_extent(spec, strides[-1]) for spec in (first, second)]
    return before(rows[0], second.offset) and before(rows[1], first.offset + strides[-1])


def _are_identical(a: TensorSpec, b: TensorSpec, symbols: Symbols) -> bool:
    """Whether they are the same elements in the same order."""
    if a.dtype is not b.dtype or len(a.shape) != len(b.shape):
        return False
    pairs = list(zip((a.offset, *a.shape, *a.stride), (b.offset, *b.shape, *b.stride)))
    if any(evaluate(x - y, symbols.hints) != 0 for x, y in pairs):
        return False
    return all(symbols.compare("eq", x, y) for x, y in pairs)


def _partly_overlap(a: TensorSpec, b: TensorSpec) -> bool:
    start_a, start_b = static(a.offset), static(b.offset)
    if a.dtype is not b.dtype or start_a >= start_b + extent(b) or start_b >= start_a + extent(a):
        return False
    if start_a == start_b and _layout(a) == _layout(b):
        return False
    if extent(a) == _numel(a) and extent(b) == _numel(b):
        return True
    if _numel(a) + _numel(b) > _ENUMERABLE:
        return False
    return not set(_offsets(a)).isdisjoint(_offsets(b))


def may_overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two tensors of fixed sizes in one storage may share elements; False only where they do not."""
    (start_a, end_a), (start_b, end_b) = _byte_range(a), _byte_range(b)
    if start_a >= end_b or start_b >= end_a:
        return False
    if a.dtype is not b.dtype or _numel(a) + _numel(b) > _ENUMERABLE:
        return True
    return not set(_offsets(a)).isdisjoint(_offsets(b))


def _byte_range(spec: TensorSpec) -> tuple[int, int]:
    start = static(spec.offset)
    return start * spec.dtype.itemsize, (start + extent(spec)) * spec.dtype.itemsize


def is_dense_row_major(spec: TensorSpec) -> bool:
    """Whether the elements are contiguous in row-major order, at any storage offset."""
    return bool(agreed([spec], _is_dense_row_major, "sizes decide whether a tensor is row-major"))


def _is_dense_row_major(spec: TensorSpec) -> bool:
    expected = 1
    for stride, size in reversed(_layout(spec)):
        if stride != expected:
            return False
        expected *= size
    return True


def _layout(spec: TensorSpec) -> list[tuple[int, int]]:
    """(stride, size) of each dimension except those of size 1."""
    return [(s, n) for s, n in zip(static_sizes(spec.stride), static_sizes(spec.shape)) if n != 1]


def _numel(spec: TensorSpec) -> int:
    return math.prod(static_sizes(spec.shape))


def _symbolic_extent(spec: TensorSpec, rows: Size | None = None) -> Size:
    """`_extent` of a tensor that has elements; with `rows`, of one of its rows, whose stride is `rows`."""
    total: Size = 1
    for n, s in zip(spec.shape, spec.stride):
        total = total if s is rows or s == rows else total + (n - 1) * s
    return total


def _offsets(spec: TensorSpec) -> list[int]:
    """The storage offsets of the elements."""
    offsets = [static(spec.offset)]
    for stride, size in _layout(spec):
        offsets = [p + i * stride for p in offsets for i in range(size)]
    return offsets


def extent(spec: TensorSpec) -> int:
    """Number of elements from the first to the last, inclusive."""
    return 0 if 0 in spec.shape else 1 + sum((n - 1) * s for s, n in _layout(spec))
