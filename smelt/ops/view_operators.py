"""Views as functions on indices. They compute and move nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import add, mul
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.graph.sample_sizes import syms_of
from smelt.loops.lazy_tensor import Index, Tensor
from smelt.loops.lowering_builder import Builder, broadcast
from smelt.ops.layouts.meta_layouts import to_meta
from smelt.ops.node_builders import CLONE, Emitter
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Size, all_static, bounds, contiguous_stride, numel, proves_le, static
from smelt.torch_private import OpOverload

aten = torch.ops.aten
WrittenThrough = Callable[..., Node]

declare("_unsafe_view", recompute=Class.VIEW, linear=("self",))  # its schema calls the result fresh
declare(
    "_reshape_alias _unsafe_view alias detach expand permute select slice split_with_sizes squeeze t",
    "transpose unbind unfold unsqueeze view view_as_complex view_as_real",
    any_size=True,
)
declare("_unsafe_view alias detach squeeze unsqueeze", aten.view.default, elements="same")
declare("permute select slice split_with_sizes t transpose unbind", aten.split.Tensor, elements="once")
declare("expand", elements="repeated")
declare("view_copy", recompute=Class.POINTWISE, linear=("self",))
declare("_reshape_copy", recompute=Class.MOVEMENT, linear=("self",))
declare("real imag", linear=("self",))


@operator(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
def alias(b: Builder, x: Tensor) -> Tensor:
    """The same elements at the same indices."""
    return b.view(x, x.shape, lambda index: index)


@operator(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def view(b: Builder, x: Tensor, shape: Sequence[Size], stride: Sequence[Size] | None = None) -> Tensor:
    """The element at the same row-major position; the node's spec has the shape, with -1 resolved."""
    return b.view(x, b.spec.shape, reshape_index(x.shape, b.spec.shape))


@operator(aten.permute.default)
def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Dimension i of the result is dimension dims[i] of x."""
    rank = len(x.shape)
    target = [0] * rank  # target[d]: the dimension of the result that dimension d of x becomes
    for position, d in enumerate(dims):
        target[d % rank] = position
    return b.view(x, b.spec.shape, lambda index: tuple([index[p] for p in target]))


@operator(aten.transpose.int)
def transpose(b: Builder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    """A tensor without dimensions stays as it is."""
    dims = list(range(len(x.shape)))
    if dims:
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(b, x, dims)


@operator(aten.t.default)
def t(b: Builder, x: Tensor) -> Tensor:
    """Of at most two dimensions."""
    return permute(b, x, list(reversed(range(len(x.shape)))))


@operator(aten.expand.default, aten.broadcast_to.default)
def expand(b: Builder, x: Tensor, shape: Sequence[Size], *, implicit: bool = False) -> Tensor:
    """The index is 0 in dimensions of size 1; new dimensions are in front."""
    return b.view(x, b.spec.shape, lambda index: broadcast(index, x.shape))


@operator(aten.slice.Tensor)
def slice_(
    b: Builder, x: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Tensor:
    """Element i is element start + i * step, `start` clamped to 0..size; the node's shape determines the end."""
    dim %= len(x.shape)
    first = clamped(start or 0, x.shape[dim])
    return b.view(x, b.spec.shape, moved(dim, lambda i: first + i * step))


@operator(aten.select.int)
def select(b: Builder, x: Tensor, dim: int, index: Size) -> Tensor:
    """A negative index counts from the end."""
    dim %= len(x.shape)
    at = selected(index, x.shape[dim])
    return b.view(x, b.spec.shape, _inserted(dim, at))


@operator(aten.unsqueeze.default)
def unsqueeze(b: Builder, x: Tensor, dim: int) -> Tensor:
    """`dim` counts in the result's dimensions."""
    dim %= len(x.shape) + 1
    return b.view(x, b.spec.shape, lambda i: (*i[:dim], *i[dim + 1 :]))


