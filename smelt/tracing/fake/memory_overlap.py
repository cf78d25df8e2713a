"""Where in their storage the elements of tensors are: whether they share memory. Symbolic sizes are tried out."""

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
    """Whether elements lie side by side in some order of the dimensions, whatever the sizes are."""
    left = [(stride, n) for stride, n in zip(spec.stride, spec.shape) if n != 1]
    step: Size = 1
    while left:
        inner = next((dim for dim in left if dim[0] == step), None)
        if inner is None:
            return False
        left.remove(inner)
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
    """Whether two tensors on one storage share some elements, but are not the same. Of symbolic sizes it is required of
    later calls that they are apart, or one, as they are in this call. Raises NeedsFixedSize where that cannot be seen.

    Eager refuses where both are dense; what it gives where one is not depends on the order in which it visits the elements.
    """
    symbolic = symbols is not None and a is not b and bool(syms_of(a) or syms_of(b))
    if symbols is not None and symbolic and (_are_apart(a, b, symbols) or _are_one(a, b, symbols)):
        return False
    found = bool(agreed([a, b], _partly_overlap, why := "sizes decide whether tensors overlap"))
    if symbolic and not found:
        raise NeedsFixedSize(why, syms_of(a) | syms_of(b))
    return found


def _are_apart(a: TensorSpec, b: TensorSpec, symbols: Symbols) -> bool:
    """Whether one ends before the other begins, or each of its rows before that of the other, and this before its next."""

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


def _are_one(a: TensorSpec, b: TensorSpec, symbols: Symbols) -> bool:
    """Whether they are all the same elements in one order."""
    if a.dtype is not b.dtype or len(a.shape) != len(b.shape):
        return False
    pairs = list(zip((a.offset, *a.shape, *a.stride), (b.offset, *b.shape, *b.stride)))
    if any(evaluate(x - y, symbols.hints) != 0 for x, y in pairs):
        return False
    return all(symbols.compare("eq", x, y) for x, y in pairs)


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


def _symbolic_extent(spec: TensorSpec, rows: Size | None = None) -> Size:
    """`_extent`, of a tensor that has elements; of one of its rows, whose stride is `rows`."""
    total: Size = 1
    for n, s in zip(spec.shape, spec.stride):
        total = total if s is rows or s == rows else total + (n - 1) * s
    return total


def _places(spec: TensorSpec) -> list[int]:
    """Where in the storage the elements are."""
    places = [static(spec.offset)]
    for stride, size in _layout(spec):
        places = [p + i * stride for p in places for i in range(size)]
    return places


def _extent(spec: TensorSpec) -> int:
    """Elements from the first to the last, both included."""
    return 0 if 0 in spec.shape else 1 + sum((n - 1) * s for s, n in _layout(spec))
