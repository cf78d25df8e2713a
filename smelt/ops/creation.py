"""Tensors made of numbers or of indices: full, zeros, arange, eye; triangles of others."""

from __future__ import annotations

from typing import Any

import torch

from smelt.loops.builder import Builder
from smelt.loops.ir import Value
from smelt.loops.tensor import Index, Load, Tensor
from smelt.loops.values import cast, compare, const, where
from smelt.loops.values import index as index_value
from smelt.ops.recompute import Class
from smelt.ops.registry import declare, operator

aten = torch.ops.aten

declare(
    "full zeros ones scalar_tensor arange eye linspace empty empty_strided empty_like zeros_like ones_like full_like "
    "new_empty new_zeros new_ones new_full new_empty_strided empty_permuted tril_indices triu_indices",
    recompute=Class.CREATION,
)
declare("fill tril triu", recompute=Class.POINTWISE)
declare("tril triu zeros_like new_zeros", linear=("self",))
declare("eye tril triu", decomposed=True)


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
    return b.pointwise(lambda v: v, [value], value.dtype)


@operator(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)
def zeros(b: Builder, *args: Any, **options: Any) -> Tensor:
    return b.constant(lambda index: const(0, b.spec.dtype))


@operator(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *args: Any, **options: Any) -> Tensor:
    return b.constant(lambda index: const(1, b.spec.dtype))


@operator(aten.scalar_tensor.default, takes_numbers=True)
def scalar_tensor(b: Builder, value: float, **options: Any) -> Tensor:
    return full(b, (), value)


@operator(aten.arange.default)
def arange_end(b: Builder, end: float, **options: Any) -> Tensor:
    return arange(b, 0, end)


@operator(aten.arange.start)
def arange_start(b: Builder, start: float, end: float, **options: Any) -> Tensor:
    return arange(b, start, end)


@operator(aten.arange.start_step)
def arange(b: Builder, start: float, end: float, step: float = 1, **options: Any) -> Tensor:
    """Floats are computed in float64 and rounded, as ATen does on CPU."""
    if not b.spec.dtype.is_floating_point:
        if not isinstance(start, int) or not isinstance(step, int):
            start, step = int(start), int(step)
        return b.constant(lambda index: index_value(index[0] * step + start))

    def value(index: Index) -> Value:
        position = cast(index_value(index[0]), torch.float64)
        return position * float(step) + float(start)

    return b.constant(value)


@operator(aten.eye.default, aten.eye.m)
def eye(b: Builder, *args: Any, **options: Any) -> Tensor:
    dtype = b.spec.dtype

    def value(i: Index) -> Value:
        return where(compare("eq", index_value(i[0]), index_value(i[1])), const(1, dtype), const(0, dtype))

    return b.constant(value)


@operator(aten.tril.default, out=aten.tril.out)
def tril(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(b, x, lambda i: compare("le", index_value(i[-1] - i[-2]), index_value(diagonal)))


@operator(aten.triu.default, out=aten.triu.out)
def triu(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(b, x, lambda i: compare("ge", index_value(i[-1] - i[-2]), index_value(diagonal)))


def _triangle(b: Builder, x: Tensor, keep: Any) -> Tensor:
    def body(load: Load, i: Index) -> Value:
        inside = keep(i)
        return where(inside, load.where(inside)(x, i), const(0, x.dtype))

    return b.map(x.shape, x.dtype, [x], body)
