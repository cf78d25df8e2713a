"""Index spaces: whether one tuple of indices is a rearrangement of another, and the inverse map.

An index tuple over some loops is a *rearrangement* of a tensor's elements if running the loops visits every element
once. The test looks at the row-major position as a mixed-radix number: an affine expression in which each stride is
the product of the previous stride and size. One test thus covers permuted, split and merged dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.loops.lazy_tensor import Index, Tensor
from smelt.shapes.expr import Expr, Size, Sym, affine, contiguous_stride, free_syms, loop_sym, numel, subs

Loops = tuple[tuple[Sym, Size], ...]
Radix = list[tuple[Sym, Size, Size]]  # symbol, stride, size


def position(index: Sequence[Size], shape: Sequence[Size]) -> Size:
    """The row-major position of `index` in `shape`."""
    total: Size = 0
    for i, stride in zip(index, contiguous_stride(shape)):
        total = total + i * stride
    return total


def radix(index: Sequence[Size], shape: Sequence[Size], sizes: Mapping[Sym, Size]) -> Radix | None:
    """The digits of `index`'s position, if it visits every element of `shape` once as its symbols run over `sizes`."""
    rest = position(index, shape)
    digits: Radix = []
    for sym in sorted(free_syms(rest) & sizes.keys(), key=lambda s: s.name):
        split = affine(rest, sym)
        if split is None:
            return None
        digits.append((sym, split[0], sizes[sym]))
        rest = split[1]
    in_order: Radix = []
    expected: Size = 1
    while digits:
        lowest = next((d for d in digits if d[1] == expected), None)
        if lowest is None:
            return None
        digits.remove(lowest)
        in_order.append(lowest)
        expected = expected * lowest[2]
    return in_order if rest == 0 and expected == numel(shape) else None


def solve(digits: Radix, index: Sequence[Size], shape: Sequence[Size]) -> dict[Sym, Size]:
    """The values of the digits' symbols at the element `index` of a tensor of `shape`."""
    at = position(index, shape)
    values = {sym: at // stride % size for sym, stride, size in digits}
    # the highest digit is below its size, which need not be seen
    if digits and isinstance(digits[-1][2], Expr):
        sym, stride, _ = digits[-1]
        values[sym] = at // stride
    return values


def substituted(index: Sequence[Size], values: Mapping[Sym, Size]) -> Index:
    """`index` with `values` in place of symbols."""
    return tuple([subs(e, values) for e in index])


def own_loops(shape: Sequence[Size], letter: str) -> tuple[Index, Loops]:
    """Index and loops of a unit's own space: one symbol per dimension, 0 for dimensions of size 1. Symbols are named
    by position, so equal shapes have equal symbols."""
    index: list[Size] = []
    loops: list[tuple[Sym, Size]] = []
    for d, size in enumerate(shape):
        if size == 1:
            index.append(0)
        else:
            sym = loop_sym(f"{letter}{d}", size)
            index.append(sym)
            loops.append((sym, size))
    return tuple(index), tuple(loops)


def linear(tensor: Tensor, index: Index) -> Size:
    """The element offset of `index` in the tensor's memory."""
    total: Size = 0
    for i, stride in zip(index, tensor.spec.stride):
        total = total + i * stride
    return total
