"""Backward of elementwise operators and of softmax. Costs are in additions.

Each formula is ATen's for a CPU (or for a GPU where that saves or rounds other values), in ATen's compute dtype; the
result rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Map, Tensor
from smelt.loops.loop_values import DIVISION, TRANSCENDENTAL, both, call, compare, const, where
from smelt.loops.lowering_builder import Builder
from smelt.ops.layouts.meta_layouts import fresh, of_cpp
from smelt.ops.node_builders import Make
from smelt.ops.recompute_rules import Class
from smelt.ops.reductions import dims_of
from smelt.ops.registry import declare, operator

aten = torch.ops.aten

declare(
    "hardswish_backward hardtanh_backward leaky_relu_backward elu_backward hardsigmoid_backward native_dropout_backward",
    recompute=Class.POINTWISE,
)
declare(
    "_log_softmax_backward_data _prelu_kernel_backward _softmax_backward_data hardshrink_backward",
    "log_sigmoid_backward softshrink_backward",
    any_size=True,
)
declare(
    "gelu_backward logit_backward sigmoid_backward silu_backward tanh_backward softplus_backward mish_backward",
    recompute=Class.TRANSCENDENTAL,
)

# ---- activations


def _backward(f: Callable[..., Value], overload: Any, cost: float = 3.0) -> None:
    """`f(gradient of the result, operand or result, *scalar arguments)`."""

    def lower(b: Builder, grad: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return b.pointwise(lambda g, v: f(g, v, *args, **kwargs), [grad, x], opmath(b.spec.dtype), cost=cost)

    declare(overload, lowering=lower)


def _is(op: str, x: Value, bound: float) -> Value:
    return compare(op, x, const(bound, x.dtype))


def _where(condition: Value, x: Value | float, y: Value | float, dtype: torch.dtype) -> Value:
    a, b = (v if isinstance(v, Value) else const(v, dtype) for v in (x, y))
    return where(condition, a, b)


def _between(x: Value, low: float, high: float, strictly: bool) -> Value:
    above, below = ("gt", "lt") if strictly else ("ge", "le")
    inside = both(_is(above, x, low), _is(below, x, high))
    assert inside is not None
    return inside


def threshold(g: Value, x: Value, threshold: float) -> Value:
    """g, but 0 where x <= threshold; g where x is NaN."""
    return _where(_is("le", x, threshold), 0, g, g.dtype)


def sigmoid(g: Value, y: Value) -> Value:
    """g * (1 - y) * y, with y the forward's result."""
    return g * (1 - y) * y


def tanh(g: Value, y: Value) -> Value:
    """g * (1 - y * y), with y the forward's result."""
    return g * (1 - y * y)


def logit(g: Value, x: Value, eps: float | None = None) -> Value:
    """g / (x * (1 - x)); beyond 0..1 NaN without `eps`, and 0 beyond eps..1 - eps with it."""
    slope = g / (x * (1 - x))  # infinite at 0 and 1, where the sign is that of g
    if eps is None or eps < 0:
        return _where(_between(x, 0, 1, False), slope, math.nan, g.dtype)
    return _where(_between(x, eps, 1 - eps, False), slope, 0, g.dtype)


def silu(g: Value, x: Value) -> Value:
    """g * s * (1 + x * (1 - s)) with s = sigmoid(x)."""
    s = call("sigmoid", x)
    return g * s * (x * (1 - s) + 1)


def gelu(g: Value, x: Value, approximate: str, on_gpu: bool = False) -> Value:
    """g * (cdf(x) + x * pdf(x)) of the normal distribution. "tanh": the slope of that approximation.

    cdf is by `_below`; on a GPU, where a division takes longer, by erf, as in eager and in the forward, which is often
    rematerialized in the same kernel. There the exponential is the processor's, of base 2: its relative error grows as
    x * x.
    """
    if approximate == "tanh":  # (1 + tanh(u)) / 2 is sigmoid(2 u)
        beta = 2 * math.sqrt(2 / math.pi)
        square = x * x
        below = call("sigmoid", x * (0.044715 * beta * square + beta))
        return g * (below + x * (below * (1 - below)) * (3 * 0.044715 * beta * square + beta))
    if on_gpu:
        density = call("exp2", -0.5 / math.log(2) * x * x)
        below = 0.5 * (call("erf", x * math.sqrt(0.5)) + 1)
    else:
        density = call("exp", -0.5 * x * x)
        below = _below(x, density)
    return g * (x * density * (1 / math.sqrt(2 * math.pi)) + below)


