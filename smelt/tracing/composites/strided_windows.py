"""`as_strided` for overlapping windows (`x.as_strided((b, chunks, 2 * w, d), ...)`) with symbolic sizes, as `unfold`.
The C++ backward of `as_strided` specializes the number of elements; that of `unfold`, which returns the same view,
does not.

Only where a gradient may flow, and where the windows cover one dimension, or two that are contiguous in memory; other
calls are left to torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import Size
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import composite_of
from smelt.tracing.symbolic.sym_numbers import size_of, wrap_symbolic


class _Windows(NamedTuple):
    """Windows along dimension `dim` of the tensor, or along it and the next one combined (`combined`): each starts
    `step` elements after the previous one."""

    dim: int
    step: int
    combined: bool


def _as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    if type(x) is not FakeTensor or not (x.requires_grad and torch.is_grad_enabled()):
        return NotImplemented
    if storage_offset is not None or not syms_of(x.spec) or len(size) != len(stride):
        return NotImplemented
    size, stride = map(_numbers, (size, stride))
    windows = _windows(x.spec, [size_of(n) for n in size], [size_of(n) for n in stride])
    if windows is None:
        return NotImplemented
    dim = windows.dim
    rows = x.flatten(dim, dim + 1) if windows.combined else x
    return rows.unfold(dim, size[dim + 1], windows.step).movedim(-1, dim + 1)


def _numbers(values: Any) -> list[Any]:
    """Sizes, some of which may be tensors, as C++ accepts them."""
    return [wrap_symbolic(v.item()) if isinstance(v, torch.Tensor) else v for v in values]


def _windows(spec: TensorSpec, sizes: Sequence[Size], strides: Sequence[Size]) -> _Windows | None:
    """The windows that these sizes and strides describe, on a tensor with this spec; None if there are none."""
    combined = len(spec.shape) == len(sizes)
    if not combined and len(spec.shape) + 1 != len(sizes):
        return None
    for dim in range(len(sizes) - 1):
        width, stride, length = sizes[dim + 1], strides[dim + 1], spec.shape[dim]
        if combined:
            length = length * spec.shape[dim + 1]
        outer, inner = slice(dim), slice(dim + 1 + combined, None)
        others = [(v[outer], v[inner]) for v in (spec.shape, spec.stride)]
        unchanged = [(tuple(v[:dim]), tuple(v[dim + 2 :])) for v in (sizes, strides)]
        if others != unchanged or stride != spec.stride[dim + combined] or stride == 0:
            continue
        if combined and spec.stride[dim] != spec.shape[dim + 1] * stride:
            continue
        step = strides[dim] // stride
        if (
            isinstance(width, int)
            and isinstance(step, int)
            and 0 < step < width
            and step * stride == strides[dim]
        ):
            return _Windows(dim, step, combined) if (length - width) // step + 1 == sizes[dim] else None
    return None


COMPOSITES = dict.fromkeys((torch.Tensor.as_strided, torch.as_strided), composite_of(_as_strided))
