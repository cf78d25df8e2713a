"""Constructors of loop values, with simplifications that always pay: constants, casts, conditions known from ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from smelt.loops.kernel_ir import Value
from smelt.shapes.expr import Size, Sym, bounds, subs

Number = int | float | bool

# What operations cost, in additions, on every target. The rest costs 1. Measured on Zen 4 (float32, one thread, independent
# operations on 4,096 elements in a cache), where an addition takes 16 ps: exp 9 additions, sigmoid 15, log 22, tanh 23, erf
# 30, sin 39, pow 124; division and reciprocal 4, sqrt 9, rsqrt 15.
TRANSCENDENTAL = 12.0
DIVISION = 4.0
GATHER = 2.0  # reading elements that are no neighbours in memory; a transposed read of 64x64, as above: 19
TRANSCENDENTAL_OPS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid",
)  # fmt: skip
DEAR = (*TRANSCENDENTAL_OPS, "pow", "atan2", "remainder", "fmod", "floordiv", "device_log")
COSTS = dict.fromkeys(DEAR, TRANSCENDENTAL) | {
    "div": DIVISION, "sqrt": DIVISION, "reciprocal": DIVISION, "rsqrt": 2 * DIVISION,
    "const": 0.0, "index": 0.0, "cast": 0.5, "philox": 60.0, "fast_log": DIVISION, "fast_sin": DIVISION,
    "fast_cos": DIVISION,
}  # fmt: skip


def const(number: Number, dtype: torch.dtype) -> Value:
    """`number` converted to `dtype`, as torch converts a scalar argument: in half precision it is rounded."""
    if dtype in (torch.bfloat16, torch.float16):
        return Value("const", (torch.tensor(float(number), dtype=dtype).item(),), dtype)
    if dtype.is_floating_point:
        return Value("const", (float(number),), dtype)
    return Value("const", (bool(number) if dtype is torch.bool else int(number),), dtype)


def index(e: Size) -> Value:
    """The value of an index expression, int64."""
    return const(e, torch.int64) if isinstance(e, int) else Value("index", (e,), torch.int64)


def cast(x: Value, dtype: torch.dtype) -> Value:
    """`x` converted to `dtype`; `x` itself if the conversion is known to change nothing."""
    if x.dtype is dtype:
        return x
    if x.op == "const" and _converts_exactly(x.args[0], x.dtype, dtype):
        return const(x.args[0], dtype)
    if x.op == "cast" and _widens(x.args[0].dtype, x.dtype) and x.args[0].dtype is dtype:
        return x.args[0]  # bf16 -> f32 -> bf16 is the identity
    return Value("cast", (x,), dtype)


def rounded(x: Value, dtype: torch.dtype) -> Value:
    """`x` rounded as the result, of `dtype`, of an operator of its own."""
    return cast(cast(x, dtype), x.dtype)


def _converts_exactly(number: Number, source: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether the constant needs none of the cast's rounding or wrapping."""
    if dtype is torch.float32:
        return source.is_floating_point or abs(number) < 1 << 24
    if dtype is torch.float64:
        return not source.is_floating_point and abs(number) < 1 << 53
    return dtype is torch.int64 and not source.is_floating_point


def _widens(narrow: torch.dtype, wide: torch.dtype) -> bool:
    if narrow.is_floating_point:
        return wide.is_floating_point and wide.itemsize > narrow.itemsize
    return not wide.is_floating_point and wide.itemsize > narrow.itemsize and wide.is_signed


def call(op: str, *args: Value) -> Value:
    """An operation of POINTWISE with the dtype of its last operand (`compare` builds those with bool results)."""
    return Value(op, args, args[-1].dtype)


def compare(op: str, a: Value, b: Value) -> Value:
    """eq, ne, lt, le, gt, ge, logical_*: bool. A comparison of index expressions may be decided by their ranges."""
    known = _compare_ranges(op, a, b)
    return const(known, torch.bool) if known is not None else Value(op, (a, b), torch.bool)


def test(op: str, a: Value) -> Value:
    """isnan, isinf, logical_not: bool."""
    if op == "logical_not" and a.op == "const":
        return const(not a.args[0], torch.bool)
    return Value(op, (a,), torch.bool)


def _compare_ranges(op: str, a: Value, b: Value) -> bool | None:
    if a.op not in ("index", "const") or b.op not in ("index", "const") or a.dtype is not torch.int64:
        return None
    (alo, ahi), (blo, bhi) = bounds(a.args[0]), bounds(b.args[0])
    if op in ("gt", "ge"):
        (alo, ahi), (blo, bhi), op = (blo, bhi), (alo, ahi), {"gt": "lt", "ge": "le"}[op]
    if op == "lt":
        return True if ahi < blo else False if alo >= bhi else None
    if op == "le":
        return True if ahi <= blo else False if alo > bhi else None
    return None


def both(a: Value | None, b: Value | None) -> Value | None:
    """Conjunction of two conditions, None meaning true."""
    if a is None or b is None or a is b:
        return b if a is None else a
    if a.op == "const":
        return b if a.args[0] else a
    if b.op == "const":
        return a if b.args[0] else b
    return Value("logical_and", (a, b), torch.bool)


def where(condition: Value, a: Value, b: Value) -> Value:
    """`a` where `condition` (bool) holds, else `b`, which has the dtype of `a`."""
    if condition.op == "const":
        return a if condition.args[0] else b
    return a if a is b else Value("where", (condition, a, b), a.dtype)


class Moved:
    """Expressions over other symbols (`symbols`) and buffers (`buffer`); shared subexpressions stay shared."""

    def __init__(
        self, symbols: Mapping[Sym, Size], buffer: Callable[[int], int] = lambda number: number
    ) -> None:
        self.symbols, self.buffer = symbols, buffer
        self._done: dict[Value, Value] = {}

    def index(self, e: Size) -> Size:
        """The index over the other symbols."""
        return subs(e, self.symbols)

    def value(self, v: Value) -> Value:
        """The value over the other symbols."""
        found = self._done.get(v)
        if found is None:
            found = self._done[v] = self._made(v)
        return found

    def _made(self, v: Value) -> Value:
        if v.op == "load":
            number, e, mask = v.args
            moved_mask = None if mask is None else self.value(mask)
            return Value("load", (self.buffer(number), self.index(e), moved_mask), v.dtype)
        if v.op == "index":
            return index(self.index(v.args[0]))
        if v.op in ("const", "result"):
            return v
        return Value(v.op, tuple([self.value(a) if isinstance(a, Value) else a for a in v.args]), v.dtype)
