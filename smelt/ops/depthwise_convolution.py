"""Depthwise convolutions of channels-last images in half precision, and their backward, as loops.

Each channel has its own window: few multiplications per loaded element, so that memory bandwidth decides rather than
tensor cores, and consumers fuse with the kernel. cuDNN builds its kernels at their first call, a second each. Sums are
in float32 and round once, as cuDNN's do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import torch

from smelt.cost_model import Costs
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index, Load, Tensor
from smelt.loops.loop_values import both, cast, compare, const, where
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder
from smelt.ops.convolution_settings import Convolution
from smelt.shapes.expr import Size, bounds, likely, numel, static

f32 = torch.float32
BACKWARD = torch.ops.aten.convolution_backward.default
HALF = (torch.float16, torch.bfloat16)
_SUMS = 9  # that a program computes side by side: its registers have room for them (not measured)
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
Tap = tuple[Size, Size]  # a position in the window
Masked = tuple[Value | None, Index]  # where something is read, and a condition for it (None: always)


def is_generated(x: TensorSpec, weight: TensorSpec, result: TensorSpec, c: Convolution, costs: Costs) -> bool:
    """Whether a depthwise convolution is faster generated: each element is loaded once per window position, so larger
    windows are cuDNN's, which holds elements in registers. Below a number of elements the launch dominates."""
    if not _is_depthwise(weight, c, x, result):
        return False
    each = prod(map(static, weight.shape[2:])) / prod(c.stride)
    return each <= costs.depthwise_taps or _is_small(result, costs)


def are_generated(
    grad: TensorSpec, x: TensorSpec, weight: TensorSpec, c: Convolution, costs: Costs
) -> tuple[bool, bool]:
    """Whether the gradients of input and weight are faster generated."""
    if not _is_depthwise(weight, c, grad, x):
        return False, False
    small = _is_small(grad, costs)
    # Where the window moves further, most of its positions have nothing to do with a pixel.
    return small or (
        set(c.stride) == {1} and prod(map(static, weight.shape[2:])) <= costs.depthwise_taps
    ), small


def _is_depthwise(weight: TensorSpec, c: Convolution, *images: TensorSpec) -> bool:
    return (
        len(weight.shape) == 4
        and c.has_numbers
        and all(type(n) is int for n in weight.shape)
        and all(bounds(n)[0] > 0 for spec in (weight, *images) for n in spec.shape)
        and not c.transposed
        and c.groups > 1
        and weight.shape[:2] == (c.groups, 1)
        and all(i.shape[1] == c.groups and i.dtype is weight.dtype and _lies_last(i) for i in images)
        and weight.dtype in HALF
    )


def _lies_last(spec: TensorSpec) -> bool:
    """Whether channels are adjacent in memory."""
    return spec.stride[1] == 1 and all(s != 1 or n == 1 for s, n in zip(spec.stride[2:], spec.shape[2:]))


def _is_small(result: TensorSpec, costs: Costs) -> bool:
    return likely(numel(result.shape)) <= costs.depthwise_elements


def depthwise(b: Builder, x: Tensor, weight: Tensor, c: Convolution) -> Tensor:
    """result[n, c, y, z] = sum over i, j of x[n, c, y * stride + i * dilation - padding, ...] * weight[c, 0, i, j]"""
    return _over_window(b, x, weight, b.spec, partial(_read_by, c, x))


def depthwise_backward(
    b: Builder, grad: Tensor, x: Tensor, weight: Tensor, settings: tuple[Any, ...], wanted: Sequence[bool]
) -> Gradients | None:
    """Gradients of input, weight and bias, by ATen where that is faster; None if it is for all."""
    c = Convolution(*settings).over(len(weight.shape) - 2)
    own_dx, own_dw = are_generated(grad.spec, x.spec, weight.spec, c, b.costs)
    if not ((wanted[0] and own_dx) or (wanted[1] and own_dw)):
        return None

    def of_aten(k: int) -> Tensor:
        only = [n == k for n in range(3)]
        return b.call_for(BACKWARD, (grad, x, weight, None, *settings, only), k)

    dx = dw = db = None
    if wanted[0]:
        # Of each element, the sum over all windows that it is in.
        at_window = partial(_written_by, c, grad)
        dx = _over_window(b, grad, weight, b.spec[0], at_window) if own_dx else of_aten(0)
    if wanted[1]:
        dw = _weight_gradient(b, grad, x, weight, c, b.spec[1]) if own_dw else of_aten(1)
    if wanted[2]:
        db = b.cast(b.reduce("sum", grad, (0, 2, 3), False, f32), grad.dtype)
    return dx, dw, db


