"""asin, acos, atan, atan2, asinh, acosh and atanh as vector code for float32 and float64.

asin and acos reduce by asin(x) = pi/2 - 2*asin(sqrt((1 - x)/2)), atan by atan(x) = pi/4 + atan((x - 1)/(x + 1)), as in
Moshier's Cephes ("Methods and Programs for Mathematical Functions", 1989); the inverse hyperbolic functions are logarithms
of sums in two parts. Coefficients interpolate at Chebyshev nodes in 80 digits, rounded then. Errors measured by the tests,
in units of the last place: at most 1.6.
"""

from __future__ import annotations

import math

from smelt.codegen.llvm.ir_builder import Builder, Ref
from smelt.codegen.llvm.vector_math import (
    INF,
    absolute,
    at_least,
    bits,
    format_of,
    helper_at,
    integral,
    log1p,
    log_correction,
    log_edges,
    log_of_sum,
    log_sum,
    split_mantissa,
    with_float,
)

# (atan(t)/t - 1) / t**2 in t**2 on |t| <= 1/2: relative errors of atan below 2**-29 and 2**-59
ATAN = {
    "float": (-0.3333333432674408, 0.19999875128269196, -0.14279800653457642, 0.11006880551576614, -0.0823550596833229,
              0.042256858199834824),
    "double": (-0.3333333333333333, 0.19999999999999488, -0.14285714285599188, 0.11111111100917376, -0.09090908620322523,
               0.07692294712540285, -0.06666435677235948, 0.05879578429582425, -0.05240099507994713, 0.04628024868570153,
               -0.03806653672057366, 0.025006503566489507, -0.009215792047089858),
}  # fmt: skip
# (asin(s)/s - 1) / s**2 in s**2 on |s| <= 1/2: relative errors of asin below 2**-29 and 2**-57
ASIN = {
    "float": (0.1666666567325592, 0.07500094175338745, 0.04459940269589424, 0.031100662425160408, 0.017149237915873528,
              0.03369084745645523),
    "double": (0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
               0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578,
               0.005457506718640358, 0.01740087944269402, -0.014851887071247204, 0.028757851367421566),
}  # fmt: skip
# pi/2 in two parts
PI_HALF = {
    "float": (1.5707963705062866, -4.371138828673793e-08),
    "double": (1.5707963267948966, 6.123233995736766e-17),
}


def _one_over(b: Builder, x: Ref) -> Ref:
    """1/x for x > 0 to 20 bits, for corrections; not infinite."""
    narrow = b.convert("fptrunc", at_least(b, x, 2.0**-60), "float")
    return b.convert("fpext", b.op("fdiv", b.like(narrow, 1.0), narrow), x.elem)


# ---- asin, acos


def _arcsine_terms(b: Builder, x: Ref) -> tuple[Ref, Ref, Ref]:
    """(whether |x| > 1/2, s, p): asin of |x|, or of sqrt((1 - |x|)/2), is s + p, and p is small."""
    a = absolute(b, x)
    large = b.compare("fcmp ogt", a, b.like(a, 0.5))
    square = b.select(large, b.fma(a, b.like(a, -0.5), b.like(a, 0.5)), b.op("fmul", a, a))
    root = b.intrinsic("sqrt", square)
    s = b.select(large, root, a)
    lost = b.op("fmul", b.fma(b.fneg(root), root, square), with_float(b, "fmul", _one_over(b, root), 0.5))
    p = b.fma(
        b.op("fmul", s, square), b.polynomial(square, ASIN[x.elem]), b.select(large, lost, b.like(x, 0.0))
    )
    return large, s, p


def asin(b: Builder, x: Ref) -> Ref:
    """NaN beyond 1."""
    large, s, p = _arcsine_terms(b, x)
    high, low = (b.like(x, part) for part in PI_HALF[x.elem])
    doubled = b.op("fadd", s, s)
    rest = b.op("fsub", high, doubled)
    lost = b.op("fsub", b.op("fsub", high, rest), doubled)
    far = b.op("fadd", rest, b.fma(p, b.like(p, -2.0), b.op("fadd", lost, low)))
    return b.intrinsic("copysign", b.select(large, far, b.op("fadd", s, p)), x)


