"""Pointwise operations: name -> code, with ATen's semantics.

An entry is `code(b, t, *operands)`: `t` is the operands' type, registers hold `t.elem`. Three tables by kind of
operand (float, integer, bool). Integer division by zero gives an unspecified number; it never traps (ATen raises:
operators that must raise are not lowered to kernels).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from smelt.codegen.llvm.ir_builder import Builder, Ref
from smelt.codegen.llvm.llvm_types import Type, rounded, truth
from smelt.codegen.llvm.math_functions import MATH_OPS, function
from smelt.codegen.llvm.vector_math import absolute, helper_at
from smelt.loops import philox

Code = Callable[..., Ref]

# Results of these need no rounding to a narrow float type: they are one of the operands, integral, or exact.
EXACT = frozenset(
    ("neg", "abs", "floor", "ceil", "trunc", "round", "sign", "copysign", "maximum", "minimum", "fmax", "fmin", "where",
     "fmod", "isnan", "isinf", "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
     "logical_xor")
)  # fmt: skip


# Functions with an approximation on GPUs, computed as close to it as a CPU can.
_DEVICES = dict(device_log="log", fast_log="log", fast_sin="sin", fast_cos="cos")


def emit(b: Builder, name: str, t: Type, *operands: Ref) -> Ref:
    """Emit a pointwise operation. `t`: the type of the operands (of the last one for `where`)."""
    if t.kind == "f":
        name = _DEVICES.get(name, name)
        if name in MATH_OPS:
            return rounded(b, function(name, t.elem)(b, *operands), t)
        y = FLOAT[name](b, t, *operands)
        return y if name in EXACT else rounded(b, y, t)
    return (BOOL if t.kind == "b" else INT)[name](b, t, *operands)


def _binary(opcode: str) -> Code:
    return lambda b, t, x, y: b.op(opcode, x, y)


def _compare(predicate: str) -> Code:
    return lambda b, t, x, y: b.compare(predicate, x, y)


def _unary(intrinsic: str) -> Code:
    return lambda b, t, x: b.intrinsic(intrinsic, x)


def _same(b: Builder, t: Type, x: Ref) -> Ref:
    return x


def _logical(opcode: str) -> Code:
    return lambda b, t, x, y: b.op(opcode, truth(b, x, t), truth(b, y, t))


def _not(b: Builder, x: Ref) -> Ref:
    return b.op("xor", x, b.const("i1", True))


def _where(b: Builder, t: Type, condition: Ref, x: Ref, y: Ref) -> Ref:
    return b.select(condition, x, y)


# ---- floats


def _one_over(b: Builder, x: Ref) -> Ref:
    return b.op("fdiv", b.like(x, 1.0), x)


def _extreme(predicate: str, ignores_nan: bool = False) -> Code:
    """Maximum or minimum. The ordered comparison gives y if either is NaN: only a NaN x needs a correction where NaN
    propagates, and only a NaN y where it is ignored."""

    def code(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
        best, tested = b.select(b.compare(predicate, x, y), x, y), y if ignores_nan else x
        return b.select(b.compare("fcmp uno", tested, tested), x, best)

    return code


def _sign_float(b: Builder, t: Type, x: Ref) -> Ref:
    zero = b.like(x, 0.0)
    up = b.select(b.compare("fcmp ogt", x, zero), b.like(x, 1.0), zero)
    return b.select(b.compare("fcmp olt", x, zero), b.like(x, -1.0), up)


def _signs_differ(b: Builder, r: Ref, y: Ref) -> Ref:
    """Whether r != 0 and r and y have different signs."""
    zero = b.like(r, 0.0)
    differ = b.op("xor", b.compare("fcmp olt", r, zero), b.compare("fcmp olt", y, zero))
    return b.op("and", differ, b.compare("fcmp une", r, zero))


def _remainder_float(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    r = function("fmod", t.elem)(b, x, y)
    return b.select(_signs_differ(b, r, y), b.op("fadd", r, y), r)


def _floordiv_float(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    """Floor division as in ATen and Python: exact via fmod, then corrected; x/0 as IEEE."""
    zero = b.like(x, 0.0)
    r = function("fmod", t.elem)(b, x, y)
    q = b.op("fdiv", b.op("fsub", x, r), y)
    q = b.select(_signs_differ(b, r, y), b.op("fsub", q, b.like(q, 1.0)), q)
    down = b.intrinsic("floor", q)
    above = b.compare("fcmp ogt", b.op("fsub", q, down), b.like(q, 0.5))
    down = b.select(above, b.op("fadd", down, b.like(q, 1.0)), down)
    plain = b.op("fdiv", x, y)
    down = b.select(b.compare("fcmp oeq", q, zero), b.intrinsic("copysign", zero, plain), down)
    return b.select(b.compare("fcmp oeq", y, zero), plain, down)


FLOAT: dict[str, Code] = dict(
    neg=lambda b, t, x: b.fneg(x),
    abs=lambda b, t, x: absolute(b, x),
    sqrt=_unary("sqrt"),
    rsqrt=lambda b, t, x: _one_over(b, b.intrinsic("sqrt", x)),
    reciprocal=lambda b, t, x: _one_over(b, x),
    floor=_unary("floor"),
    ceil=_unary("ceil"),
    trunc=_unary("trunc"),
    round=_unary("rint"),  # in the default rounding mode: half to even
    sign=_sign_float,
    isnan=lambda b, t, x: b.compare("fcmp uno", x, x),
    isinf=lambda b, t, x: b.compare("fcmp oeq", absolute(b, x), b.like(x, inf)),
    logical_not=lambda b, t, x: b.compare("fcmp oeq", x, b.like(x, 0.0)),
    add=_binary("fadd"),
    sub=_binary("fsub"),
    mul=_binary("fmul"),
    div=_binary("fdiv"),
    floordiv=_floordiv_float,
    truncdiv=lambda b, t, x, y: b.intrinsic("trunc", b.op("fdiv", x, y)),
    remainder=_remainder_float,
    copysign=lambda b, t, x, y: b.intrinsic("copysign", x, y),
    maximum=_extreme("fcmp ogt"),
    minimum=_extreme("fcmp olt"),
    fmax=_extreme("fcmp ogt", ignores_nan=True),
    fmin=_extreme("fcmp olt", ignores_nan=True),
    eq=_compare("fcmp oeq"),
    ne=_compare("fcmp une"),
    lt=_compare("fcmp olt"),
    le=_compare("fcmp ole"),
    gt=_compare("fcmp ogt"),
    ge=_compare("fcmp oge"),
    logical_and=_logical("and"),
    logical_or=_logical("or"),
    logical_xor=_logical("xor"),
    where=_where,
    fma=lambda b, t, x, y, z: b.fma(x, y, z),
)


# ---- integers


def _signed(signed: str, unsigned: str, make: Callable[[str], Code]) -> Code:
    s, u = make(signed), make(unsigned)
    return lambda b, t, *xs: (s if t.kind == "s" else u)(b, t, *xs)


def _sign_int(b: Builder, t: Type, x: Ref) -> Ref:
    zero, one = b.like(x, 0), b.like(x, 1)
    up = b.select(b.compare("icmp ne", x, zero), one, zero)
    return b.select(b.compare("icmp slt", x, zero), b.like(x, -1), up) if t.kind == "s" else up


def _safe_divisor(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    """`y`, or 1 where the division would trap: y = 0, or the minimum by -1 (which wraps to the minimum: x / 1)."""
    if y.is_const and y.text not in ("0", "-1"):
        return y
    bad = b.compare("icmp eq", y, b.like(y, 0))
    if t.kind == "s":
        lowest = b.compare("icmp eq", x, b.like(x, -(1 << (8 * t.bytes - 1))))
        bad = b.op("or", bad, b.op("and", lowest, b.compare("icmp eq", y, b.like(y, -1))))
    return b.select(bad, b.like(y, 1), y)


def _truncdiv_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    return b.op("sdiv" if t.kind == "s" else "udiv", x, _safe_divisor(b, t, x, y))


def _fmod_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    return b.op("srem" if t.kind == "s" else "urem", x, _safe_divisor(b, t, x, y))


def _crosses(b: Builder, r: Ref, y: Ref) -> Ref:
    """Whether the remainder is not zero and its sign is not the divisor's."""
    zero = b.like(r, 0)
    return b.op("and", b.compare("icmp ne", r, zero), b.compare("icmp slt", b.op("xor", r, y), zero))