def _below(x: Value, density: Value) -> Value:
    """The normal distribution function at x; `density` is exp(-x * x / 2), so that no other exponential is needed:
    7.1.26 in Abramowitz and Stegun, with an error of at most 7.5e-8."""
    t = 1 / (call("abs", x) * (0.3275911 * math.sqrt(0.5)) + 1)
    polynomial = const(0, x.dtype)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = (polynomial + 0.5 * coefficient) * t
    beyond = polynomial * density
    return where(_is("gt", x, 0), 1 - beyond, beyond)


def hardtanh(g: Value, x: Value, low: float, high: float) -> Value:
    """g strictly between the bounds, else 0."""
    return _where(_between(x, low, high, True), g, 0, g.dtype)


def hardsigmoid(g: Value, x: Value) -> Value:
    """g / 6 strictly between -3 and 3, else 0."""
    sixth = 0.1666666716337204  # ATen has it in float32, also for float64
    return _where(_between(x, -3, 3, True), g * sixth, 0, g.dtype)


def hardswish(g: Value, x: Value) -> Value:
    """0 up to -3, g from 3 on, g * (x / 3 + 1/2) between."""
    above = where(_is("ge", x, 3), g, g * (x / 3 + 0.5))
    return _where(_is("le", x, -3), 0, above, g.dtype)


def leaky_relu(g: Value, x: Value, slope: float, is_result: bool) -> Value:
    """g where x > 0, else g * slope; x may be the forward's result, which has the same sign."""
    return where(_is("gt", x, 0), g, g * slope)


def softplus(g: Value, x: Value, beta: float, threshold: float) -> Value:
    """g * sigmoid(beta * x); g itself where beta * x is above the threshold."""
    return where(_is("gt", x * beta, threshold), g, g * call("sigmoid", x * beta))


def mish(g: Value, x: Value) -> Value:
    """tanh(log(1 + e)) is w / (w + 2) for e = exp(x) and w = e * (e + 2); it is 1 from x = 20 on."""
    e = call("exp", call("minimum", x, const(20, x.dtype)))
    w = e * (e + 2)
    t = w / (w + 2)
    return g * (t + x * (e / (e + 1)) * (1 - t * t))


def shrink(g: Value, x: Value, bound: float) -> Value:
    """g where x is outside -bound..bound, else 0: of hardshrink and of softshrink."""
    outside = compare("logical_or", _is("lt", x, -bound), _is("gt", x, bound))
    return _where(outside, g, 0, g.dtype)


_backward(threshold, aten.threshold_backward.default, cost=1)
_backward(sigmoid, aten.sigmoid_backward.default)
_backward(tanh, aten.tanh_backward.default)
_backward(logit, aten.logit_backward.default, cost=DIVISION + 5)
_backward(silu, aten.silu_backward.default, cost=TRANSCENDENTAL + 5)
_backward(hardtanh, aten.hardtanh_backward.default)
_backward(hardsigmoid, aten.hardsigmoid_backward.default)
_backward(hardswish, aten.hardswish_backward.default, cost=DIVISION + 4)
_backward(leaky_relu, aten.leaky_relu_backward.default)
_backward(softplus, aten.softplus_backward.default, cost=TRANSCENDENTAL)
_backward(mish, aten.mish_backward.default, cost=TRANSCENDENTAL + 2 * DIVISION + 8)
_backward(shrink, aten.hardshrink_backward.default)
_backward(shrink, aten.softshrink_backward.default)