def acos(b: Builder, x: Ref) -> Ref:
    """pi/2 - asin(x), or twice the asin of the root near 1 and -1."""
    large, s, p = _arcsine_terms(b, x)
    high, low = (b.like(x, part) for part in PI_HALF[x.elem])
    negative = b.compare("fcmp olt", x, b.like(x, 0.0))
    p_signed = b.intrinsic("copysign", p, x)
    near = b.op("fsub", high, b.op("fadd", b.intrinsic("copysign", s, x), b.op("fsub", p_signed, low)))
    doubled, correction = b.op("fadd", s, s), b.op("fadd", p, p)
    two_high, two_low = with_float(b, "fmul", high, 2.0), with_float(b, "fmul", low, 2.0)
    behind = b.op("fsub", two_high, b.op("fadd", doubled, b.op("fsub", correction, two_low)))
    far = b.select(negative, behind, b.op("fadd", doubled, correction))
    return b.select(large, far, near)


# ---- atan, atan2


def _angle(b: Builder, small: Ref, large: Ref, swapped: Ref, behind: Ref | None = None) -> Ref:
    """The angle whose tangent is small/large, 0 <= small <= large: taken from pi/2 where `swapped`, and that from pi where
    `behind`."""
    elem = small.elem
    upper = b.compare("fcmp ogt", small, with_float(b, "fmul", large, 0.5))
    over = b.select(upper, b.op("fsub", small, large), small)
    under = b.select(upper, b.op("fadd", small, large), large)
    t = b.op("fdiv", over, under)
    square = b.op("fmul", t, t)
    p = b.op("fmul", b.op("fmul", t, square), b.polynomial(square, ATAN[elem]))
    quarters = b.select(upper, b.like(t, 1.0), b.like(t, 0.0))  # of pi, that t and p are added to
    for condition, turn in ((swapped, 2.0), (behind, 4.0)):
        if condition is not None:
            t, p = b.select(condition, b.fneg(t), t), b.select(condition, b.fneg(p), p)
            quarters = b.select(condition, b.op("fsub", b.like(t, turn), quarters), quarters)
    high, low = (part / 2 for part in PI_HALF[elem])
    rest = b.op("fadd", t, b.fma(quarters, b.like(t, low), p))
    return b.fma(quarters, b.like(t, high), rest)


def atan(b: Builder, x: Ref) -> Ref:
    """pi/2 - atan(1/x) beyond 1, with the sign of x."""
    a, one = absolute(b, x), b.like(x, 1.0)
    swapped = b.compare("fcmp ogt", a, one)
    small, large = b.select(swapped, one, a), b.select(swapped, a, one)
    return b.intrinsic("copysign", _angle(b, small, large, swapped), x)


def _write_atan2(b: Builder, args: list[Ref]) -> Ref:
    y, x = args
    zero, one, inf = (b.like(x, v) for v in (0.0, 1.0, INF))
    height, width = absolute(b, y), absolute(b, x)
    swapped = b.compare("fcmp ogt", height, width)
    small, large = b.select(swapped, width, height), b.select(swapped, height, width)
    infinite = b.compare("fcmp oeq", large, inf)
    equal = b.select(b.compare("fcmp oeq", small, inf), one, zero)
    small = b.select(infinite, equal, small)
    large = b.select(b.op("or", infinite, b.compare("fcmp oeq", large, zero)), one, large)
    most = format_of(x).bias - 1
    half = b.select(
        b.compare("fcmp ogt", large, b.like(x, 2.0**most)), b.like(x, 0.25), one
    )  # their sum is finite
    small, large = b.op("fmul", small, half), b.op("fmul", large, half)
    behind = b.compare("icmp slt", bits(b, x), b.like(bits(b, x), 0))
    result = b.intrinsic("copysign", _angle(b, small, large, swapped, behind), y)
    return b.select(b.compare("fcmp uno", x, y), b.like(x, math.nan), result)