@operator(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(b: Builder, x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    """Named dimensions of a size other than 1 stay."""
    rank = len(x.shape)
    named = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % rank for d in named if x.shape[d] == 1} if rank else set()

    def index(i: Index) -> Index:
        rest = iter(i)
        return tuple([0 if d in gone else next(rest) for d in range(rank)])

    return b.view(x, b.spec.shape, index)


@operator(aten.split.Tensor)
def split(b: Builder, x: Tensor, size: Size, dim: int = 0) -> tuple[Tensor, ...]:
    """Chunks of `size`; the last one may be smaller."""
    return _chunks(b, x, dim, [i * size for i in range(len(b.spec))])


@operator(aten.split_with_sizes.default)
def split_with_sizes(b: Builder, x: Tensor, sizes: Sequence[Size], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive chunks of the listed sizes."""
    return _chunks(b, x, dim, [sum(sizes[:i]) for i in range(len(sizes))])


def _chunks(b: Builder, x: Tensor, dim: int, starts: Sequence[Size]) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    if sum((spec.shape[dim] for spec in b.spec), 0) != x.shape[dim]:
        static(x.shape[dim])  # the number of chunks depends on it
    return tuple(
        b.view(x, spec.shape, moved(dim, partial(add, start))) for spec, start in zip(b.spec, starts)
    )


@operator(aten.unbind.int)
def unbind(b: Builder, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """One view for each index along `dim`, without that dimension."""
    dim %= len(x.shape)
    static(x.shape[dim])
    return tuple(b.view(x, spec.shape, _inserted(dim, at)) for at, spec in enumerate(b.spec))


@operator(aten.diagonal.default)
def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Positions along the diagonal are the last dimension; a positive offset is above the main diagonal."""
    rank = len(x.shape)
    row, column = dim1 % rank, dim2 % rank
    check_diagonal(b.spec.shape[-1], x.shape[row], x.shape[column], offset)

    def index(i: Index) -> Index:
        rest = iter(i[:-1])
        at = {row: i[-1] + max(-offset, 0), column: i[-1] + max(offset, 0)}
        return tuple([at[d] if d in at else next(rest) for d in range(rank)])

    return b.view(x, b.spec.shape, index)


@operator(aten.unfold.default)
def unfold(b: Builder, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Window i along the dimension starts at i * step; positions within a window are the last dimension."""
    if not x.shape:
        return b.view(x, b.spec.shape, lambda i: ())
    dim = dimension % len(x.shape)
    return b.view(x, b.spec.shape, lambda i: (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]))


@operator(aten.as_strided.default)
def as_strided(
    b: Builder, x: Tensor, size: Sequence[Size], stride: Sequence[Size], storage_offset: int | None = None
) -> Tensor | None:
    """For a tensor that fills its memory densely, every address is an element; otherwise an ATen call."""
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


def clamped(position: Size, size: Size) -> Size:
    """A slice's start as Python reads it: from the end if negative, then within 0..size. If symbols decide, the trace
    guards that it is within (`tracing/composites/symbolic_selects.py`)."""
    if isinstance(position, int) and position < 0:
        position = position + size
    if isinstance(position, int) and isinstance(size, int):
        return max(0, min(position, size))
    return position


def selected(index: Size, size: Size) -> Size:
    """An index as Python reads it: from the end if negative, within 0..size - 1, which the trace guards."""
    return index + size if isinstance(index, int) and index < 0 else index


def check_diagonal(count: Size, rows: Size, columns: Size, offset: int) -> None:
    """Raise NeedsFixedSize if symbols decide whether rows or columns end a diagonal of `count` elements."""
    ends = rows - max(-offset, 0), columns - max(offset, 0)
    if count not in ends or not all(proves_le(count, end) for end in ends):
        all_static(rows, columns)


def _inserted(dim: int, at: Size) -> Callable[[Index], Index]:
    return lambda i: (*i[:dim], at, *i[dim:])


def moved(dim: int, f: Callable[[Size], Size]) -> Callable[[Index], Index]:
    """The index with `f` applied to its entry for `dim`."""
    return lambda i: (*i[:dim], f(i[dim]), *i[dim + 1 :])


# ---- reshaping


def reshape_index(old: Sequence[Size], new: Sequence[Size]) -> Callable[[Index], Index]:
    """The map from an index of shape `new` to the index of shape `old` with the same row-major position. Dimensions
    are first matched into groups of equal size, so that unchanged dimensions cost nothing."""
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
    """Groups end where equally many elements precede in both shapes, or follow; equal products are the same object.
    Symbols thus show that (s, t, 64) and (s*t, 64) share their last dimension."""
    sources = [d for d, s in enumerate(old) if s != 1]
    targets = [d for d, s in enumerate(new) if s != 1]
    left, right = [old[d] for d in sources], [new[d] for d in targets]
    groups = []
    i = j = 0
    for end, to in _common_ends(left, right):
        strides = contiguous_stride(right[j:to])
        groups.append((sources[i:end], targets[j:to], strides))
        i, j = end, to
    return groups


def _common_ends(left: Sequence[Size], right: Sequence[Size]) -> list[tuple[int, int]]:
    if not left:
        return []
    front, back = list(accumulate(left, mul)), list(accumulate(reversed(left), mul))
    before: dict[Size, int] = {product: j for j, product in enumerate(accumulate(right, mul), 1)}
    behind: dict[Size, int] = {n: len(right) - j for j, n in enumerate(accumulate(reversed(right), mul), 1)}
    ends = [(0, 0)]
    for i in range(1, len(left)):
        j = before.get(front[i - 1]) or behind.get(back[-1 - i], 0)
        if ends[-1][1] < j < len(right):
            ends.append((i, j))
    return [*ends[1:], (len(left), len(right))]


# ---- shapes on a CPU


declare(aten._unsafe_view.default, layout=lambda x, size: to_meta(x.view(size)))


# ---- what is written through a view, put into its base


def _through_reshape(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    try:
        return e.emit(aten.view.default, (value, list(base.spec.shape)))
    except RuntimeError:
        dense = e.emit(CLONE, (value,), {"memory_format": torch.contiguous_format})
        return e.emit(aten.view.default, (dense, list(base.spec.shape)))


def _through(inverse: OpOverload) -> WrittenThrough:
    """The inverse of a view, with the view's own arguments."""
    return lambda e, base, value, *args: e.emit(inverse, (value, *args))


def _scattered(scatter: OpOverload) -> WrittenThrough:
    return lambda e, base, *args, **kwargs: _scatter_into(e, scatter, base, *args, **kwargs)


def _through_permute(e: Emitter, base: Node, value: Node, dims: Sequence[int]) -> Node:
    rank = len(dims)
    order = [d % rank for d in dims]
    return e.emit(aten.permute.default, (value, [order.index(i) for i in range(rank)]))


def _scatter_into(e: Emitter, op: OpOverload, base: Node, *args: Any, **kwargs: Any) -> Node:
    """`base` with a slice replaced. It has the layout of a row-major base, which holds for all sizes."""
    spec = base.spec
    is_symbolic = bool(syms_of(spec)) and spec.stride == contiguous_stride(spec.shape)
    known = replace(spec, offset=0, requires_grad=False) if is_symbolic else None
    return e.emit(op, (base, *args), kwargs, known)


def _through_expand(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    if base.spec.shape == value.spec.shape:
        return value
    if numel(base.spec.shape) != numel(value.spec.shape):
        raise e.refuse("an expanded view is written")
    return _through_reshape(e, base, value)


def _through_split(e: Emitter, base: Node, value: Node, item: int, size: int, dim: int = 0) -> Node:
    return _scatter_into(e, aten.slice_scatter.default, base, value, dim, item * size, (item + 1) * size)


def _through_split_sizes(
    e: Emitter, base: Node, value: Node, item: int, sizes: Sequence[int], dim: int = 0
) -> Node:
    start = sum(sizes[:item])
    return _scatter_into(e, aten.slice_scatter.default, base, value, dim, start, start + sizes[item])


def _through_as_strided(e: Emitter, base: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
    spec = base.spec
    extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride))
    if spec.offset or extent != numel(base.spec.shape):
        raise e.refuse("an as_strided view of a tensor with gaps is written")
    return e.emit(aten.as_strided_scatter.default, (base, value, *args), kwargs)


def _through_from_real(e: Emitter, base: Node, value: Node) -> Node:
    dense = e.emit(CLONE, (value,), {"memory_format": torch.contiguous_format})
    return e.emit(aten.view_as_complex.default, (dense,))


declare(
    *(aten.view.default, aten._reshape_alias.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    written_through=_through_reshape,
)
declare(aten.alias.default, aten.detach.default, written_through=lambda e, base, value, *_: value)
declare(aten.transpose.int, written_through=_through(aten.transpose.int))
declare(aten.t.default, written_through=_through(aten.t.default))
declare(aten.permute.default, written_through=_through_permute)
declare(aten.slice.Tensor, written_through=_scattered(aten.slice_scatter.default))
declare(aten.select.int, written_through=_scattered(aten.select_scatter.default))
declare(
    aten.diagonal.default,
    written_through=lambda e, base, value, *args, **kwargs: e.emit(
        aten.diagonal_scatter.default, (base, value, *args), kwargs
    ),
)
declare(aten.expand.default, written_through=_through_expand)
declare(aten.split.Tensor, written_through=_through_split)
declare(aten.split_with_sizes.default, written_through=_through_split_sizes)
declare(
    aten.unbind.int,
    written_through=lambda e, base, value, item, dim=0: _scatter_into(
        e, aten.select_scatter.default, base, value, dim, item
    ),
)
declare(aten.as_strided.default, written_through=_through_as_strided)
declare(
    aten.view.dtype,
    written_through=lambda e, base, value, _: e.emit(aten.view.dtype, (value, base.spec.dtype)),
)
declare(aten.view_as_real.default, written_through=_through_from_real)
declare(aten.view_as_complex.default, written_through=_through(aten.view_as_real.default))


# ---- while they are recorded

declare("lift_fresh lift", trace_rule=TraceRule.LIFT)
declare(aten.unsafe_split.Tensor, trace_rule=TraceRule.AS_OTHER, view=aten.split.Tensor)
declare(
    aten.unsafe_split_with_sizes.default, trace_rule=TraceRule.AS_OTHER, view=aten.split_with_sizes.default
)
declare(aten.as_strided.default, aten.as_strided_copy.default, trace_rule=TraceRule.STRIDED)
declare(aten.squeeze_.default, trace_rule=TraceRule.RESHAPED, view=aten.squeeze.default)
declare(aten.squeeze_.dim, trace_rule=TraceRule.RESHAPED, view=aten.squeeze.dim)
declare(aten.squeeze_.dims, trace_rule=TraceRule.RESHAPED, view=aten.squeeze.dims)
declare(aten.unsqueeze_.default, trace_rule=TraceRule.RESHAPED, view=aten.unsqueeze.default)
declare(aten.transpose_.default, trace_rule=TraceRule.RESHAPED, view=aten.transpose.int)
declare(aten.t_.default, trace_rule=TraceRule.RESHAPED, view=aten.t.default)
declare(aten.as_strided_.default, trace_rule=TraceRule.RESHAPED, view=aten.as_strided.default)
declare(aten.detach_.default, trace_rule=TraceRule.RESHAPED, view=aten.detach.default)
