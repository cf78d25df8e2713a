"""Tensors made of numbers or of indices: full, zeros, arange, eye; triangles of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Tensor
from smelt.loops.loop_values import cast, compare, const, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder
from smelt.ops.layouts.meta_layouts import filled, fresh, like, on_any
from smelt.ops.may_raise import unless_half
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import Lowering, declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Expr, Size

aten = torch.ops.aten

declare(
    "full zeros ones scalar_tensor arange eye linspace empty empty_strided empty_like zeros_like ones_like full_like "
    "new_empty new_zeros new_ones new_full new_empty_strided empty_permuted tril_indices triu_indices",
    recompute=Class.CREATION,
)
declare("zero fill tril triu", any_size=True)
declare("fill tril triu", recompute=Class.POINTWISE)
declare("tril triu zeros_like new_zeros", linear=("self",))


declare("full full_like new_full", fits="fill_value")
declare("fill", fits="value")
declare("scalar_tensor", fits="s", fits_in=unless_half)
declare("fill", on_numbers=lambda old, new: new)
declare("zero", on_numbers=lambda old: 0.0)


@operator(
    aten.full.default, aten.new_full.default, aten.full_like.default, aten.fill.Scalar, takes_numbers=True
)
def full(b: Builder, first: Any, value: Any, second: Any = None, **options: Any) -> Tensor:
    """full(size, value), full_like(x, value), fill(x, value), new_full(x, size, value)."""
    number = value if second is None else second
    if isinstance(number, Tensor):
        return b.pointwise(lambda v: v, [number], b.spec.dtype)
    return b.constant(lambda index: const(number, b.spec.dtype))


@operator(aten.fill.Tensor)
def fill(b: Builder, x: Tensor, value: Tensor) -> Tensor:
    """The node determines dtype and layout; the elements of x are not read."""
    return b.pointwise(lambda v: v, [value], value.dtype)


def _filled(number: int) -> Lowering:
    """The node determines sizes, dtype and layout."""
    return lambda b, *_, **__: b.constant(lambda index: const(number, b.spec.dtype))


declare(
    *(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default),
    lowering=_filled(0),
)
declare(aten.ones.default, aten.ones_like.default, aten.new_ones.default, lowering=_filled(1))
declare(aten.scalar_tensor.default, lowering=lambda b, value, **_: full(b, (), value), takes_numbers=True)
declare(aten.arange.default, lowering=lambda b, end, **_: arange(b, 0, end), takes_sizes=True)


@operator(aten.arange.start, aten.arange.start_step, takes_sizes=True)
def arange(
    b: Builder, start: Size | float, end: Size | float, step: Size | float = 1, **options: Any
) -> Tensor:
    """Floats are computed in float64 and rounded, as on ATen's CPU."""
    if not b.spec.dtype.is_floating_point:
        first, by = (int(n) if isinstance(n, float) else n for n in (start, step))
        return b.constant(lambda index: index_value(index[0] * by + first))

    def number(n: Size | float) -> Value | float:
        return cast(index_value(n), torch.float64) if isinstance(n, Expr) else float(n)

    def value(index: Index) -> Value:
        return cast(index_value(index[0]), torch.float64) * number(step) + number(start)

    return b.constant(value)


@operator(aten.eye.default, aten.eye.m)
def eye(b: Builder, *args: Any, **options: Any) -> Tensor:
    """1 where row and column are equal, also for matrices that are not square."""
    dtype = b.spec.dtype

    def value(i: Index) -> Value:
        return where(compare("eq", index_value(i[0]), index_value(i[1])), const(1, dtype), const(0, dtype))

    return b.constant(value)


def _triangle(comparison: str) -> Lowering:
    """Elements where `column - row` compares with `diagonal`; zero elsewhere, where x is not read."""

    def lower(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
        def body(load: Load, i: Index) -> Value:
            inside = compare(comparison, index_value(i[-1] - i[-2]), index_value(diagonal))
            return where(inside, load.where(inside)(x, i), const(0, x.dtype))

        return b.map(x.shape, x.dtype, [x], body)

    return lower


declare(aten.tril.default, lowering=_triangle("le"), out=aten.tril.out)
declare(aten.triu.default, lowering=_triangle("ge"), out=aten.triu.out)


# ---- shapes on a CPU


def _full_layout(
    size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **__: Any
) -> torch.Tensor:
    return fresh(size, dtype or torch.full((), value).dtype)


def _new_layout(
    x: torch.Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any
) -> Any:
    return fresh(size, dtype or x.dtype)


def _scalar_layout(value: Any, *, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return fresh((), dtype)


def _arange_between_layout(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **__: Any
) -> Any:
    """Integers are counted exactly, floats in double precision."""
    whole = all(type(n) is int for n in (start, end, step))
    if not all(type(n) in (int, float) and math.isfinite(n) for n in (start, end, step)):
        return NotImplemented
    if step == 0 or (end - start) * step < 0 or (not whole and dtype is not None):
        return NotImplemented
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return fresh((length,), dtype or (torch.int64 if whole else None))


def _arange_layout(end: Any, **options: Any) -> Any:
    return _arange_between_layout(0, end, 1, **options)


declare(
    *(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
    layout=like,
    layout_on=on_any(like),
)
declare(aten.zeros.default, aten.ones.default, layout=filled)
declare(aten.full.default, layout=_full_layout)
declare(
    *(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
    layout=_new_layout,
)
declare(aten.scalar_tensor.default, layout=_scalar_layout)
declare(aten.arange.default, layout=_arange_layout)
declare(aten.arange.start, aten.arange.start_step, layout=_arange_between_layout)
declare(aten._efficientzerotensor.default, trace_rule=TraceRule.ZERO)
declare(aten.full.default, aten.full_like.default, filled=lambda first, value: value)
declare(aten.scalar_tensor.default, filled=lambda value: value)
declare(aten.fill.Scalar, aten.fill_.Scalar, filled=lambda x, value: value)
declare(aten.new_full.default, filled=lambda x, size, value: value)
declare(aten.ones.default, filled=lambda size: 1)
declare(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, filled=lambda *args: 0)
