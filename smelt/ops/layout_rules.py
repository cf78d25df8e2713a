"""Layouts of results that follow from those of operands for all sizes: for these operators torch is asked about the sizes of
one assignment, not several (`symbolic_results.py`).

A rule takes the arguments, with specs in place of tensors, and returns the layout of the result: (shape, strides, offset).
Of several results it returns a list, in which None stands for a result without symbolic sizes. It returns None if it does
not know, and strides of None if the order of the dimensions in memory depends on sizes, or if more sizes are to be tried. A
layout holds for all sizes from 2 on.

Without a rule, results are fitted: of products of strided batches, Fourier transforms and linear algebra, whose libraries
choose strides; of recurrent networks and attention, whose sizes must be consistent; of operators without a lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.symbolic_strides import (
    broadcast_stride,
    channels_last_stride,
    format_stride,
    is_contiguous,
    iterator_stride,
    like_stride,
    suggests_channels_last,
    torch_stride,
    view_stride,
)
from smelt.ops.convolution_settings import Convolution
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.ops.result_shapes import known_shape
from smelt.shapes.expr import Expr, Size, bounds, numel
from smelt.torch_private import OpOverload

Sizes = tuple[Size, ...]
Layout = tuple[Sizes, Sizes | None, Size]
Layouts = Layout | list[Layout | None]
Rule = Callable[..., Layouts | None]

aten = torch.ops.aten

# Overloads whose numbers are operands, as tensors without dimensions.
_OF_NUMBERS = frozenset({"Tensor", "Scalar", "Tensor_mode", "Scalar_mode", "ScalarSelf", "ScalarOther"})


def known_layout(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    spec_of: Callable[[Any], TensorSpec | None],
) -> Layouts | None:
    """The rule's answer for the results; None if there is no rule or it does not know."""
    arguments = [_with_specs(a, spec_of) for a in args]
    rule = _RULES.get(func)
    if rule is not None:
        return rule(*arguments, **{name: _with_specs(v, spec_of) for name, v in kwargs.items()})
    if func._schema.is_mutable:
        return None
    if torch.Tag.pointwise in func.tags or row(func).recompute in (Class.POINTWISE, Class.TRANSCENDENTAL):
        values = [*arguments, *kwargs.values()]
        numbers = func._overloadname in _OF_NUMBERS and any(isinstance(v, (int, float)) for v in arguments)
        return _broadcast([v for v in values if isinstance(v, TensorSpec)], numbers)
    if not arguments or not isinstance(arguments[0], TensorSpec):
        return None
    named = named_arguments(func, arguments, kwargs)
    shape = known_shape(func._schema.name.removeprefix("aten::"), named, _spec)
    if shape is not None:
        return _each(func, (shape, format_stride(shape, arguments[0]), 0))
    if row(func).recompute is Class.REDUCTION:
        return _reduction(func, arguments[0], named)
    return _each(func, _dense(arguments[0].shape)) if row(func).recompute is Class.SCAN else None


