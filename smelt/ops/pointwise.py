"""Elementwise operators. Costs are in additions."""

from __future__ import annotations

import functools
import math
import operator as python
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.loops.compute_dtypes import floating, opmath, result_type
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Tensor
from smelt.loops.loop_values import (
    COSTS,
    DIVISION,
    GATHER,
    TRANSCENDENTAL,
    TRANSCENDENTAL_OPS,
    call,
    cast,
    compare,
    const,
    test,
    where,
)
from smelt.loops.lowering_builder import Builder, Operand
from smelt.ops.layouts.meta_layouts import fresh, like, of_cpp
from smelt.ops.may_raise import unless_half
from smelt.ops.recompute_rules import Class, OperatorClass
from smelt.ops.registry import Lowering, declare, operator
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Expr, Size, bounds
from smelt.torch_private import OpOverload

aten = torch.ops.aten

# ---- gradients

# Those with torch's tag `pointwise` need no class.
declare("_to_copy copy lift_fresh_copy", recompute=Class.POINTWISE)
declare(
    "copy clone complex contiguous polar copysign floor_divide fmod masked_fill remainder rsub special_expm1 where",
    any_size=True,
)
declare(
    "acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 float_power hypot i0 igamma "
    "igammac lgamma log log10 log1p log2 logaddexp logaddexp2 logit mvlgamma polygamma sigmoid sin sinc sinh "
    "tan tanh xlogy",
    recompute=Class.TRANSCENDENTAL,
)
declare("add sub rsub where", linear=("self other",))
declare("mul", linear=("self", "other"))
declare("addcmul", linear=("self tensor1", "self tensor2"))
declare("addcdiv", linear=("self tensor1",))
declare("lerp", linear=("self end",))
declare("masked_fill", linear=("self value",))
declare("copy", linear=("src",))
declare("neg div clone _to_copy _conj_physical", linear=("self",))

# ---- numbers in place of tensors of one element

declare("clone _to_copy", elements="same", on_numbers=lambda a: a)
declare("copy", on_numbers=lambda old, new: new)
declare("add", on_numbers=python.add, logic="or")
declare("sub", on_numbers=python.sub)
declare("rsub", on_numbers=lambda a, b: b - a)
declare("mul", on_numbers=python.mul, logic="and")
declare(aten.div.Tensor, aten.div.Scalar, on_numbers=python.truediv)
declare("reciprocal", on_numbers=lambda a: 1.0 / a)
declare("neg", on_numbers=python.neg)
declare("abs", on_numbers=abs)
declare("floor_divide", aten.div.Tensor_mode, aten.div.Scalar_mode, on_naturals=python.floordiv)
declare("remainder", on_naturals=python.mod)
declare("isnan", condition=lambda a: bool(a != a))
declare("isinf", condition=lambda a: bool(abs(a) == math.inf))
declare("logical_not bitwise_not", logic="not")
declare("logical_and bitwise_and", logic="and")
declare("logical_or bitwise_or", logic="or")

# ---- one operation each

# aten name -> (value operation, cost). Integers become the default float dtype first.
FLOAT_UNARY = {op: (op, COSTS[op]) for op in (*TRANSCENDENTAL_OPS, "sqrt", "rsqrt", "reciprocal")}

ROUNDING = ("floor", "ceil", "trunc", "round")  # copies of integers
SAME_UNARY = ("neg", "abs", "sign")

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BITWISE = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}

# operands and result in the promoted dtype
SAME_BINARY = {
    "maximum": 1.0, "minimum": 1.0, "fmax": 1.0, "fmin": 1.0, "remainder": 3 * DIVISION, "fmod": 3 * DIVISION,
    "copysign": 1.0, "atan2": 2 * TRANSCENDENTAL,
}  # fmt: skip
FLOAT_BINARY = ("copysign", "atan2")


def _overloads(name: str, *overloads: str) -> list[Any]:
    packet = getattr(aten, name)
    return [getattr(packet, o) for o in overloads if o in packet.overloads()]


