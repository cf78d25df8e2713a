"""`as_strided` of windows that overlap (`x.as_strided((b, chunks, 2 * w, d), ...)`), where sizes are symbolic: its backward
in C++ asks for the number of elements. `unfold` gives the same view, with a backward that does not.

Only where a gradient may flow, and where the windows go over all of a dimension, or over two that are one in memory; other
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
from smelt.tracing.symbolic.sym_numbers import wrap_symbolic, size_of


class _Windows(NamedTuple):
    """Along dimension `at` of the tensor, or that and the next as one: each begins `step` places behind the last one."""

    at: int
    step: int
    joined: bool


def _as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    if type(x) is not FakeTensor or not (x.requires_grad and torch.is_grad_enabled()):
        return NotImplemented
    if storage_offset is not None or not syms_of(x.spec) or len(size) != len(stride):
        return NotImplemented
    size, stride = map(_numbers, (size, stride))
    found = _windows(x.spec, [size_of(n) for n in size], [size_of(n) for n in stride])
    if found is None:
        return NotImplemented
    rows = x.flatten(found.at, found.at + 1) if found.joined else x
    return rows.unfold(found.at, size[found.at + 1], found.step).movedim(-1, found.at + 1)


def _numbers(values: Any) -> list[Any]:
    """Sizes, of which some may be tensors, as C++ takes them."""
    return [wrap_symbolic(v.item()) if isinstance(v, torch.Tensor) else v for v in values]


def _windows(spec: TensorSpec, sizes: Sequence[Size], strides: Sequence[Size]) -> _Windows | None:
    """What windows these sizes and strides are, of a tensor with this layout; None where they are none."""
    joined = len(spec.shape) == len(sizes)
    if not joined and len(spec.shape) + 1 != len(sizes):
        return None
    for at in range(len(sizes) - 1):
        width, apart, whole = sizes[at + 1], strides[at + 1], spec.shape[at]
        if joined:
            whole = whole * spec.shape[at + 1]
        before, behind = slice(at), slice(at + 1 + joined, None)
        layout = [(v[before], v[behind]) for v in (spec.shape, spec.stride)]
        kept = [(tuple(v[:at]), tuple(v[at + 2 :])) for v in (sizes, strides)]
        if layout != kept or apart != spec.stride[at + joined] or apart == 0:
            continue
        if joined and spec.stride[at] != spec.shape[at + 1] * apart:
            continue
        step = strides[at] // apart
        if (
            isinstance(width, int)
            and isinstance(step, int)
            and 0 < step < width
            and step * apart == strides[at]
        ):
            return _Windows(at, step, joined) if (whole - width) // step + 1 == sizes[at] else None
    return None


# `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
COMPOSITES = dict.fromkeys((torch.Tensor.as_strided, torch.as_strided), composite_of(_as_strided))
