"""Activations. Costs are in additions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.loops.compute_dtypes import opmath
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.loop_values import DIVISION, TRANSCENDENTAL, call, compare, const, where
from smelt.loops.lowering_builder import Builder
from smelt.ops.pointwise import above, clamp_tensor, reachable_bounds
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare, operator

aten = torch.ops.aten

declare("_prelu_kernel hardswish", recompute=Class.POINTWISE)
declare("glu_backward", any_size=True)
declare("celu elu gelu selu silu mish softplus glu log_sigmoid_forward", recompute=Class.TRANSCENDENTAL)


def _activation(f: Callable[..., Value], *overloads: Any, cost: float = 3.0) -> None:
    """`f(x, *scalar arguments)` in the dtype of x."""

    def lower(b: Builder, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return b.pointwise(lambda v: f(v, *args, **kwargs), [x], opmath(x.dtype), cost=cost)

    declare(*overloads, lowering=lower)


def relu(x: Value) -> Value:
    """max(x, 0): NaN stays NaN, -0 stays -0. A bool is returned unchanged."""
    return x if x.dtype is torch.bool else call("maximum", const(0, x.dtype), x)


def hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    """x clamped between two bounds: NaN stays NaN, and a zero equal to a bound retains its sign."""
    return call("minimum", const(max_val, x.dtype), call("maximum", const(min_val, x.dtype), x))


def hardsigmoid(x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    return hardtanh(x + 3, 0, 6) / 6


def hardswish(x: Value) -> Value:
    """x * min(max(x + 3, 0), 6) / 6, in this order of operations."""
    return x * hardtanh(x + 3, 0, 6) / 6


def silu(x: Value) -> Value:
    """x / (1 + exp(-x)): -0 where exp overflows, NaN at -inf, as in ATen."""
    return x / (call("exp", -x) + 1)


def gelu(x: Value, approximate: str = "none") -> Value:
    """x * P(normal variable < x) by erf; with `approximate="tanh"`, by x + 0.044715 * x**3."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (call("tanh", inner) + 1)
    return 0.5 * x * (call("erf", x * math.sqrt(0.5)) + 1)


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x above 0, else x * negative_slope (NaN takes this branch and stays NaN)."""
    return where(above(x, 0), x, x * negative_slope)


def elu(x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """x * scale above 0, else alpha * scale * (exp(x * input_scale) - 1) by expm1."""
    return where(above(x, 0), x * scale, call("expm1", x * input_scale) * (alpha * scale))


def celu(x: Value, alpha: float = 1.0) -> Value:
    """elu with input_scale = 1 / alpha, so that the slope is continuous at 0."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


def softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    scaled = x * beta
    return where(above(scaled, threshold), x, call("log1p", call("exp", scaled)) / beta)


def mish(x: Value) -> Value:
    """x * tanh(log(1 + exp(x))), in the order of ATen's kernel."""
    return x * call("tanh", call("log1p", call("exp", x)))


def threshold(x: Value, threshold: float, value: float) -> Value:
    """`value` where x is at most the threshold, else x (a NaN too)."""
    return where(compare("le", x, const(threshold, x.dtype)), const(value, x.dtype), x)


def selu(x: Value) -> Value:
    """elu with the two constants that keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def hardshrink(x: Value, lambd: float = 0.5) -> Value:
    """0 within [-lambd, lambd], else x (a NaN too)."""
    inside = call(
        "logical_and", compare("ge", x, const(-lambd, x.dtype)), compare("le", x, const(lambd, x.dtype))
    )
    return where(inside, const(0, x.dtype), x)


def softshrink(x: Value, lambd: float = 0.5) -> Value:
    """x moved by lambd towards 0, which the others become; a NaN stays."""
    rest = where(compare("ne", x, x), x, const(0, x.dtype))
    moved = where(compare("lt", x, const(-lambd, x.dtype)), x + lambd, rest)
    return where(above(x, lambd), x - lambd, moved)


_activation(relu, aten.relu.default, cost=1)
_activation(selu, aten.selu.default, cost=TRANSCENDENTAL)
_activation(hardshrink, aten.hardshrink.default)
_activation(softshrink, aten.softshrink.default)
_activation(hardsigmoid, aten.hardsigmoid.default)
_activation(hardswish, aten.hardswish.default)
_activation(silu, aten.silu.default, cost=TRANSCENDENTAL + DIVISION)
_activation(gelu, aten.gelu.default, cost=TRANSCENDENTAL + 4)
_activation(leaky_relu, aten.leaky_relu.default)
_activation(elu, aten.elu.default, cost=TRANSCENDENTAL)
_activation(celu, aten.celu.default, cost=TRANSCENDENTAL)
_activation(softplus, aten.softplus.default, cost=2 * TRANSCENDENTAL)
_activation(mish, aten.mish.default, cost=3 * TRANSCENDENTAL)
_activation(threshold, aten.threshold.default)
_activation(lambda x: hardtanh(x, 0, 6), aten.relu6.default, cost=2)


@operator(aten.hardtanh.default)
def hardtanh_of_tensor(b: Builder, x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor | None:
    """`hardtanh`, of integers as `clamp`."""
    bounds = reachable_bounds(x.dtype, min_val, max_val)
    if bounds is None:
        return None
    if None in bounds:
        return clamp_tensor(b, x, *bounds)
    return b.pointwise(lambda v: hardtanh(v, min_val, max_val), [x], opmath(x.dtype), cost=2)


@operator(aten._prelu_kernel.default)
def prelu(b: Builder, x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, else x * weight; the weight is broadcast already."""
    return b.pointwise(lambda v, w: where(above(v, 0), v, v * w), [x, weight], cost=3)


@operator(aten.glu.default)
def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    """first half * sigmoid(second half), the halves taken along `dim`."""
    dim %= len(x.shape)
    half = b.spec.shape[dim]
    first = b.view(x, b.spec.shape, lambda i: i)
    second = b.view(x, b.spec.shape, lambda i: (*i[:dim], i[dim] + half, *i[dim + 1 :]))
    return b.pointwise(lambda u, v: u * call("sigmoid", v), [first, second], cost=14)


@operator(aten.log_sigmoid_forward.default)
def log_sigmoid(b: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """(min(x, 0) - log1p(exp(-|x|)), exp(-|x|)): the CPU backward reads the second result, which is empty on a GPU."""
    compute, kept = opmath(x.dtype), b.spec[1]
    if kept.shape == x.shape:
        small = b.pointwise(
            lambda v: call("exp", -call("abs", v)), [x], compute, kept.dtype, TRANSCENDENTAL + 2, x.shape
        )
    else:
        small = b.map(kept.shape, kept.dtype, (), lambda load, index: const(0, kept.dtype))

    def f(v: Value) -> Value:
        return call("minimum", v, const(0, compute)) - call("log1p", call("exp", -call("abs", v)))

    return b.pointwise(f, [x], compute, b.spec[0].dtype, 2 * TRANSCENDENTAL + 3, x.shape), small


declare(aten.glu.default, needs_room=True)
declare(aten.glu_backward.default, run_on_zeros=True)