def _over_window(
    b: Builder,
    source: Tensor,
    weight: Tensor,
    spec: TensorSpec,
    source_index_of: Callable[[Index, Tap], Masked],
) -> Tensor:
    """For each index of `spec`, the sum over the window of `source` at `source_index_of` the index, times the weight."""
    taps = _taps(weight)
    turned = _turned(b, weight)

    def body(load: Load, at: Index) -> Value:
        terms = (
            _element(load, source, *source_index_of(at, tap)) * cast(load(turned, (*tap, at[1])), f32)
            for tap in taps
        )
        return cast(reduce(operator.add, terms), spec.dtype)

    # So much that it is stored, not computed again by each who reads it.
    cost = max(4.0 * len(taps), b.costs.inline_limit + 1)
    return b.map(spec.shape, spec.dtype, [source, turned] * len(taps), body, cost)


def _weight_gradient(
    b: Builder, grad: Tensor, x: Tensor, weight: Tensor, c: Convolution, spec: TensorSpec
) -> Tensor:
    """For each window position the sum over all pixels, per image first. All positions of a small window are computed
    in one kernel, to load each element once; of a larger window those of a row, as a program holds that many sums."""
    (images, channels, height, width), (_, _, rows, columns) = grad.shape, weight.shape
    taps = _taps(weight)
    one_kernel = len(taps) <= _SUMS

    def of_images(row: int | None, column: int) -> Tensor:
        """(images, channels), or (images, rows of the window, channels)."""

        def body(load: Load, at: Index, position: Index) -> Value:
            pixel = (at[0], at[-1], *position)
            mask, element = _read_by(c, x, pixel, (at[1] if row is None else row, column))
            return cast(load(grad, pixel), f32) * _element(load, x, mask, element)

        shape = (images, channels) if one_kernel else (images, rows, channels)
        return b.reduction("sum", shape, f32, (grad, x), (height, width), body, 3.0)

    sums = (
        [of_images(*tap) for tap in taps]
        if one_kernel
        else [of_images(None, j) for j in range(static(columns))]
    )

    def body(load: Load, at: Index, position: Index) -> Value:
        channel, _, i, j = at
        source = (*position, channel) if one_kernel else (*position, i, channel)
        element = i * columns + j if one_kernel else j
        value = load(sums[-1], source)
        for k in reversed(range(len(sums) - 1)):
            here = compare("eq", index_value(element), index_value(k))
            value = where(here, load.where(here)(sums[k], source), value)
        return value

    whole = b.reduction("sum", weight.shape, f32, sums, (images,), body, float(len(sums)))
    return b.cast(whole, spec.dtype)


# ---- elements


def _taps(weight: Tensor) -> list[tuple[int, int]]:
    """The window positions."""
    rows, columns = map(static, weight.shape[2:])
    return list(product(range(rows), range(columns)))


def _turned(b: Builder, weight: Tensor) -> Tensor:
    """The weight as (rows, columns, channels), materialized: a program reads all its channels at once."""
    channels, _, rows, columns = weight.shape
    return b.copy(
        weight, (rows, columns, channels), lambda i: (i[2], 0, i[0], i[1]), cost=b.costs.inline_limit + 1
    )


def _element(load: Load, x: Tensor, mask: Value | None, element: Index) -> Value:
    """The element in float32; 0 outside of the image."""
    if mask is None:
        return cast(load(x, element), f32)
    return where(mask, cast(load.where(mask)(x, element), f32), const(0.0, f32))


def _read_by(c: Convolution, x: Tensor, at: Index, tap: Tap) -> Masked:
    """The index that the window of the result's pixel reads at `tap`, and whether it is in the image (None: always)."""
    mask, element = None, []
    for d, t in enumerate(tap):
        e = at[2 + d] * c.stride[d] + t * c.dilation[d] - c.padding[d]
        mask = both(mask, _inside(e, x.shape[2 + d]))
        element.append(e)
    return mask, (*at[:2], *_within(element, x))


def _written_by(c: Convolution, grad: Tensor, at: Index, tap: Tap) -> Masked:
    """The window whose `tap` reads the input's pixel, and whether there is one."""
    mask, element = None, []
    for d, t in enumerate(tap):
        e, step = at[2 + d] + (c.padding[d] - t * c.dilation[d]), c.stride[d]
        if step > 1:
            # Never negative, so that quotients are those of all languages.
            up = -(-max(static(t) * c.dilation[d] - c.padding[d], 0) // step)
            e = e + up * step
            mask = both(mask, compare("eq", index_value(e % step), index_value(0)))
            e = e // step - up
        mask = both(mask, _inside(e, grad.shape[2 + d]))
        element.append(e)
    return mask, (*at[:2], *_within(element, grad))


def _inside(e: Size, size: Size) -> Value | None:
    low = compare("ge", index_value(e), index_value(0))
    high = compare("lt", index_value(e), index_value(size))
    found = both(low, high)
    return None if found is None or (found.op == "const" and found.args[0]) else found


def _within(element: Sequence[Size], x: Tensor) -> tuple[Size, ...]:
    return tuple(0 if size == 1 else e for e, size in zip(element, x.shape[2:]))
