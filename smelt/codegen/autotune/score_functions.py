"""Simplification of score functions: known inputs, and roundings that are not needed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from smelt.codegen.triton.value_expressions import NARROW
from smelt.loops.kernel_ir import Value
from smelt.loops.loop_values import const, index


def with_constants(value: Value, constants: Mapping[int, float]) -> Value:
    """The value with numbers for loads from one element, `known` by buffer; sums of indices become index expressions."""
    done: dict[Value, Value] = {}

    def changed(v: Value) -> Value:
        if v not in done:
            if v.op == "load" and v.args[0] in constants and v.args[1:] == (0, None):
                done[v] = Value("const", (constants[v.args[0]],), v.dtype)
            else:
                args = tuple(changed(a) if isinstance(a, Value) else a for a in v.args)
                done[v] = _as_index(Value(v.op, args, v.dtype))
        return done[v]

    return changed(value)


def _as_index(value: Value) -> Value:
    """Sums and differences of indices as one index expression, which needs no 64-bit arithmetic."""
    if value.op not in ("add", "sub") or value.dtype is not torch.int64:
        return value
    if any(a.op not in ("index", "const") for a in value.args):
        return value
    a, b = (x.args[0] for x in value.args)
    return index(a + b if value.op == "add" else a - b)


def exact(value: Value) -> Value:
    """The value without roundings of float32 to half precision and back, for values computed from a `result`;
    quotients by numbers become products, whose relative error of 2**-23 is as small as that of the `result`."""
    done: dict[Value, Value] = {}
    computed: dict[Value, bool] = {}

    def depends(v: Value) -> bool:
        if v not in computed:
            computed[v] = v.op == "result" or any(depends(a) for a in v.args if isinstance(a, Value))
        return computed[v]

    def changed(v: Value) -> Value:
        if v not in done:
            result = Value(v.op, tuple(changed(a) if isinstance(a, Value) else a for a in v.args), v.dtype)
            done[v] = _quotient(_unrounded(result)) if depends(result) else result
        return done[v]

    return changed(value)


def _quotient(value: Value) -> Value:
    if value.op != "div" or value.dtype is not torch.float32 or value.args[1].op != "const":
        return value
    dividend, divisor = value.args
    inverse = 1 / divisor.args[0] if divisor.args[0] else math.inf
    if not 2.0**-100 < abs(inverse) < 2.0**100:
        return value
    return Value("mul", (dividend, const(inverse, torch.float32)), torch.float32)


def _unrounded(value: Value) -> Value:
    if value.op != "cast" or value.dtype is not torch.float32:
        return value
    (narrow,) = value.args
    if narrow.op != "cast" or narrow.dtype not in NARROW or narrow.args[0].dtype is not torch.float32:
        return value
    (operand,) = narrow.args
    assert isinstance(operand, Value)
    return operand