@operator(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor | None:
    """None for the exact form of float64."""
    if approximate == "none" and x.dtype is torch.float64:
        return None  # the formula is not that exact, and erf slower than ATen's
    on_gpu = b.device.type == "cuda"
    return b.pointwise(
        lambda g, v: gelu(g, v, approximate, on_gpu), [grad, x], opmath(x.dtype),
        cost=TRANSCENDENTAL + DIVISION + 14,
    )  # fmt: skip


@operator(aten.elu_backward.default)
def elu_backward(
    b: Builder, grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    """For x <= 0: g * input_scale * (x + alpha * scale) if x is the forward's result, else with exp(x * input_scale)."""
    coefficient = alpha * scale

    def f(g: Value, v: Value) -> Value:
        growth = v + coefficient if is_result else coefficient * call("exp", v * input_scale)
        return where(_is("gt", v, 0), g * scale, g * input_scale * growth)

    return b.pointwise(f, [grad, x], opmath(x.dtype), cost=TRANSCENDENTAL + 3)


@operator(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor | None:
    """1 - sigmoid(x) from z = exp(-abs(x)), which the CPU forward saves; a GPU rematerializes it."""
    if b.device.type == "cpu":
        if buffer.shape != x.shape:
            return None
        return b.pointwise(
            lambda g, v, z: g * _where(_is("lt", v, 0), 1, z, v.dtype) / (z + 1),
            [grad, x, buffer], opmath(x.dtype), cost=DIVISION + 4,
        )  # fmt: skip

    def f(g: Value, v: Value) -> Value:
        z = call("exp", -call("abs", v))
        above = z / (z + 1)
        return g * where(_is("lt", v, 0), 1 - above, above)

    return b.pointwise(f, [grad, x], opmath(x.dtype), cost=TRANSCENDENTAL + DIVISION + 5)


@operator(aten._prelu_kernel_backward.default)
def prelu_backward(b: Builder, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both have the shape of x; the weight's gradient is summed afterwards."""
    compute = opmath(x.dtype)

    def of_weight(g: Value, v: Value) -> Value:
        return _where(_is("gt", v, 0), 0, g * v, g.dtype)

    return (
        b.pointwise(
            lambda g, v, w: where(_is("gt", v, 0), g, g * w),
            [grad, x, weight], compute, b.spec[0].dtype, 3.0, x.shape,
        ),
        b.pointwise(of_weight, [grad, x], compute, b.spec[1].dtype, 3.0, x.shape),
    )  # fmt: skip


@operator(aten.native_dropout_backward.default)
def native_dropout_backward(b: Builder, grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """g * mask * scale, in this order."""
    return b.pointwise(lambda g, m: g * m * scale, [grad, mask], opmath(grad.dtype), cost=2.0)


# ---- soft maxima


@operator(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """y * (g - sum of g * y). On a GPU ATen rounds the product to half precision (native/cuda/SoftMax.cu)."""
    compute = opmath(y.dtype)
    is_rounded = b.device.type != "cpu" and compute is not grad.dtype
    product = grad.dtype if is_rounded else compute
    weighted = b.pointwise(lambda g, v: g * v, [grad, y], compute, product, 1.0, y.shape)
    total = b.reduce("sum", weighted, dims_of(y, dim), True, compute)
    if is_rounded:
        return b.pointwise(lambda w, v, s: w - v * s, [weighted, y, total], compute, cost=2.0)
    return b.pointwise(lambda g, v, s: v * (g - s), [grad, y, total], compute, cost=2.0)


@operator(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """g - exp(y) * sum of g"""
    compute, dims = opmath(y.dtype), dims_of(y, dim)
    known = grad.definition.sum if isinstance(grad.definition, Map) else None
    if known is not None and dims == known[0]:
        total = known[1]
    else:
        total = b.reduce("sum", grad, dims, True, compute)
    return b.pointwise(
        lambda g, v, s: g - call("exp", v) * s, [grad, y, total], compute, cost=TRANSCENDENTAL + 2
    )


# ---- shapes on a CPU


def _by_mul_layout(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """The layout of a backward that multiplies elementwise: TensorIterator's for a product."""
    if grad.dtype != x.dtype or not x.is_floating_point() or grad.shape != x.shape:
        return NotImplemented
    return of_cpp(aten.mul.Tensor, (grad, x), {})


def _softmax_backward_layout(grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype) -> Any:
    if grad.shape != out.shape or grad.dtype != out.dtype or not grad.is_floating_point():
        return NotImplemented
    return fresh(grad.shape, dtype)


declare(
    *(aten.gelu_backward.default, aten.silu_backward.default, aten.mish_backward.default),
    *(aten.tanh_backward.default, aten.sigmoid_backward.default, aten.softplus_backward.default),
    *(aten.hardtanh_backward.default, aten.hardswish_backward.default, aten.hardsigmoid_backward.default),
    layout=_by_mul_layout,
)
declare(
    *(aten.threshold_backward.default, aten.leaky_relu_backward.default),
    layout=lambda grad, x, *_: _by_mul_layout(x, grad),
)
declare(aten.elu_backward.default, layout=lambda grad, *settings: _by_mul_layout(grad, settings[-1]))
declare(
    *(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
    layout=_softmax_backward_layout,
)


# ---- a mask in the place of the input


def _hardtanh_mask(make: Make, x: Node, low: float, high: float) -> Node:
    return make(aten.logical_or.default, make(aten.le.Scalar, x, low), make(aten.ge.Scalar, x, high))


declare(aten.threshold_backward.default, zero_where=lambda make, x, bound: make(aten.le.Scalar, x, bound))
declare(aten.hardtanh_backward.default, zero_where=_hardtanh_mask)
