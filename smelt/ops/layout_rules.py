"""Layouts of results that follow from those of operands for all sizes: for these operators torch need not be asked
about several sample sizes (`symbolic_results.py`).

A rule takes the arguments, with `Operand`s in place of tensors, and returns (shape, strides, offset) of the only result, or
of the first one if the others have no symbolic sizes; or None if it does not know. It holds for all sizes from 2 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.memory_format import is_last, last_stride
from smelt.ops.convolution_settings import Convolution
from smelt.shapes.expr import Size, contiguous_stride, numel
from smelt.torch_private import OpOverload

Layout = tuple[tuple[Size, ...], tuple[Size, ...], Size]
Rule = Callable[..., Layout | None]

aten = torch.ops.aten


def known_layout(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], spec_of: Callable[[Any], TensorSpec | None]
) -> Layout | None:
    """The rule's answer for the result; None if there is no rule or it does not know."""
    rule = _RULES.get(func)
    given = [spec_of(a) or a for a in args]
    if rule is not None:
        return rule(*given, **kwargs)
    if torch.Tag.pointwise in func.tags and not func._schema.is_mutable:
        return _common_layout([v for v in (*given, *kwargs.values()) if isinstance(v, TensorSpec)])
    return None


def _dense(shape: Sequence[Size]) -> Layout:
    return tuple(shape), contiguous_stride(shape), 0


def _is_dense(spec: TensorSpec) -> bool:
    return spec.stride == contiguous_stride(spec.shape)


def _is_last(spec: TensorSpec) -> bool:
    """Whether it is channels-last images. With a size of 1 other strides are equivalent, and results may have those."""
    return 1 not in spec.shape and is_last(spec)


def _common_layout(specs: Sequence[TensorSpec]) -> Layout | None:
    """The layout of operands that all have one shape and one layout, contiguous or channels-last; numbers are ignored."""
    layouts = {(spec.shape, spec.stride) for spec in specs if spec.shape}
    if len(layouts) != 1:
        return None
    first = next(spec for spec in specs if spec.shape)
    return (first.shape, first.stride, 0) if _is_dense(first) or _is_last(first) else None


def _normalized(x: TensorSpec, *statistics: object) -> Layout | None:
    return _common_layout([x])


def _view(x: TensorSpec, size: Sequence[Size]) -> Layout | None:
    if not _is_dense(x) or -1 in size or numel(size) != numel(x.shape):
        return None
    return tuple(size), contiguous_stride(size), x.offset


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


def _detach(x: TensorSpec) -> Layout:
    return x.shape, x.stride, x.offset


def _sum(
    x: TensorSpec, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Layout | None:
    n = len(x.shape)
    if not dims or not all(-n <= d < n for d in dims):
        return None
    over = {d % n for d in dims}
    kept = [1 if d in over else size for d, size in enumerate(x.shape) if keepdim or d not in over]
    return _dense(kept)


def _embedding(weight: TensorSpec, places: TensorSpec, *rest: object) -> Layout | None:
    return _dense((*places.shape, weight.shape[1])) if len(weight.shape) == 2 else None


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


def _convolution(x: TensorSpec, weight: TensorSpec, bias: object, *settings: Any) -> Layout | None:
    """The layout of the images: libraries choose another by the layouts of images or weight, not by sizes."""
    if len(x.shape) != len(weight.shape):
        return None
    shape = tuple(Convolution(*settings).over(len(x.shape) - 2).shape(x.shape, weight.shape))
    if _is_dense(x):
        return _dense(shape)
    return (shape, last_stride(shape), 0) if _is_last(x) else None


def _softmax(x: TensorSpec, dim: int, half_to_float: bool) -> Layout | None:
    return _dense(x.shape) if _is_dense(x) else None


def _clone(x: TensorSpec, *, memory_format: torch.memory_format | None = None) -> Layout | None:
    return _dense(x.shape) if memory_format is torch.contiguous_format else _common_layout([x])


def _to_copy(x: TensorSpec, **how: Any) -> Layout | None:
    return None if how.get("memory_format") not in _KEEPING else _common_layout([x])


# Operators with several results, of which the first one may have symbolic sizes.
OF_SEVERAL = frozenset({aten._native_batch_norm_legit_no_training.default})
_KEEPING = (None, torch.preserve_format)
_RULES: dict[Any, Rule] = {
    aten.view.default: _view, aten._unsafe_view.default: _view, aten.permute.default: _permute,
    aten.transpose.int: _transpose, aten.t.default: lambda x: _permute(x, [1, 0]) if len(x.shape) == 2 else None,
    aten.expand.default: _expand, aten.mm.default: _mm, aten.addmm.default: _addmm, aten.bmm.default: _bmm,
    aten.convolution.default: _convolution, aten._softmax.default: _softmax, aten._log_softmax.default: _softmax,
    aten.clone.default: _clone, aten._to_copy.default: _to_copy, aten.unsqueeze.default: _unsqueeze,
    aten.detach.default: _detach, aten.sum.dim_IntList: _sum, aten.embedding.default: _embedding,
    aten._native_batch_norm_legit_no_training.default: _normalized,
}  # fmt: skip