def _register_unary() -> None:
    for name, (op, cost) in FLOAT_UNARY.items():
        declare(getattr(aten, name).default, lowering=_float_unary(op, cost))
    declare(aten.special_expm1.default, lowering=_float_unary(*FLOAT_UNARY["expm1"]))
    for name in SAME_UNARY:
        declare(getattr(aten, name).default, lowering=_same_unary(name))
    declare(aten.sgn.default, lowering=_same_unary("sign"))
    for name in ROUNDING:
        declare(getattr(aten, name).default, lowering=_rounding(name))


def _register_binary() -> None:
    for name in COMPARISONS:
        declare(
            *_overloads(name, "Tensor", "Scalar"), lowering=_comparison(name), condition=getattr(python, name)
        )
    for name in LOGICAL:
        declare(getattr(aten, name).default, lowering=_comparison(name, torch.bool))
    for name, logical in BITWISE.items():
        declare(*_overloads(name, "Tensor", "Scalar", "Scalar_Tensor"), lowering=_bitwise(name, logical))
    for name, cost in SAME_BINARY.items():
        overloads = _overloads(name, "default", "Tensor", "Scalar", "Scalar_Tensor")
        declare(*overloads, lowering=_binary(name, cost, name in FLOAT_BINARY))


def _float_unary(op: str, cost: float) -> Lowering:
    return lambda b, x: b.pointwise(lambda v: call(op, v), [x], opmath(floating(x.dtype)), cost=cost)


def _same_unary(op: str) -> Lowering:
    return lambda b, x: b.pointwise(lambda v: v if v.dtype is torch.bool else call(op, v), [x])


def _rounding(op: str) -> Lowering:
    return lambda b, x: b.pointwise(lambda v: call(op, v) if v.dtype.is_floating_point else v, [x])


def _comparison(op: str, compute: torch.dtype | None = None) -> Lowering:
    return lambda b, x, y: b.pointwise(lambda u, v: compare(op, u, v), [x, y], compute)


def _bitwise(op: str, logical: str) -> Lowering:
    return lambda b, x, y: b.pointwise(
        lambda u, v: call(logical if u.dtype is torch.bool else op, u, v), [x, y]
    )


def may_divide_by_zero(dtype: torch.dtype, divisor: Operand) -> bool:
    """Whether an integer division may raise, which only ATen can."""
    return not dtype.is_floating_point and (isinstance(divisor, Tensor) or _is_zero(divisor, dtype))


def _is_zero(divisor: Size | float, dtype: torch.dtype) -> bool:
    """Whether a number is, or may be, zero as an integer of `dtype`, which may drop its upper bits."""
    if isinstance(divisor, Expr):
        return bounds(divisor)[0] < 1 or dtype not in (torch.bool, torch.int64)
    return divisor == 0 or (dtype is not torch.bool and int(divisor) % (1 << torch.iinfo(dtype).bits) == 0)


def _binary(op: str, cost: float, to_float: bool) -> Lowering:
    def lower(b: Builder, x: Operand, y: Operand) -> Tensor | None:
        dtype = result_type([x, y])
        if op in ("remainder", "fmod") and (dtype is torch.bool or may_divide_by_zero(dtype, y)):
            return None
        compute = floating(dtype) if to_float and not dtype.is_floating_point else None
        # of zeros of both signs, fmax and fmin give the first operand's
        f = (lambda u, v: call(op, v, u)) if op in ("fmax", "fmin") else (lambda u, v: call(op, u, v))
        return b.pointwise(f, [x, y], compute, cost=cost)

    return lower


_register_unary()
_register_binary()


def _divides_integers(node: Node) -> bool:
    """Whether a division may raise: of integers, by a tensor or by zero."""
    divisor = node.args[1]
    rounds = node.target._schema.name != "aten::div" or node.kwargs.get("rounding_mode") is not None
    if not rounds or not isinstance(node.spec, TensorSpec) or node.spec.dtype.is_floating_point:
        return False
    return isinstance(divisor, Node) or _is_zero(divisor, node.spec.dtype)


declare("div floor_divide remainder fmod", raises=_divides_integers)


# ---- arithmetic


