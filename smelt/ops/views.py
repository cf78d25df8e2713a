"""Views: functions on indices. Nothing here computes or moves anything; `copies` at the end have memory of their own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch

from smelt.graph.sizes import Size, bounds, contiguous_stride, numel, static
from smelt.loops.builder import Builder, broadcast
from smelt.loops.dtypes import opmath
from smelt.loops.ir import Value
from smelt.loops.tensor import Index, Load, Tensor
from smelt.loops.values import both, cast, compare, const, where
from smelt.loops.values import index as index_value
from smelt.ops.registry import LOWERINGS, lowers

aten = torch.ops.aten


@lowers(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
def alias(b: Builder, x: Tensor) -> Tensor:
    return b.view(x, x.shape, lambda index: index)


@lowers(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def view(b: Builder, x: Tensor, shape: Sequence[Size], stride: Sequence[Size] | None = None) -> Tensor:
    return b.view(x, b.spec.shape, reshape_index(x.shape, b.spec.shape))


@lowers(aten.permute.default)
def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    place = [0] * rank  # place[d]: where dimension d of x went
    for position, d in enumerate(dims):
        place[d % rank] = position
    return b.view(x, b.spec.shape, lambda index: tuple([index[p] for p in place]))


@lowers(aten.transpose.int)
def transpose(b: Builder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    dims = list(range(len(x.shape)))
    if dims:
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(b, x, dims)


@lowers(aten.t.default)
def t(b: Builder, x: Tensor) -> Tensor:
    return permute(b, x, list(reversed(range(len(x.shape)))))


@lowers(aten.expand.default)
def expand(b: Builder, x: Tensor, shape: Sequence[Size], *, implicit: bool = False) -> Tensor:
    return b.view(x, b.spec.shape, lambda index: broadcast(index, x.shape))


@lowers(aten.slice.Tensor)
def slice_(
    b: Builder, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    dim %= len(x.shape)
    first = _clamped(start or 0, x.shape[dim])
    return b.view(x, b.spec.shape, _moved(dim, lambda i: first + i * step))


@lowers(aten.select.int)
def select(b: Builder, x: Tensor, dim: int, index: int) -> Tensor:
    dim %= len(x.shape)
    at = index + x.shape[dim] if index < 0 else index
    return b.view(x, b.spec.shape, _inserted(dim, at))


@lowers(aten.unsqueeze.default)
def unsqueeze(b: Builder, x: Tensor, dim: int) -> Tensor:
    dim %= len(x.shape) + 1
    return b.view(x, b.spec.shape, lambda i: (*i[:dim], *i[dim + 1 :]))


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(b: Builder, x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    rank = len(x.shape)
    named = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % rank for d in named if x.shape[d] == 1} if rank else set()

    def index(i: Index) -> Index:
        rest = iter(i)
        return tuple([0 if d in gone else next(rest) for d in range(rank)])

    return b.view(x, b.spec.shape, index)


@lowers(aten.split.Tensor)
def split(b: Builder, x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(b, x, dim, [i * size for i in range(len(b.spec))])


@lowers(aten.split_with_sizes.default)
def split_with_sizes(b: Builder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(b, x, dim, [sum(sizes[:i]) for i in range(len(sizes))])


def _pieces(b: Builder, x: Tensor, dim: int, starts: Sequence[int]) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    return tuple(
        b.view(x, spec.shape, _moved(dim, partial(operator.add, start)))
        for spec, start in zip(b.spec, starts)
    )


@lowers(aten.unbind.int)
def unbind(b: Builder, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    return tuple(b.view(x, spec.shape, _inserted(dim, at)) for at, spec in enumerate(b.spec))


@lowers(aten.diagonal.default)
def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    row, column = dim1 % rank, dim2 % rank

    def index(i: Index) -> Index:
        rest = iter(i[:-1])
        at = {row: i[-1] + max(-offset, 0), column: i[-1] + max(offset, 0)}
        return tuple([at[d] if d in at else next(rest) for d in range(rank)])

    return b.view(x, b.spec.shape, index)


@lowers(aten.unfold.default)
def unfold(b: Builder, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not x.shape:
        return b.view(x, b.spec.shape, lambda i: ())
    dim = dimension % len(x.shape)
    return b.view(x, b.spec.shape, lambda i: (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]))


@lowers(aten.as_strided.default)
def as_strided(
    b: Builder, x: Tensor, size: Sequence[Size], stride: Sequence[Size], storage_offset: int | None = None
) -> Tensor | None:
    """Of a tensor that fills its memory densely, every address is an element; otherwise ATen does it."""
    decode = _addresses(x)
    if decode is None:
        return None
    start = 0 if storage_offset is None else storage_offset - x.spec.offset

    def index(i: Index) -> Index:
        return decode(sum((a * s for a, s in zip(i, stride)), start))

    return b.view(x, b.spec.shape, index)


def _addresses(x: Tensor) -> Callable[[Size], Index] | None:
    """From an element offset in x's memory to x's index."""
    dims = sorted((d for d, s in enumerate(x.shape) if s != 1), key=lambda d: bounds(x.spec.stride[d]))
    expected: Size = 1
    for d in dims:
        if x.spec.stride[d] != expected:
            return None
        expected = expected * x.shape[d]
    strides = x.spec.stride

    def decode(address: Size) -> Index:
        return tuple([0 if s == 1 else address // strides[d] % s for d, s in enumerate(x.shape)])

    return decode


def _clamped(position: int, size: Size) -> int:
    length = static(size)
    return max(0, min(position + length if position < 0 else position, length))


def _inserted(dim: int, at: Size) -> Callable[[Index], Index]:
    return lambda i: (*i[:dim], at, *i[dim:])


def _moved(dim: int, f: Callable[[Size], Size]) -> Callable[[Index], Index]:
    return lambda i: (*i[:dim], f(i[dim]), *i[dim + 1 :])


# ---- reshaping


def reshape_index(old: Sequence[Size], new: Sequence[Size]) -> Callable[[Index], Index]:
    """The function from an index of shape `new` to the index of shape `old` of the same row-major position. Dimensions
    are first matched into groups of equal size, so that what a reshape leaves alone costs nothing."""
    groups = _matched(old, new)
    rank = len(old)

    def index(i: Index) -> Index:
        out: list[Size] = [0] * rank
        for sources, targets, strides in groups:
            if len(sources) == 1 == len(targets):
                out[sources[0]] = i[targets[0]]
                continue
            position: Size = 0
            for d, stride in zip(targets, strides):
                position = position + i[d] * stride
            _decode(position, sources, old, out)
        return tuple(out)

    return index


def _decode(position: Size, dims: Sequence[int], shape: Sequence[Size], out: list[Size]) -> None:
    """Write the row-major digits of `position` over `dims`."""
    for d in reversed(dims[1:]):
        out[d] = position % shape[d]
        position = position // shape[d]
    out[dims[0]] = position


def _matched(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int], tuple[Size, ...]]]:
    sources = [d for d, s in enumerate(old) if s != 1]
    targets = [d for d, s in enumerate(new) if s != 1]
    if not all(isinstance(s, int) for s in (*old, *new)):
        return [(sources, targets, contiguous_stride([new[d] for d in targets]))] if sources else []
    groups = []
    while sources:
        left, right = [sources.pop(0)], [targets.pop(0)]
        while (a := prod([static(old[d]) for d in left])) != (z := prod([static(new[d]) for d in right])):
            if a < z:
                left.append(sources.pop(0))
            else:
                right.append(targets.pop(0))
        groups.append((left, right, contiguous_stride([new[d] for d in right])))
    return groups


# ---- copies: functions on indices too, with memory of their own


@lowers(aten.flip.default)
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {d % len(x.shape) for d in dims} if x.shape else set()
    return b.copy(
        x, x.shape, lambda i: tuple([x.shape[d] - 1 - e if d in flipped else e for d, e in enumerate(i)])
    )


@lowers(aten.roll.default)
def roll(b: Builder, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return _roll_flat(b, x, shifts[0])
    shift = [0] * len(x.shape)
    for s, d in zip(shifts, dims):
        shift[d] += s

    def index(i: Index) -> Index:
        return tuple([(e - s) % n if s % n else e for e, s, n in zip(i, shift, x.shape)])

    return b.copy(x, x.shape, index)


def _roll_flat(b: Builder, x: Tensor, shift: int) -> Tensor:
    total = static(numel(x.shape))
    flatten, unflatten = reshape_index((total,), x.shape), reshape_index(x.shape, (total,))
    return b.copy(x, x.shape, lambda i: unflatten(((flatten(i)[0] - shift) % total,)) if total != 1 else i)


@lowers(aten.repeat.default)
def repeat(b: Builder, x: Tensor, repeats: Sequence[int]) -> Tensor:
    skip = len(repeats) - len(x.shape)
    return b.copy(
        x, b.spec.shape, lambda i: tuple([0 if s == 1 else e % s for e, s in zip(i[skip:], x.shape)])
    )


# ---- copies with one tensor inside another (or inside zeros: what the backward of a view gives)

Inside = Callable[
    [Index], list[tuple[str, Size, Size]]
]  # conditions (comparison, left, right), all of which must hold
Part = tuple[
    Inside, Callable[[Index], Index]
]  # where the part stands, and which of its elements stands there


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: Builder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    return _scatter(b, x, source, _slice_part(b, source, dim, start, step))


@lowers(aten.slice_backward.default)
def slice_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, start: int, end: int, step: int
) -> Tensor | None:
    if step != 1 and dim % len(shape) == len(shape) - 1:  # gathers: ATen's copy into zeros is faster
        return None
    return _scatter(b, None, grad, _slice_part(b, grad, dim, start, step))


def _slice_part(b: Builder, source: Tensor, dim: int, start: int | None, step: int) -> Part:
    dim %= len(b.spec.shape)
    first = _clamped(start or 0, b.spec.shape[dim])
    count = source.shape[dim]

    def inside(i: Index) -> list[tuple[str, Size, Size]]:
        return [
            ("ge", i[dim], first),
            ("lt", i[dim], first + count * step),
            ("eq", (i[dim] - first) % step, 0),
        ]

    return inside, _moved(dim, lambda e: _inside((e - first) // step, count))


@lowers(aten.select_scatter.default)
def select_scatter(b: Builder, x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    return _scatter(b, x, source, _select_part(b, dim, index))


@lowers(aten.select_backward.default)
def select_backward(b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, index: int) -> Tensor:
    return _scatter(b, None, grad, _select_part(b, dim, index))


def _select_part(b: Builder, dim: int, index: int) -> Part:
    dim %= len(b.spec.shape)
    at = index + b.spec.shape[dim] if index < 0 else index
    return lambda i: [("eq", i[dim], at)], lambda i: (*i[:dim], *i[dim + 1 :])


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    return _scatter(b, x, source, _diagonal_part(b, source, offset, dim1, dim2))


@lowers(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Tensor:
    return _scatter(b, None, grad, _diagonal_part(b, grad, offset, dim1, dim2))


def _diagonal_part(b: Builder, source: Tensor, offset: int, dim1: int, dim2: int) -> Part:
    rank, count = len(b.spec.shape), source.shape[-1]
    row, column = dim1 % rank, dim2 % rank
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
    """`source` where the part stands, elsewhere x or zero."""
    inside, index = part
    dtype = b.spec.dtype

    def body(load: Load, i: Index) -> Value:
        mask: Value | None = None
        for op, left, right in inside(i):
            mask = both(mask, compare(op, index_value(left), index_value(right)))
        assert mask is not None
        there = cast(load.where(mask)(source, index(i)), dtype)
        return where(mask, there, const(0, dtype) if x is None else load(x, i))

    return b.map(b.spec.shape, dtype, (source,) if x is None else (x, source), body)


MAX_WINDOWS = 16  # that may overlap at one element


@lowers(aten.unfold_backward.default)
def unfold_backward(
    b: Builder, grad: Tensor, shape: Sequence[Size], dim: int, size: int, step: int
) -> Tensor | None:
    """Each element sums what the windows that cover it give: window `w` covers [w * step, w * step + size)."""
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
            place = (*i[:dim], _inside(window, count), *i[dim + 1 :], _inside(at, size))
            total = total + cast(load.where(mask)(grad, place), compute)  # 0 where nothing is read
        return cast(total, grad.dtype)

    return b.map(b.spec.shape, grad.dtype, (grad,), body, cost=3.0 * -(-size // step))


LOWERINGS[aten.broadcast_to.default] = expand