def _remainder_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    r = _fmod_int(b, t, x, y)
    return b.select(_crosses(b, r, y), b.op("add", r, y), r) if t.kind == "s" else r


def _floordiv_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    q = _truncdiv_int(b, t, x, y)
    if t.kind != "s":
        return q
    return b.select(_crosses(b, _fmod_int(b, t, x, y), y), b.op("sub", q, b.like(q, 1)), q)


def _shift(opcode: str) -> Code:
    """A shift. Counts outside [0, bits) give 0, or the sign for arithmetic shifts right."""

    def code(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
        last = 8 * t.bytes - 1
        out = b.compare("icmp ugt", y, b.like(y, last))
        if opcode == "ashr":
            return b.op(opcode, x, b.select(out, b.like(y, last), y))
        return b.select(out, b.like(x, 0), b.op(opcode, x, b.select(out, b.like(y, 0), y)))

    return code


def _pow_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    """An integer power by squaring; a negative exponent gives 0, except for the bases 1 and -1."""
    return helper_at(b, f"pow.{t.kind}", lambda inner, xs: _write_pow_int(inner, t, *xs), x, y)


def _write_pow_int(b: Builder, t: Type, x: Ref, y: Ref) -> Ref:
    zero, one = b.like(x, 0), b.like(x, 1)
    result, power, e = one, x, y
    for _ in range(8 * t.bytes):
        odd = b.compare("icmp ne", b.op("and", e, one), zero)
        result = b.select(odd, b.op("mul", result, power), result)
        power, e = b.op("mul", power, power), b.op("lshr", e, one)
    if t.kind == "s":
        is_one = b.compare("icmp eq", x, one)
        minus = b.compare("icmp eq", x, b.like(x, -1))
        parity = b.select(b.compare("icmp ne", b.op("and", y, one), zero), b.like(x, -1), one)
        inverse = b.select(is_one, one, b.select(minus, parity, zero))
        result = b.select(b.compare("icmp slt", y, zero), inverse, result)
    return result


def _philox(b: Builder, t: Type, seed: Ref, counter: Ref, subsequence: Ref, lane: Ref) -> Ref:
    return helper_at(
        b, "philox", lambda inner, xs: _write_philox(inner, *xs), seed, counter, subsequence, lane
    )


def _write_philox(b: Builder, seed: Ref, counter: Ref, subsequence: Ref, lane: Ref) -> Ref:
    """Write the function of `loops.philox.philox`."""
    word, half = b.like(lane, philox.WORD), b.like(lane, 32)
    low, high = lambda x: b.op("and", x, word), lambda x: b.op("lshr", x, half)
    c = [low(counter), high(counter), low(subsequence), high(subsequence)]
    k = [low(seed), high(seed)]
    for _ in range(philox.ROUNDS):
        first, second = (b.op("mul", c[i], b.like(lane, m)) for i, m in zip((0, 2), philox.MULTIPLIERS))
        c = [
            b.op("xor", b.op("xor", high(second), c[1]), k[0]),
            low(second),
            b.op("xor", b.op("xor", high(first), c[3]), k[1]),
            low(first),
        ]
        k = [low(b.op("add", x, b.like(lane, step))) for x, step in zip(k, philox.WEYL)]
    result = c[0]
    for i in (1, 2, 3):
        result = b.select(b.compare("icmp eq", lane, b.like(lane, i)), c[i], result)
    return result


INT: dict[str, Code] = dict(
    neg=lambda b, t, x: b.op("sub", b.like(x, 0), x),
    abs=lambda b, t, x: b.intrinsic("abs", x, tail="i1 false") if t.kind == "s" else x,
    sign=_sign_int,
    floor=_same,
    ceil=_same,
    trunc=_same,
    round=_same,
    isnan=lambda b, t, x: b.const("i1", False),
    isinf=lambda b, t, x: b.const("i1", False),
    logical_not=lambda b, t, x: b.compare("icmp eq", x, b.like(x, 0)),
    bitwise_not=lambda b, t, x: b.op("xor", x, b.like(x, -1)),
    add=_binary("add"),
    sub=_binary("sub"),
    mul=_binary("mul"),
    floordiv=_floordiv_int,
    truncdiv=_truncdiv_int,
    remainder=_remainder_int,
    fmod=_fmod_int,
    pow=_pow_int,
    maximum=_signed("smax", "umax", lambda n: lambda b, t, x, y: b.intrinsic(n, x, y)),
    minimum=_signed("smin", "umin", lambda n: lambda b, t, x, y: b.intrinsic(n, x, y)),
    eq=_compare("icmp eq"),
    ne=_compare("icmp ne"),
    lt=_signed("icmp slt", "icmp ult", _compare),
    le=_signed("icmp sle", "icmp ule", _compare),
    gt=_signed("icmp sgt", "icmp ugt", _compare),
    ge=_signed("icmp sge", "icmp uge", _compare),
    logical_and=_logical("and"),
    logical_or=_logical("or"),
    logical_xor=_logical("xor"),
    bitwise_and=_binary("and"),
    bitwise_or=_binary("or"),
    bitwise_xor=_binary("xor"),
    shift_left=_shift("shl"),
    shift_right=_signed("ashr", "lshr", _shift),
    where=_where,
    fma=lambda b, t, x, y, z: b.op("add", b.op("mul", x, y), z),
    philox=_philox,
)
INT["fmax"], INT["fmin"] = INT["maximum"], INT["minimum"]


# ---- bool: i1, ordered False < True

BOOL: dict[str, Code] = dict(
    {name: _binary("and") for name in ("mul", "minimum", "logical_and", "bitwise_and")},
    **{name: _binary("or") for name in ("add", "maximum", "logical_or", "bitwise_or")},
    **{name: _binary("xor") for name in ("ne", "logical_xor", "bitwise_xor")},
    abs=_same,
    sign=_same,
    isnan=lambda b, t, x: b.const("i1", False),
    isinf=lambda b, t, x: b.const("i1", False),
    logical_not=lambda b, t, x: _not(b, x),
    bitwise_not=lambda b, t, x: _not(b, x),
    eq=lambda b, t, x, y: _not(b, b.op("xor", x, y)),
    lt=lambda b, t, x, y: b.op("and", _not(b, x), y),
    gt=lambda b, t, x, y: b.op("and", x, _not(b, y)),
    le=lambda b, t, x, y: b.op("or", _not(b, x), y),
    ge=lambda b, t, x, y: b.op("or", x, _not(b, y)),
    where=_where,
)
BOOL["fmax"], BOOL["fmin"] = BOOL["maximum"], BOOL["minimum"]