@operator(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Tensor:
    """x + alpha * y; bools are joined by `or`."""
    if result_type([x, y]) is torch.bool:
        return b.pointwise(lambda u, v: call("logical_or", u, v) if alpha else u, [x, y])
    return _sum(b, x, y, alpha)


declare(aten.sub.Tensor, aten.sub.Scalar, lowering=lambda b, x, y, alpha=1: _sum(b, x, y, alpha, -1))
declare(aten.rsub.Tensor, aten.rsub.Scalar, lowering=lambda b, x, y, alpha=1: _sum(b, y, x, alpha, -1))


def _sum(b: Builder, x: Operand, y: Operand, alpha: Operand, sign: int = 1) -> Tensor:
    """x + sign * alpha * y, rounded once. `alpha` is rounded to the promoted dtype on a CPU, not on a GPU."""
    dtype, on_gpu = result_type([x, y]), b.device.type == "cuda"

    def f(u: Value, v: Value, *factor: Value) -> Value:
        if not factor:
            return u + v if sign > 0 else u - v
        rounded = cast(factor[0] if on_gpu else cast(factor[0], dtype), u.dtype)
        return plus_product(u, rounded if sign > 0 else -rounded, v)

    return b.pointwise(f, [x, y], scalars=_unless_one(alpha), unrounded=(0, 1) if on_gpu else ())


def plus_product(x: Value, y: Value, z: Value) -> Value:
    """x + y * z, of floats in one rounding, as ATen's vectors do."""
    return call("fma", y, z, x) if x.dtype.is_floating_point else x + y * z


def _unless_one(alpha: Operand) -> tuple[Operand, ...]:
    return () if not isinstance(alpha, Tensor) and alpha == 1 else (alpha,)


def _scaled(v: Value, alpha: Value | None = None) -> Value:
    return v if alpha is None else v * alpha


@operator(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, x: Operand, y: Operand) -> Tensor:
    """Bools are joined by `and`."""
    return b.pointwise(
        lambda u, v: call("logical_and", u, v) if u.dtype is torch.bool else u * v,
        [x, y],
        unrounded=(0, 1) if b.device.type == "cuda" else (1,),
    )


@operator(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(b: Builder, x: Operand, y: Operand) -> Tensor:
    """True division: integers become the default float dtype first. On a GPU a number's reciprocal is a factor."""
    by_number = b.device.type == "cuda" and b.is_scalar(y)
    divided = _by_reciprocal if by_number else lambda u, v: u / v
    return b.pointwise(divided, [x, y], _float_compute(x, y), cost=DIVISION, unrounded=(1,))


def _by_reciprocal(u: Value, v: Value) -> Value:
    return u * (const(1, v.dtype) / v)


def _float_compute(x: Operand, y: Operand) -> torch.dtype | None:
    """The compute dtype of an operator with float results; None for the promoted dtype, which is a float already."""
    dtype = result_type([x, y])
    return None if dtype.is_floating_point else floating(dtype)


@operator(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar)
def div_mode(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = "floor") -> Tensor | None:
    """Rounded towards -inf ("floor", as Python's //) or zero ("trunc"); None where integers may be divided by zero."""
    if rounding_mode is None:
        return div(b, x, y)
    op, dtype = "floordiv" if rounding_mode == "floor" else "truncdiv", result_type([x, y])
    if dtype is torch.bool or may_divide_by_zero(dtype, y):
        return None
    single = b.is_scalar(y)  # then ATen divides in float32; else it rounds the quotient before it truncates
    on_gpu = b.device.type == "cuda"
    by_number = single and on_gpu and dtype.is_floating_point

    def divided(u: Value, v: Value) -> Value:
        if by_number:
            return (
                call("trunc", _by_reciprocal(u, v)) if op == "truncdiv" else _floor_on_gpu(u, v, dtype, True)
            )
        if single or opmath(dtype) is dtype:
            return call(op, u, v)
        if op == "truncdiv":
            return call("trunc", cast(cast(u / v, dtype), u.dtype))
        return _floor_on_gpu(u, v, dtype) if on_gpu else _floor_of_halves(u, v, dtype)

    return b.pointwise(divided, [x, y], cost=3 * DIVISION, unrounded=(1,))


def _floor_of_halves(u: Value, v: Value, dtype: torch.dtype) -> Value:
    """A floor division rounded to half precision at each step."""
    return _floored(u, v, lambda a, b: a / b, lambda x: cast(cast(x, dtype), u.dtype))


def _floor_on_gpu(u: Value, v: Value, dtype: torch.dtype, by_number: bool = False) -> Value:
    """A floor division as GPU kernels compute it (native/cuda/BinaryDivFloorKernel.cu, c10/util/generic_math.h): the
    remainder of halves is a float, so that only the floored value is rounded."""
    divided = _by_reciprocal if by_number else lambda a, b: a / b
    return _floored(u, v, divided, lambda x: x, lambda x: cast(cast(x, dtype), u.dtype))


def _floored(
    u: Value,
    v: Value,
    divided: Callable[[Value, Value], Value],
    rounded: Callable[[Value], Value],
    result: Callable[[Value], Value] = lambda x: x,
) -> Value:
    """ATen's formula of a floor division. `divided`: how it divides; `rounded`: the rounding of each step; `result`:
    the rounding of the floored value."""
    zero, one = const(0, u.dtype), const(1, u.dtype)
    rest = rounded(call("fmod", u, v))
    quotient = rounded(divided(rounded(u - rest), v))
    apart = compare("ne", compare("lt", v, zero), compare("lt", rest, zero))
    apart = where(compare("ne", rest, zero), apart, const(False, torch.bool))
    quotient = where(apart, rounded(quotient - one), quotient)
    down = result(call("floor", quotient))
    down = where(above(quotient - down, 0.5), rounded(down + one), down)
    plain = rounded(divided(u, v))
    down = where(compare("eq", quotient, zero), call("copysign", zero, plain), down)
    return where(compare("eq", v, zero), plain, down)


def _power_class(node: Node) -> OperatorClass:
    exponent = node.args[1]
    cheap = isinstance(exponent, (int, float)) and exponent in (0, 0.5, 1, 2, 3, -0.5, -1, -2)
    return Class.POINTWISE if cheap else Class.TRANSCENDENTAL


declare("pow", recompute=_power_class)


@operator(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, x: Tensor, exponent: float) -> Tensor | None:
    """ATen's special cases of exponents."""
    dtype = result_type([x, exponent])
    if dtype is torch.bool or (not dtype.is_floating_point and exponent < 0):
        return None
    special = _special_power(exponent, dtype, b.device.type == "cuda")
    if special is not None:
        f, cost = special
        return b.pointwise(f, [x], opmath(dtype), cost=cost)
    return b.pointwise(lambda u, v: call("pow", u, v), [x, exponent], cost=3 * TRANSCENDENTAL)


def _special_power(
    exponent: float, dtype: torch.dtype, on_gpu: bool
) -> tuple[Callable[[Value], Value], float] | None:
    """ATen's formula for an exponent. On a CPU float16 has none where it would differ (a root of -inf). Powers of
    bfloat16, and on a GPU of float16, round at each product."""
    if not dtype.is_floating_point:
        return POWERS.get(exponent) if exponent in (0, 1, 2, 3) else None
    if dtype is torch.float16 and exponent in (0.5, -0.5) and not on_gpu:
        return None
    halves = (torch.bfloat16, torch.float16) if on_gpu else (torch.bfloat16,)
    if dtype in halves and exponent in (3, -2):
        rounded = lambda v: cast(cast(v * v, dtype), v.dtype)  # noqa: E731
        if exponent == 3:
            return lambda v: rounded(v) * v, 2.0
        return lambda v: call("reciprocal", rounded(v)), DIVISION + 1
    return POWERS.get(exponent)


POWERS: dict[float, tuple[Callable[[Value], Value], float]] = {
    0: (lambda x: const(1, x.dtype), 0.0),
    1: (lambda x: x, 0.0),
    2: (lambda x: x * x, 1.0),
    3: (lambda x: x * x * x, 2.0),
    0.5: (lambda x: call("sqrt", x), DIVISION),
    -0.5: (lambda x: call("rsqrt", x), 2 * DIVISION),
    -1: (lambda x: call("reciprocal", x), DIVISION),
    -2: (lambda x: call("reciprocal", x * x), DIVISION + 1),
}


@operator(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(b: Builder, x: Operand, y: Operand) -> Tensor | None:
    """None for integers, which ATen raises to powers exactly."""
    dtype = result_type([x, y])
    if not dtype.is_floating_point:
        return None
    return b.pointwise(lambda u, v: call("pow", u, v), [x, y], cost=3 * TRANSCENDENTAL)


@operator(aten.addcmul.default)
def addcmul(b: Builder, x: Tensor, y: Tensor, z: Tensor, *, value: float = 1) -> Tensor:
    """x + (value * y) * z, on a GPU x + value * (y * z), multiplied in this order as ATen does."""
    if b.device.type == "cuda" and _unless_one(value):
        return _plus_scaled(b, lambda u, v: u * v, [x, y, z], value, 3)
    return b.pointwise(
        lambda u, v, w, *a: plus_product(u, _scaled(v, *a), w), [x, y, z], cost=3, scalars=_unless_one(value)
    )


@operator(aten.addcdiv.default)
def addcdiv(b: Builder, x: Tensor, y: Tensor, z: Tensor, *, value: float = 1) -> Tensor:
    """x + (value * y) / z, on a GPU x + value * (y / z), in this order as ATen does."""
    if b.device.type == "cuda" and _unless_one(value):
        return _plus_scaled(b, lambda u, v: u / v, [x, y, z], value, DIVISION + 2)
    return b.pointwise(
        lambda u, v, w, *a: u + _scaled(v, *a) / w, [x, y, z], cost=DIVISION + 2, scalars=_unless_one(value)
    )


def _plus_scaled(
    b: Builder, f: Callable[[Value, Value], Value], operands: Sequence[Tensor], value: Operand, cost: float
) -> Tensor:
    """x + value * f(y, z), sum and product rounded once (native/cuda/PointwiseOpsKernel.cu is compiled with contraction)."""
    return b.pointwise(lambda u, v, w, a: plus_product(u, a, f(v, w)), operands, cost=cost, scalars=(value,))


def _times_log(op: str) -> Lowering:
    def lower(b: Builder, x: Operand, y: Operand) -> Tensor:
        dtype, promoted = b.spec.dtype, result_type([x, y])

        def f(u: Value, v: Value) -> Value:
            product = u * cast(cast(call(op, v), dtype), v.dtype)
            zero = where(compare("eq", u, const(0, u.dtype)), const(0, u.dtype), product)
            return where(test("isnan", v), v, zero)

        compute = None if promoted.is_floating_point else dtype
        return b.pointwise(f, [x, y], compute, cost=TRANSCENDENTAL + 3)

    return lower


# x * log(y) and x * log(1 + y), zero where x is; the logarithm is rounded to the dtype of the result.
declare(*_overloads("xlogy", "Tensor", "Scalar_Self", "Scalar_Other"), lowering=_times_log("log"))
declare(
    *_overloads("special_xlog1py", "default", "self_scalar", "other_scalar"), lowering=_times_log("log1p")
)


@operator(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """The formula switches at one half, as ATen's does, so that both ends are exact."""

    def f(x: Value, y: Value, w: Value) -> Value:
        small = compare("lt", call("abs", w), const(0.5, w.dtype))
        return plus_product(where(small, x, y), where(small, w, w - 1), y - x)

    return b.pointwise(f, [start, end, weight], opmath(b.spec.dtype), cost=6)


@operator(aten.bitwise_not.default)
def bitwise_not(b: Builder, x: Tensor) -> Tensor:
    """Of a bool, `not`."""
    return b.pointwise(
        lambda v: test("logical_not", v) if v.dtype is torch.bool else call("bitwise_not", v), [x]
    )


# x == 0 for every dtype: false for NaN.
declare(
    aten.logical_not.default,
    lowering=lambda b, x: b.pointwise(lambda v: test("logical_not", v), [x], torch.bool),
)


def _float_test(op: str) -> Lowering:
    """A test of floats; false for integers."""

    def f(v: Value) -> Value:
        return test(op, v) if v.dtype.is_floating_point else const(False, torch.bool)

    return lambda b, x: b.pointwise(f, [x])


declare(aten.isnan.default, lowering=_float_test("isnan"))
declare(aten.isinf.default, lowering=_float_test("isinf"))


@operator(aten.nan_to_num.default)
def nan_to_num(
    b: Builder, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN becomes 0 unless `nan` says otherwise, infinities the largest and smallest finite numbers of the dtype."""
    if not x.dtype.is_floating_point:
        return copy_of(b, x)
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def f(v: Value) -> Value:
        infinite = where(above(v, 0), const(high, v.dtype), const(low, v.dtype))
        return where(test("isnan", v), const(nan or 0.0, v.dtype), where(test("isinf", v), infinite, v))

    return b.pointwise(f, [x], cost=4)


def above(v: Value, bound: float) -> Value:
    """v > bound: false for NaN."""
    return compare("gt", v, const(bound, v.dtype))


declare(aten.frac.default, lowering=lambda b, x: b.pointwise(lambda v: v - call("trunc", v), [x], cost=2))


@operator(aten.sinc.default)
def sinc(b: Builder, x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0. Integers become the default float dtype first."""

    def f(v: Value) -> Value:
        angle = v * math.pi
        return where(compare("eq", v, const(0, v.dtype)), const(1, v.dtype), call("sin", angle) / angle)

    return b.pointwise(f, [x], opmath(floating(x.dtype)), cost=TRANSCENDENTAL + DIVISION + 2)


@operator(aten.logit.default)
def logit(b: Builder, x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x between eps and 1 - eps where that is given; NaN stays."""

    def f(v: Value) -> Value:
        if eps is not None and eps >= 0:
            v = call("minimum", call("maximum", v, const(eps, v.dtype)), const(1 - eps, v.dtype))
        return call("log", v / (1 - v))

    return b.pointwise(f, [x], opmath(floating(x.dtype)), cost=TRANSCENDENTAL + DIVISION + 3)


@operator(aten.heaviside.default)
def heaviside(b: Builder, x: Tensor, values: Tensor) -> Tensor:
    """0 below 0 (and for NaN), 1 above, `values` at 0."""

    def f(v: Value, at_zero: Value) -> Value:
        one, zero = const(1, v.dtype), const(0, v.dtype)
        return where(compare("eq", v, zero), at_zero, where(compare("gt", v, zero), one, zero))

    return b.pointwise(f, [x, values], b.spec.dtype, cost=3)


def _log_of_sum(power: str, scale: float) -> Lowering:
    """max + log1p(power(-|x - y|)) * scale; equal infinities are their own sum. None for complex numbers and integers."""

    def f(u: Value, v: Value) -> Value:
        rest = call("log1p", call(power, -call("abs", u - v)))
        most = call("maximum", u, v)
        total = most + rest if scale == 1 else plus_product(most, rest, const(scale, u.dtype))
        return where(call("logical_and", test("isinf", u), compare("eq", u, v)), u, total)

    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor | None:
        floats = b.spec.dtype.is_floating_point
        return b.pointwise(f, [x, y], cost=2 * TRANSCENDENTAL + 6) if floats else None

    return lower


declare(aten.logaddexp.default, lowering=_log_of_sum("exp", 1))
declare(aten.logaddexp2.default, lowering=_log_of_sum("exp2", 1 / math.log(2)))


# ---- choosing


@operator(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_(b: Builder, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Both sides in the promoted dtype."""
    compute = opmath(b.spec.dtype)
    return b.pointwise(where, [condition, x, y], (torch.bool, compute, compute))


def _may_overflow(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Whether a number of a dtype may be too large for another one; everything is a bool."""
    if into is torch.bool:
        return False
    wide = into is torch.float16 and dtype in (torch.int32, torch.int64)
    return wide or torch.promote_types(dtype, into) is not into


def _fills_with_too_much(node: Node) -> bool:
    value = node.kwargs.get("value", node.args[-1])
    return (
        isinstance(value, Node)
        and isinstance(value.spec, TensorSpec)
        and _may_overflow(value.spec.dtype, node.spec.dtype)
    )


declare(aten.masked_fill.Tensor, raises=_fills_with_too_much)


@operator(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Tensor, mask: Tensor, value: Operand) -> Tensor | None:
    """The result keeps the dtype of x; the value is converted to it. None where that may raise."""
    if isinstance(value, Tensor) and _may_overflow(value.dtype, x.dtype):
        return None
    compute = opmath(x.dtype)
    return b.pointwise(lambda c, u, v: where(c, v, u), [mask, x, value], (torch.bool, compute, compute))


Bound = Operand | None


@operator(aten.clamp.default)
def clamp(b: Builder, x: Tensor, min: Bound = None, max: Bound = None) -> Tensor | None:
    """As for tensors, except for a NaN bound that torch ignores."""
    bounds = reachable_bounds(b.spec.dtype, min, max)
    if bounds is None:
        return None
    min, max = bounds
    if (min is None) == (max is None) or _nan_bounds():
        return clamp_tensor(b, x, min, max)
    beyond, bound = ("gt", min) if max is None else ("lt", max)
    assert bound is not None
    return b.pointwise(lambda v, limit: where(compare(beyond, limit, v), limit, v), [x, bound], cost=2)


@functools.cache
def _nan_bounds() -> bool:
    """Whether NaN as the only bound of `clamp` results in NaN. Torch 2.11 ignores it there, but not as one of two
    bounds, nor in `clamp_min` and `clamp_max`."""
    return bool(torch.ones(1).clamp(max=math.nan).isnan())


def reachable_bounds(dtype: torch.dtype, low: Bound, high: Bound) -> tuple[Bound, Bound] | None:
    """Bounds of integers without those that no value passes; None if ATen has to check and may raise, which it does
    since torch 2.15; before, the conversion wraps bounds."""
    if dtype.is_floating_point or dtype is torch.bool or not _bounds_saturate():
        return low, high
    if isinstance(low, Tensor) or isinstance(high, Tensor):  # numbers that change from call to call
        return None
    limits = torch.iinfo(dtype)
    if not (low is None or low <= limits.max) or not (high is None or high >= limits.min):
        return None
    is_low, is_high = low is not None and low >= limits.min, high is not None and high <= limits.max
    return low if is_low else None, high if is_high else None


@functools.cache
def _bounds_saturate() -> bool:
    return torch.zeros(1, dtype=torch.uint8).clamp(min=-1).item() == 0


@operator(aten.clamp.Tensor)
def clamp_tensor(b: Builder, x: Tensor, min: Bound = None, max: Bound = None) -> Tensor:
    """The lower bound first: where the bounds cross, the upper one wins, and NaN stays."""
    bounds = [(op, bound) for op, bound in (("maximum", min), ("minimum", max)) if bound is not None]

    def f(v: Value, *limits: Value) -> Value:
        for (op, _), limit in zip(bounds, limits):
            v = call(op, limit, v)  # of zeros of both signs, v's
        return v

    return b.pointwise(f, [x, *[bound for _, bound in bounds]], cost=2)


def _clamp_one_side(b: Builder, x: Tensor, min: Bound, max: Bound) -> Tensor | None:
    bounds = reachable_bounds(b.spec.dtype, min, max)
    return None if bounds is None else clamp_tensor(b, x, *bounds)


# NaN stays NaN.
declare(aten.clamp_min.Tensor, lowering=clamp_tensor)
declare(aten.clamp_max.Tensor, lowering=lambda b, x, max: clamp_tensor(b, x, None, max))
declare(aten.clamp_min.default, lowering=lambda b, x, min: _clamp_one_side(b, x, min, None))
declare(aten.clamp_max.default, lowering=lambda b, x, max: _clamp_one_side(b, x, None, max))


# Those whose numbers are operands or scalars of `Builder.pointwise`, whatever their value.
declare(
    "eq ne lt le gt ge add sub rsub mul div true_divide floor_divide remainder fmod addcmul addcdiv lerp where masked_fill "
    "clamp clamp_min clamp_max",
    takes_numbers=True,
)


# Numbers that ATen converts before it computes.


declare("add sub rsub", fits="alpha")
declare("addcmul addcdiv", fits="value", fits_in=lambda dtype, device: opmath(dtype))
declare("lerp", fits="weight", fits_in=lambda dtype, device: opmath(dtype))
declare("where", fits="self other", fits_in=unless_half)
declare("masked_fill", fits="value")
declare("clamp clamp_min clamp_max", fits="min max")


# ---- copies


def copy_of(b: Builder, x: Tensor) -> Tensor:
    """Whether a copy pays that makes strided elements adjacent: if it is then read many times."""
    strided = bool(x.shape) and x.shape[-1] != 1 and x.spec.stride[-1] not in (0, 1)
    return b.copy(x, x.shape, lambda index: index, GATHER if strided else 0.0)


@operator(aten.clone.default, aten.lift_fresh_copy.default, aten.contiguous.default)
def clone(b: Builder, x: Tensor, *, memory_format: Any = None) -> Tensor:
    """The node's layout, which the shape function took from `memory_format`."""
    return copy_of(b, x)


@operator(aten._to_copy.default)
def to_copy(b: Builder, x: Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor | None:
    """A conversion of dtype or layout; None where the device changes or the result is not strided."""
    if b.spec.device != x.spec.device or kwargs.get("layout") not in (None, torch.strided):
        return None
    out = b.spec.dtype
    if out is x.dtype:
        return copy_of(b, x)
    return b.pointwise(lambda v: v, [x], x.dtype, out, cost=0.5)


@operator(aten.copy.default)
def copy(b: Builder, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor | None:
    """`source` broadcast to x and converted to its dtype; x is not read. None across devices."""
    if source.spec.device != b.spec.device:
        return None
    return b.pointwise(lambda v: v, [source], source.dtype, cost=0.5)


# ---- shapes on a CPU


def _with_number_layout(func: OpOverload) -> Callable[..., Any]:
    """A layout function that asks the C++ shape function of `func`, which takes a number as its second operand, too."""
    return lambda x, number, *rest: of_cpp(func, (x, number, *rest), {})


def _scaled_in_place_layout(x: torch.Tensor, number: Any) -> Any:
    return x if x.is_floating_point() and type(number) in (int, float) else NotImplemented


def _where_number_layout(condition: torch.Tensor, number: Any, other: torch.Tensor) -> Any:
    dtype = torch.result_type(other, number)
    return of_cpp(aten.where.self, (condition, fresh((), dtype), other), {})


def _masked_fill_layout(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    if mask.dtype != torch.bool:
        return NotImplemented
    if isinstance(value, torch.Tensor) and (value.dim() or not torch.can_cast(value.dtype, x.dtype)):
        return NotImplemented
    return fresh(torch.broadcast_tensors(x, mask)[0].shape, x.dtype)


declare(aten.clone.default, layout=like)
declare(aten.div.Scalar, layout=_with_number_layout(aten.div.Tensor))
declare(aten.mul.Scalar, layout=_with_number_layout(aten.mul.Tensor))
declare(aten.div_.Scalar, aten.mul_.Scalar, layout=_scaled_in_place_layout)
declare(aten.where.ScalarSelf, layout=_where_number_layout)
declare(aten.masked_fill.Scalar, aten.masked_fill.Tensor, layout=_masked_fill_layout)
declare(
    *(aten.pow.Scalar, aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
    *(aten.copysign.Tensor, aten.heaviside.default, aten.logaddexp.default, aten.logaddexp2.default),
    *(aten.xlogy.Tensor, aten.special_xlog1py.default),
    run_on_zeros=True,
)
declare("to", trace_rule=TraceRule.CONVERSION)
declare(aten._to_copy.default, trace_rule=TraceRule.COPY)