def atan2(b: Builder, y: Ref, x: Ref) -> Ref:
    """The angle of the point (x, y), as C's for zeros and infinities, in a separate function of the module."""
    return helper_at(b, "atan2", _write_atan2, y, x)


# ---- asinh, acosh, atanh


def _root_correction(b: Builder, square: Ref, low: Ref, root: Ref) -> Ref:
    """What sqrt(square + low) exceeds `root`, the rounded root of `square`, by."""
    residue = b.op("fadd", b.fma(b.fneg(root), root, square), low)
    return b.op("fmul", residue, with_float(b, "fmul", _one_over(b, root), 0.5))


def _log_of_double(b: Builder, a: Ref) -> Ref:
    """log(2*a), where 2*a may be infinite."""
    e, m = split_mantissa(b, a)
    f = with_float(b, "fsub", m, 1.0)
    return log_sum(b, with_float(b, "fadd", integral(b, e), 1.0), f, log_correction(b, f))


def _write_asinh(b: Builder, args: list[Ref]) -> Ref:
    (x,) = args
    a, one = absolute(b, x), b.like(x, 1.0)
    square = b.fma(a, a, one)
    near = b.fma(a, a, b.op("fsub", one, square))
    far = b.op("fadd", b.fma(a, a, b.fneg(square)), one)
    lost = b.select(b.compare("fcmp olt", a, one), near, far)
    root = b.intrinsic("sqrt", square)
    u = b.op("fadd", a, root)
    low = b.op("fadd", b.op("fsub", a, b.op("fsub", u, root)), _root_correction(b, square, lost, root))
    huge = b.compare("fcmp oge", a, b.like(a, format_of(a).huge))
    y = b.select(huge, _log_of_double(b, a), log_of_sum(b, u, low))
    y = b.select(b.compare("fcmp olt", a, b.like(a, INF)), y, a)
    return b.intrinsic("copysign", y, x)


def asinh(b: Builder, x: Ref) -> Ref:
    """log(|x| + sqrt(x**2 + 1)) with the sign of x, in a separate function of the module."""
    return helper_at(b, "asinh", _write_asinh, x)


def _write_acosh(b: Builder, args: list[Ref]) -> Ref:
    (x,) = args
    t = with_float(b, "fsub", x, 1.0)
    doubled = b.op("fadd", t, t)
    square = b.fma(t, t, doubled)
    lost = b.fma(t, t, b.op("fsub", doubled, square))
    root = b.intrinsic("sqrt", square)
    v = b.op("fadd", t, root)
    low = b.op("fadd", b.op("fsub", t, b.op("fsub", v, root)), _root_correction(b, square, lost, root))
    huge = b.compare("fcmp oge", x, b.like(x, format_of(x).huge))
    y = b.select(huge, log_edges(b, x, _log_of_double(b, x)), log1p(b, v, low))
    return b.select(b.compare("fcmp ult", x, b.like(x, 1.0)), b.like(x, math.nan), y)


def acosh(b: Builder, x: Ref) -> Ref:
    """log1p(t + sqrt(t**2 + 2*t)) for t = x - 1, NaN below 1, in a separate function of the module."""
    return helper_at(b, "acosh", _write_acosh, x)


def _write_atanh(b: Builder, args: list[Ref]) -> Ref:
    (x,) = args
    a, one = absolute(b, x), b.like(x, 1.0)
    under = b.op("fsub", one, a)
    lost = b.op("fsub", b.op("fsub", one, under), a)
    over = b.op("fadd", a, a)
    q = b.op("fdiv", over, under)
    residue = b.fma(b.fneg(q), lost, b.fma(b.fneg(q), under, over))
    y = log1p(b, q, b.op("fmul", residue, _one_over(b, under)))
    return b.intrinsic("copysign", with_float(b, "fmul", y, 0.5), x)


def atanh(b: Builder, x: Ref) -> Ref:
    """log1p(2*|x| / (1 - |x|)) / 2 with the sign of x, NaN beyond 1, in a separate function of the module."""
    return helper_at(b, "atanh", _write_atanh, x)
