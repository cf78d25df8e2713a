"""Tensors made of indices (arange, full, eye, tril) and tensors put together or padded (cat, stack, constant_pad_nd)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.sizes import Size
from smelt.loops.builder import Builder, Operand
from smelt.loops.ir import Value
from smelt.loops.tensor import Index, Load, Tensor
from smelt.loops.values import both, call, cast, compare, const, where
from smelt.loops.values import index as index_value
from smelt.ops.registry import TAKE_NUMBERS, lowers

aten = torch.ops.aten


@lowers(aten.full.default, aten.new_full.default, aten.full_like.default, aten.fill.Scalar)
def full(b: Builder, first: Any, value: Any, second: Any = None, **options: Any) -> Tensor:
    """full(size, value), full_like(x, value), fill(x, value), new_full(x, size, value)."""
    number = value if second is None else second
    if isinstance(number, Tensor):
        return b.pointwise(lambda v: v, [number], b.spec.dtype)
    return b.constant(lambda index: const(number, b.spec.dtype))


@lowers(aten.fill.Tensor)
def fill(b: Builder, x: Tensor, value: Tensor) -> Tensor:
    return b.pointwise(lambda v: v, [value], value.dtype)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)
def zeros(b: Builder, *args: Any, **options: Any) -> Tensor:
    return b.constant(lambda index: const(0, b.spec.dtype))


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *args: Any, **options: Any) -> Tensor:
    return b.constant(lambda index: const(1, b.spec.dtype))


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: float, **options: Any) -> Tensor:
    return full(b, (), value)


TAKE_NUMBERS.update(
    (
        aten.full.default,
        aten.new_full.default,
        aten.full_like.default,
        aten.fill.Scalar,
        aten.scalar_tensor.default,
    )
)


@lowers(aten.arange.default)
def arange_end(b: Builder, end: float, **options: Any) -> Tensor:
    return arange(b, 0, end)


@lowers(aten.arange.start)
def arange_start(b: Builder, start: float, end: float, **options: Any) -> Tensor:
    return arange(b, start, end)


@lowers(aten.arange.start_step)
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


@lowers(aten.eye.default, aten.eye.m)
def eye(b: Builder, *args: Any, **options: Any) -> Tensor:
    dtype = b.spec.dtype

    def value(i: Index) -> Value:
        return where(compare("eq", index_value(i[0]), index_value(i[1])), const(1, dtype), const(0, dtype))

    return b.constant(value)


@lowers(aten.tril.default)
def tril(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(b, x, lambda i: compare("le", index_value(i[-1] - i[-2]), index_value(diagonal)))


@lowers(aten.triu.default)
def triu(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(b, x, lambda i: compare("ge", index_value(i[-1] - i[-2]), index_value(diagonal)))


def _triangle(b: Builder, x: Tensor, keep: Any) -> Tensor:
    def body(load: Load, i: Index) -> Value:
        inside = keep(i)
        return where(inside, load.where(inside)(x, i), const(0, x.dtype))

    return b.map(x.shape, x.dtype, [x], body)


# ---- putting together


@lowers(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    parts = [t for t in tensors if t.shape != (0,)]
    if not all(isinstance(s, int) for t in parts for s in t.shape):
        return None
    dim %= len(b.spec.shape)
    parts = [t for t in parts if t.shape[dim] != 0]
    return _joined(b, parts, dim, [t.shape[dim] for t in parts], lambda i, at: (*i[:dim], at, *i[dim + 1 :]))


@lowers(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim %= len(b.spec.shape)
    return _joined(b, tensors, dim, [1] * len(tensors), lambda i, at: (*i[:dim], *i[dim + 1 :]))


def _joined(b: Builder, parts: Sequence[Tensor], dim: int, sizes: Sequence[Any], index: Any) -> Tensor:
    """Parts one after the other along `dim`: a chain of `where`, each part read only where it stands."""
    dtype = b.spec.dtype
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def element(load: Load, i: Index, k: int) -> Value:
        at: Size = 0 if sizes[k] == 1 else i[dim] - starts[k]
        return cast(load(parts[k], index(i, at)), dtype)

    def body(load: Load, i: Index) -> Value:
        return choose(load, i, 0, None)

    def choose(load: Load, i: Index, k: int, outside: Value | None) -> Value:
        if k == len(parts) - 1:
            return element(load if outside is None else load.where(outside), i, k)
        position, end = index_value(i[dim]), index_value(starts[k] + sizes[k])
        here, later = compare("lt", position, end), compare("ge", position, end)
        if here.op == "const":
            return element(load, i, k) if here.args[0] else choose(load, i, k + 1, outside)
        mask = both(outside, here)
        assert mask is not None
        return where(here, element(load.where(mask), i, k), choose(load, i, k + 1, both(outside, later)))

    return b.map(b.spec.shape, dtype, parts, body, cost=2.0 * (len(parts) - 1))


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    before = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        before[len(x.shape) - 1 - k] = pad[2 * k]
    after = [out - size - lo for out, size, lo in zip(b.spec.shape, x.shape, before)]
    fill = const(value, x.dtype)

    def body(load: Load, i: Index) -> Value:
        mask: Value | None = None
        for d, size in enumerate(x.shape):
            if before[d]:
                mask = both(mask, compare("ge", index_value(i[d]), index_value(before[d])))
            if after[d]:
                mask = both(mask, compare("lt", index_value(i[d]), index_value(before[d] + size)))
        at = tuple([0 if size == 1 else e - lo for e, size, lo in zip(i, x.shape, before)])
        if mask is None:
            return load(x, at)
        return where(mask, load.where(mask)(x, at), fill)

    return b.map(b.spec.shape, x.dtype, [x], body)


@lowers(aten.glu.default)
def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    dim %= len(x.shape)
    half = b.spec.shape[dim]
    first = b.view(x, b.spec.shape, lambda i: i)
    second = b.view(x, b.spec.shape, lambda i: (*i[:dim], i[dim] + half, *i[dim + 1 :]))
    return b.pointwise(lambda u, v: u * call("sigmoid", v), [first, second], cost=14)


@lowers(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec)
def upsample_nearest2d(b: Builder, x: Tensor, *args: Operand) -> Tensor | None:
    """Whole multiples only: there the source pixel is exact integer division."""
    (_, _, h, w), (_, _, big_h, big_w) = x.shape, b.spec.shape
    if big_h % h or big_w % w:
        return None
    kh, kw = big_h // h, big_w // w
    if any(isinstance(a, float) and a not in (kh, kw) for a in args):
        return None
    return b.copy(x, b.spec.shape, lambda i: (i[0], i[1], i[2] // kh, i[3] // kw))
