"""Copies with one tensor inside another, or inside zeros (the backward of a view)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Insert, Load, Tensor
from smelt.loops.loop_values import both, cast, compare, const, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder
from smelt.ops.layouts.meta_layouts import fresh
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.ops.view_operators import check_diagonal, clamped, moved, selected
from smelt.shapes.expr import Size

aten = torch.ops.aten

declare("slice_scatter select_scatter diagonal_scatter as_strided_scatter", recompute=Class.MOVEMENT)
declare("as_strided_scatter select_backward select_scatter slice_backward slice_scatter", any_size=True)
declare("slice_scatter select_scatter diagonal_scatter as_strided_scatter", linear=("self src",))

Inside = Callable[
    [Index], list[tuple[str, Size, Size]]
]  # conditions (comparison, left, right), all of which must hold
Part = tuple[
    Inside, Callable[[Index], Index]
]  # where the part stands, and which of its elements stands there


@operator(aten.slice_scatter.default)
def slice_scatter(
    b: Builder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Tensor:
    """x with `source` in place of x[start:end:step] along `dim`."""
    return _scatter(b, x, source, _slice_part(b, source, dim, start, step))


def _insert_slice(
    b: Builder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Insert:
    dim %= len(x.shape)
    first = clamped(start or 0, x.shape[dim])
    at = moved(dim, lambda e: e * step + first)
    return b.insert(x, source.shape, (source,), lambda load, i: load(source, i), at)


@operator(aten.slice_backward.default)
def slice_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, start: Size, end: Size, step: int
) -> Tensor | None:
    """Zeros with `grad` where the slice was; None for a step in the last dimension."""
    if step != 1 and dim % len(shape) == len(shape) - 1:  # gathers: ATen's copy into zeros is faster
        return None
    return _scatter(b, None, grad, _slice_part(b, grad, dim, start, step))


def _slice_part(b: Builder, source: Tensor, dim: int, start: Size | None, step: int) -> Part:
    dim %= len(b.spec.shape)
    first = clamped(start or 0, b.spec.shape[dim])
    count = source.shape[dim]

    def inside(i: Index) -> list[tuple[str, Size, Size]]:
        return [
            ("ge", i[dim], first),
            ("lt", i[dim], first + count * step),
            ("eq", (i[dim] - first) % step, 0),
        ]

    return inside, moved(dim, lambda e: _inside((e - first) // step, count))


@operator(aten.select_scatter.default)
def select_scatter(b: Builder, x: Tensor, source: Tensor, dim: int, index: Size) -> Tensor:
    """x with `source` in place of x.select(dim, index)."""
    return _scatter(b, x, source, _select_part(b, dim, index))


def _insert_selected(b: Builder, x: Tensor, source: Tensor, dim: int, index: Size) -> Insert:
    dim %= len(x.shape)
    position = selected(index, x.shape[dim])
    return b.insert(
        x, source.shape, (source,), lambda load, i: load(source, i), lambda i: (*i[:dim], position, *i[dim:])
    )


declare(aten.slice_scatter.default, insert=_insert_slice)
declare(aten.select_scatter.default, insert=_insert_selected)


@operator(aten.select_backward.default)
def select_backward(b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, index: Size) -> Tensor:
    """Zeros with `grad` where the selected index was."""
    return _scatter(b, None, grad, _select_part(b, dim, index))


def _select_part(b: Builder, dim: int, index: Size) -> Part:
    dim %= len(b.spec.shape)
    at = selected(index, b.spec.shape[dim])
    return lambda i: [("eq", i[dim], at)], lambda i: (*i[:dim], *i[dim + 1 :])


@operator(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """x with `source` on the diagonal; positions along it are the last dimension of `source`."""
    return _scatter(b, x, source, _diagonal_part(b, source, offset, dim1, dim2))


@operator(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Zeros with `grad` on the diagonal."""
    return _scatter(b, None, grad, _diagonal_part(b, grad, offset, dim1, dim2))


def _diagonal_part(b: Builder, source: Tensor, offset: int, dim1: int, dim2: int) -> Part:
    rank, count = len(b.spec.shape), source.shape[-1]
    row, column = dim1 % rank, dim2 % rank
    check_diagonal(count, b.spec.shape[row], b.spec.shape[column], offset)
    top, left = max(-offset, 0), max(offset, 0)

    def inside(i: Index) -> list[tuple[str, Size, Size]]:
        along = i[row] - top
        return [("eq", along, i[column] - left), ("ge", along, 0), ("lt", along, count)]

    def index(i: Index) -> Index:
        rest = [e for d, e in enumerate(i) if d not in (row, column)]
        return (*rest, _inside(i[row] - top, count))

    return inside, index


def _inside(e: Size, count: Size) -> Size:
    return 0 if count == 1 else e


def _scatter(b: Builder, x: Tensor | None, source: Tensor, part: Part) -> Tensor:
    """`source` inside the slice, elsewhere x or zero."""
    inside, index = part
    dtype = b.spec.dtype

    def body(load: Load, i: Index) -> Value:
        mask: Value | None = None
        for op, left, right in inside(i):
            mask = both(mask, compare(op, index_value(left), index_value(right)))
        assert mask is not None
        return _where_inside(load, mask, source, index(i), const(0, dtype) if x is None else load(x, i))

    return b.map(b.spec.shape, dtype, (source,) if x is None else (x, source), body)


def _where_inside(load: Load, mask: Value, source: Tensor, index: Index, otherwise: Value) -> Value:
    """The element of `source`, or `otherwise` (whose dtype it takes) where `mask` is false."""
    return where(mask, cast(load.where(mask)(source, index), otherwise.dtype), otherwise)


MAX_WINDOWS = 16  # that may overlap at one element


@operator(aten.unfold_backward.default)
def unfold_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, size: int, step: int
) -> Tensor | None:
    """Each element sums the gradients of the windows that cover it: window `w` covers [w * step, w * step + size)."""
    if not shape or -(-size // step) > MAX_WINDOWS:
        return None
    dim %= len(shape)
    count, compute = grad.shape[dim], opmath(grad.dtype)

    def body(load: Load, i: Index) -> Value:
        total = const(0, compute)
        for back in range(-(-size // step)):
            window, at = i[dim] // step - back, i[dim] % step + back * step
            mask: Value | None = None
            for op, left, right in (("ge", window, 0), ("lt", window, count), ("lt", at, size)):
                mask = both(mask, compare(op, index_value(left), index_value(right)))
            assert mask is not None
            position = (*i[:dim], _inside(window, count), *i[dim + 1 :], _inside(at, size))
            total = total + _where_inside(load, mask, grad, position, const(0, compute))
        return cast(total, grad.dtype)

    return b.map(b.spec.shape, grad.dtype, (grad,), body, cost=3.0 * -(-size // step))


# ---- shapes on a CPU


def _of_sizes_layout(grad: torch.Tensor, sizes: Sequence[int], *_: Any) -> torch.Tensor:
    """The layout of a view's gradient: zeros of the base's sizes with some elements set."""
    return fresh(sizes, grad.dtype)


declare(aten.slice_backward.default, aten.select_backward.default, layout=_of_sizes_layout)
declare(aten.as_strided_scatter.default, trace_rule=TraceRule.STRIDED_SCATTER)