def named_arguments(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    defaults = {a.name: a.default_value for a in func._schema.arguments}
    return {**defaults, **dict(zip(effects(func).names, args)), **kwargs}


def _spec(value: Any) -> TensorSpec | None:
    return value if isinstance(value, TensorSpec) else None


def _with_specs(value: Any, spec_of: Callable[[Any], TensorSpec | None]) -> Any:
    if isinstance(value, (list, tuple)):
        return [spec_of(v) or v for v in value]
    return spec_of(value) or value


def _dense(shape: Iterable[Size]) -> Layout:
    sizes = tuple(shape)
    return sizes, torch_stride(sizes), 0


# ---- pointwise operators and tensors like others


def _broadcast(specs: Sequence[TensorSpec], numbers: bool = False) -> Layout | None:
    """The result of a TensorIterator over these operands; None if sizes must be equal that may differ."""
    made: list[Size] = []
    for i in range(1, 1 + max((len(spec.shape) for spec in specs), default=0)):
        sizes = {spec.shape[-i] for spec in specs if i <= len(spec.shape)} - {1}
        if len(sizes) > 1:
            return None
        made.insert(0, sizes.pop() if sizes else 1)
    shape = tuple(made)
    return shape, iterator_stride(specs, shape, numbers), 0


def _like(
    x: TensorSpec, *_: Any, memory_format: torch.memory_format | None = None, **__: Any
) -> Layout | None:
    if memory_format in (None, torch.preserve_format):
        return x.shape, like_stride(x.shape, x.stride), 0
    if memory_format is torch.contiguous_format:
        return _dense(x.shape)
    return x.shape, channels_last_stride(x.shape), 0


def _same(x: TensorSpec) -> Layout:
    return x.shape, x.stride, x.offset


def _copy(x: TensorSpec, source: TensorSpec, non_blocking: bool = False) -> Layout | None:
    made = _broadcast([x, source])
    return None if made is None or made[0] != x.shape else _same(x)


def _of_shape(x: TensorSpec, *_: object, **__: object) -> Layout:
    return _dense(x.shape)


def _of_size(size: Sequence[Size], *_: object, **__: object) -> Layout:
    return _dense(size)


def _new(x: object, size: Sequence[Size], *_: object, **__: object) -> Layout:
    return _dense(size)


def _strided(size: Sequence[Size], stride: Sequence[Size], **_: object) -> Layout:
    return tuple(size), tuple(stride), 0


def _new_strided(x: TensorSpec, size: Sequence[Size], stride: Sequence[Size], **_: object) -> Layout:
    return tuple(size), tuple(stride), 0


def _operands(*operands: Any) -> Layout | None:
    specs = [v for v in operands if isinstance(v, TensorSpec)]
    return _broadcast(specs, len(specs) < len(operands))


def _masked_fill(x: TensorSpec, mask: TensorSpec, value: object) -> Layout | None:
    made = _broadcast([x, mask])
    return None if made is None else _dense(made[0])


def _arange(start: Any, end: Any = None, step: Any = 1, **_: object) -> Layout | None:
    first, last = (0, start) if end is None else (start, end)
    if not isinstance(step, int) or not step or not all(isinstance(n, (int, Expr)) for n in (first, last)):
        return None
    way = last - first if step > 0 else first - last
    return _dense(((way + (abs(step) - 1)) // abs(step),))


# ---- views


def _view(x: TensorSpec, size: Sequence[Size]) -> Layout | None:
    whole, others = numel(x.shape), numel(n for n in size if n != -1)
    if -1 in size and (bounds(others)[0] < 1 or whole % others != 0):
        return None
    shape = tuple(whole // others if n == -1 else n for n in size)
    if numel(shape) != whole:
        return None
    return shape, view_stride(x.shape, x.stride, shape), x.offset


def _permute(x: TensorSpec, dims: Sequence[int]) -> Layout | None:
    n = len(x.shape)
    order = [d % n for d in dims] if n and all(-n <= d < n for d in dims) else []
    if sorted(order) != list(range(n)):
        return None
    return tuple(x.shape[d] for d in order), tuple(x.stride[d] for d in order), x.offset


def _transpose(x: TensorSpec, first: int, second: int) -> Layout | None:
    n = len(x.shape)
    if not (-n <= first < n and -n <= second < n):
        return None
    order = list(range(n))
    order[first], order[second] = order[second], order[first]
    return _permute(x, order)


def _t(x: TensorSpec) -> Layout | None:
    return _permute(x, [1, 0]) if len(x.shape) == 2 else None


def _expand(x: TensorSpec, size: Sequence[Size], *, implicit: bool = False) -> Layout | None:
    new = len(size) - len(x.shape)
    if new < 0 or -1 in size[:new]:
        return None
    shape = (*size[:new], *(have if want == -1 else want for have, want in zip(x.shape, size[new:])))
    strides: list[Size] = []
    for have, stride, want in zip(x.shape, x.stride, shape[new:]):
        if have != want and have != 1:
            return None
        strides.append(stride if have == want else 0)
    for dim in reversed(range(new)):  # nobody steps along one of size 1, but torch says how far apart
        behind = shape[dim + 1] * strides[0] if strides else 0
        strides.insert(0, behind if shape[dim] == 1 else 0)
    return shape, tuple(strides), x.offset


def _unsqueeze(x: TensorSpec, dim: int) -> Layout | None:
    n = len(x.shape)
    if not -n <= dim + 1 <= n + 1:
        return None
    at = dim % (n + 1)
    stride = x.shape[at] * x.stride[at] if at < n else 1
    return (*x.shape[:at], 1, *x.shape[at:]), (*x.stride[:at], stride, *x.stride[at:]), x.offset


def _squeeze(x: TensorSpec, dims: int | Sequence[int] | None = None) -> Layout | None:
    n = len(x.shape)
    named = range(n) if dims is None else [dims] if isinstance(dims, int) else dims
    if not n or not all(-n <= d < n for d in named):
        return None
    gone = {d % n for d in named if x.shape[d] == 1}
    left = [d for d in range(n) if d not in gone]
    return tuple(x.shape[d] for d in left), tuple(x.stride[d] for d in left), x.offset


def _unbind(x: TensorSpec, dim: int = 0) -> Layouts | None:
    n = len(x.shape)
    count = x.shape[dim] if -n <= dim < n else None
    if not isinstance(count, int):
        return None
    at = dim % n
    shape, stride = ((*sizes[:at], *sizes[at + 1 :]) for sizes in (x.shape, x.stride))
    return [(shape, stride, x.offset + k * x.stride[at]) for k in range(count)]


def _view_as_real(x: TensorSpec) -> Layout:
    return (*x.shape, 2), (*(2 * n for n in x.stride), 1), 2 * x.offset


def _view_as_complex(x: TensorSpec) -> Layout | None:
    numbers = *x.stride[:-1], x.offset
    if any(n % 2 != 0 for n in numbers):
        return None
    return x.shape[:-1], tuple(n // 2 for n in x.stride[:-1]), x.offset // 2


# ---- reductions and products


def _reduction(func: OpOverload, x: TensorSpec, named: dict[str, Any]) -> Layouts | None:
    """Contiguous results without the dimensions `dim`, or with size 1 for each if `keepdim`."""
    n, dim = len(x.shape), named.get("dim")
    dims = [dim] if isinstance(dim, int) else dim or range(n)
    if not all(-n <= d < n for d in dims):
        return None
    over = {d % n for d in dims}
    kept = [
        1 if d in over else size for d, size in enumerate(x.shape) if named.get("keepdim") or d not in over
    ]
    return _each(func, _dense(kept))


def _each(func: OpOverload, layout: Layout) -> Layouts:
    """This layout of all results."""
    count = len(func._schema.returns)
    return layout if count == 1 else [layout] * count


def _embedding(weight: TensorSpec, index: TensorSpec, *rest: object) -> Layout | None:
    return _dense((*index.shape, weight.shape[1])) if len(weight.shape) == 2 else None


def _mm(a: TensorSpec, b: TensorSpec) -> Layout | None:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return None
    return _dense((a.shape[0], b.shape[1]))


def _addmm(bias: TensorSpec, a: TensorSpec, b: TensorSpec, *, beta: Any = 1, alpha: Any = 1) -> Layout | None:
    made = _mm(a, b)
    return made if made is not None and bias.shape in (made[0], made[0][1:]) else None


def _bmm(a: TensorSpec, b: TensorSpec) -> Layout | None:
    fits = len(a.shape) == 3 and len(b.shape) == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
    return _dense((*a.shape[:2], b.shape[2])) if fits else None


# ---- images and norms


def _convolution_backward(
    grad: TensorSpec, x: TensorSpec, weight: TensorSpec, bias_sizes: Sequence[Size] | None, *settings: Any
) -> Layouts | None:
    arguments = {"input": x, "weight": weight, **dict(zip(Convolution._fields, settings))}
    made = known_shape("convolution", arguments, _spec)
    if made != grad.shape or not all(isinstance(n, int) for n in weight.shape):
        return None
    return [(x.shape, format_stride(x.shape, x), 0), None, None]


def _batch_norm(x: TensorSpec, *_: object) -> Layouts | None:
    if len(x.shape) < 2 or not isinstance(x.shape[1], int):
        return None
    return [(x.shape, format_stride(x.shape, x), 0), None, None]


def _batch_norm_functional(x: TensorSpec, *_: object) -> Layouts | None:
    made = _batch_norm(x)
    return [*made, None, None] if isinstance(made, list) else None


def _batch_norm_backward(grad: TensorSpec, x: TensorSpec, *_: object) -> Layouts | None:
    return _batch_norm(x) if grad.shape == x.shape else None


def _layer_norm_backward(
    grad: TensorSpec, x: TensorSpec, normalized: Sequence[Size], *_: object
) -> Layouts | None:
    fits = grad.shape == x.shape and all(isinstance(n, int) for n in normalized)
    return [_dense(x.shape), None, None] if fits else None


def _group_norm(
    x: TensorSpec,
    weight: object,
    bias: object,
    images: Size,
    channels: Size,
    pixels: Size,
    groups: int,
    eps: float,
) -> Layouts:
    statistics = _dense((images, groups))
    return [(x.shape, format_stride(x.shape, x), 0), statistics, statistics]


def _layer_norm(x: TensorSpec, normalized: Sequence[Size], *parameters: Any) -> Layouts | None:
    rows, columns = x.shape[: len(x.shape) - len(normalized)], tuple(normalized)
    if any(
        shape != columns
        for shape in (x.shape[len(rows) :], *(p.shape for p in parameters[:2] if p is not None))
    ):
        return None
    statistics = _dense((*rows, *(1 for _ in columns)))
    # `empty_like(x.contiguous())`
    out = (x.shape, x.stride, 0) if is_contiguous(x.shape, x.stride) else _dense(x.shape)
    return [out, statistics, statistics]


def _softmax_backward(grad: TensorSpec, output: TensorSpec, *_: object) -> Layout | None:
    return _dense(grad.shape) if grad.shape == output.shape else None


# ---- movement


def _cat(tensors: Sequence[TensorSpec], dim: int = 0) -> Layout | None:
    parts = [t for t in tensors if t.shape != (0,)]
    if not parts or not -len(parts[0].shape) <= dim < len(parts[0].shape):
        return None
    shape, at = list(parts[0].shape), dim % len(parts[0].shape)
    for t in parts[1:]:
        if (*t.shape[:at], *t.shape[at + 1 :]) != (*shape[:at], *shape[at + 1 :]):
            return None
        shape[at] = shape[at] + t.shape[at]
    sizes = tuple(shape)
    formats = {suggests_channels_last(t.shape, t.stride) for t in tensors}
    if None in formats:
        return sizes, None, 0
    return (sizes, channels_last_stride(sizes), 0) if formats == {True} else _dense(sizes)


def _stack(tensors: Sequence[TensorSpec], dim: int = 0) -> Layout | None:
    """A view of the tensors concatenated along `dim`; or, in a new last dimension, their concatenation."""
    shape, rank = tensors[0].shape, len(tensors[0].shape)
    if not -rank - 1 <= dim <= rank or any(t.shape != shape for t in tensors):
        return None
    at = dim % (rank + 1)
    sizes = (*shape[:at], len(tensors), *shape[at:])
    if at == rank:
        return _cat([replace(t, shape=(*shape, 1), stride=(*t.stride, 1)) for t in tensors], at)
    joined = _cat(tensors, at)
    if joined is None or joined[1] is None:
        return joined and (sizes, None, 0)
    return sizes, view_stride(joined[0], joined[1], sizes), 0


def _pad(x: TensorSpec, pad: Sequence[Size], value: float = 0) -> Layout | None:
    shape = known_shape("constant_pad_nd", {"self": x, "pad": pad}, _spec)
    if shape is None or any(
        isinstance(n, Expr) and bounds(n)[0] < 0 for n in pad
    ):  # may crop more than there is
        return None if shape is None else (shape, None, 0)
    return shape, format_stride(shape, x), 0


def _repeat(x: TensorSpec, repeats: Sequence[Size]) -> Layout | None:
    new = len(repeats) - len(x.shape)
    return None if new < 0 else _dense(n * times for n, times in zip((*[1] * new, *x.shape), repeats))


def _gather(x: TensorSpec, dim: int, index: TensorSpec, *_: object, **__: object) -> Layout | None:
    return _dense(index.shape) if _covers(x, dim, index) else None


def _scatter(x: TensorSpec, dim: int, index: TensorSpec, source: Any, **_: object) -> Layout | None:
    fits = not isinstance(source, TensorSpec) or source.shape == index.shape
    return _dense(x.shape) if fits and _covers(x, dim, index) else None


def _covers(x: TensorSpec, dim: int, index: TensorSpec) -> bool:
    """Whether the index has the sizes of `x` in all other dimensions."""
    n = len(x.shape)
    return n == len(index.shape) and all(d == dim % n or x.shape[d] == index.shape[d] for d in range(n))


def _index_add(x: TensorSpec, dim: int, index: TensorSpec, source: TensorSpec, **_: object) -> Layout | None:
    added = _index_select(x, dim, index)
    return None if added is None or added[0] != source.shape else _dense(x.shape)


def _index(x: TensorSpec, indices: Sequence[TensorSpec | None]) -> Layout | None:
    """The result of a TensorIterator over `x`, with stride 0 in indexed dimensions, and the indices."""
    at = [d for d, index in enumerate(indices) if index is not None]
    arguments = [index for index in indices if index is not None]
    whole = _broadcast(arguments)
    if whole is None or not at or any(index.dtype in (torch.bool, torch.uint8) for index in arguments):
        return None
    left = [d for d in range(len(x.shape)) if d not in at]
    before = at[0] if at == [*range(at[0], at[-1] + 1)] else 0
    first, second = left[:before], left[before:]
    shape = (*(x.shape[d] for d in first), *whole[0], *(x.shape[d] for d in second))
    stride = (*(x.stride[d] for d in first), *(0 for _ in whole[0]), *(x.stride[d] for d in second))
    operands = [replace(x, shape=shape, stride=stride)]
    sizes = (*(1 for _ in first), *whole[0], *(1 for _ in second))
    for index in arguments:
        steps = view_stride(whole[0], broadcast_stride(index, whole[0]), sizes)
        if steps is None:
            return None
        operands.append(replace(index, shape=sizes, stride=steps))
    return shape, iterator_stride(operands, shape), 0


def _index_put(
    x: TensorSpec, indices: Sequence[TensorSpec | None], values: TensorSpec, accumulate: bool = False
) -> Layout | None:
    made = _index(x, indices)
    written = None if made is None else _broadcast([replace(x, shape=made[0], stride=made[0]), values])
    return None if written is None or made is None or written[0] != made[0] else _like(x)


def _index_select(x: TensorSpec, dim: int, index: TensorSpec) -> Layout | None:
    n = len(x.shape)
    if not -n <= dim < n or len(index.shape) != 1:
        return None
    at = dim % n
    return _dense((*x.shape[:at], *index.shape, *x.shape[at + 1 :]))


def _sort(x: TensorSpec, **_: object) -> Layouts:
    return [_like(x)] * 2


_RULES: dict[Any, Rule] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.unbind.int: _unbind,
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
    **dict.fromkeys((aten.detach.default, aten.alias.default), _same),
    aten.copy.default: _copy,
    **dict.fromkeys((aten.slice_scatter.default, aten.select_scatter.default), lambda x, *_, **__: _same(x)),
    **dict.fromkeys((aten.zeros.default, aten.ones.default, aten.full.default, aten.empty.memory_format), _of_size),
    **dict.fromkeys((aten.rand.default, aten.randn.default), _of_size),
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _arange),
    aten.randint.default: _new,
    aten.randint.low: lambda low, high, size, **_: _dense(size),
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_full.default), _new),
    **dict.fromkeys((aten.new_empty.default, aten.slice_backward.default, aten.select_backward.default), _new),
    aten.empty_strided.default: _strided,
    aten.new_empty_strided.default: _new_strided,
    **dict.fromkeys((aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default), _like),
    **dict.fromkeys((aten.full_like.default, aten.rand_like.default, aten.randn_like.default), _like),
    **dict.fromkeys((aten.clone.default, aten._to_copy.default, aten.flip.default), _like),
    **dict.fromkeys((aten.fill.Scalar, aten.fill.Tensor, aten.zero.default), _like),
    **dict.fromkeys((aten.normal_functional.default, aten.uniform.default, aten.exponential.default), _like),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _like),
    aten.index_copy.default: _of_shape,
    **dict.fromkeys((aten.complex.default, aten.floor_divide.default, aten.where.ScalarSelf), _operands),
    aten.unfold_backward.default: _new,
    **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), _masked_fill),
    **dict.fromkeys((aten.tril.default, aten.triu.default, aten.roll.default, aten.bernoulli.p), _of_shape),
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), _of_shape),
    aten._safe_softmax.default: _of_shape,
    **dict.fromkeys(
        (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default), _softmax_backward
    ),
    **dict.fromkeys((aten.scatter.src, aten.scatter.value, aten.scatter_add.default), _scatter),
    aten.gather.default: _gather,
    aten.index_add.default: _index_add,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_select.default: _index_select,
    aten.sort.stable: _sort,
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.convolution_backward.default: _convolution_backward,
    aten.embedding.default: _embedding,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.constant_pad_nd.default: _pad,
    aten.replication_pad2d.default: _pad,
    aten.replication_pad3d.default: _pad,
    aten.repeat.default: _repeat,
}  # fmt: skip
