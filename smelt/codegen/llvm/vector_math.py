"""Elementary functions as vector code.

float32: range reduction and polynomials in IR. Every coefficient list below is a weighted least-squares fit on 400
Chebyshev nodes with Lawson reweighting (which converges to the minimax fit), computed in extended precision for the
interval and with the error weight written beside it, then rounded to float32. Reductions are Cody and Waite's ("Software
Manual for the Elementary Functions", 1980) with fused multiply-adds. Errors measured by the tests, in units of the last
place: exp, exp2, expm1, log, log2, log10, log1p, sin, cos, erf, tanh, pow at most 1.6, sigmoid 2.3.

Rare float32 functions and those of float64 but exp and sigmoid call the C library once per lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.codegen.llvm.ir_builder import Builder, Ref, helper, type_text

INF = math.inf
LN2_HI = 0.693359375  # 355/512: n * LN2_HI is exact for |n| < 2**15
LN2_LO = math.log(2) - LN2_HI

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2, weight r**2
EXP = (0.5, 0.1666651964187622, 0.04166620597243309, 0.008368882350623608, 0.0013950476422905922)
# the same with weight |r|
EXPM1 = (0.5, 0.1666666716337204, 0.04166635498404503, 0.00833327416330576, 0.0013941011857241392,
         0.0001991355966310948)  # fmt: skip
# (log1p(f) - f + f**2/2) / f**3 on sqrt(1/2) <= 1 + f <= sqrt(2), weight f**2
LOG = (0.3333331048488617, -0.24999986588954926, 0.20002226531505585, -0.16669249534606934, 0.14218656718730927,
       -0.12384375929832458, 0.11873017996549606, -0.11789663136005402, 0.06915104389190674)  # fmt: skip
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2/2) / r**4 in r**2, on |r| <= pi/4
SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983933470910415, 2.71831163445313e-06)
COS = (0.04166664555668831, -0.001388736767694354, 2.443845005473122e-05)
# (tanh(x)/x - 1) / x**2 in x**2, on |x| <= 0.625, weight x**2
TANH = (-0.3333333134651184, 0.13333210349082947, -0.05394720286130905, 0.021702967584133148, -0.008182673715054989,
        0.0021475369576364756)  # fmt: skip
# erf(x)/x - 1 in x**2 on |x| <= 0.9
ERF_SMALL = (0.12837916612625122, -0.37612634897232056, 0.11283719539642334, -0.026860753074288368,
             0.005204435903578997, -0.0008181926677934825, 8.538836846128106e-05)  # fmt: skip
# -log(erfc(x)) on 0.9 <= x <= 4, weight erfc/erf
ERF_LARGE = (-0.00016920518828555942, 1.1294883489608765, 0.6334008574485779, 0.10822038352489471,
             -0.025080617517232895, 0.004156255163252354, -0.00043139359331689775,
             2.0828621927648783e-05)  # fmt: skip


# of float64
LN2_TOP = 0.6931471803691238  # the upper 32 bits: n * LN2_TOP is exact for |n| < 2**20
LN2_LOW = 1.9082149292705877e-10
# the Taylor series; the truncation error is below 2**-57 of exp(r) on |r| <= ln(2)/2
EXP_DOUBLE = tuple(1 / math.factorial(k) for k in range(2, 14))


# ---- building blocks


def _bits(b: Builder, x: Ref) -> Ref:
    return b.convert("bitcast", x, "i32" if x.elem == "float" else "i64")


def _float(b: Builder, x: Ref) -> Ref:
    return b.convert("bitcast", x, "float" if x.elem == "i32" else "double")


def _i(b: Builder, opcode: str, x: Ref, value: int) -> Ref:
    return b.op(opcode, x, b.like(x, value))


def _f(b: Builder, opcode: str, x: Ref, value: float) -> Ref:
    return b.op(opcode, x, b.like(x, value))


def _at_most(b: Builder, x: Ref, bound: float) -> Ref:
    """min(x, bound); NaN stays NaN. One instruction on x86, which has exactly this semantics."""
    k = b.like(x, bound)
    return b.select(b.compare("fcmp ogt", x, k), k, x)


def _at_least(b: Builder, x: Ref, bound: float) -> Ref:
    k = b.like(x, bound)
    return b.select(b.compare("fcmp olt", x, k), k, x)


def absolute(b: Builder, x: Ref) -> Ref:
    """|x|; NaN's sign is cleared as well."""
    return b.intrinsic("fabs", x)


def _power_of_two(b: Builder, n: Ref) -> Ref:
    """2**n for integer lanes n in [-126, 127]."""
    return _float(b, _i(b, "shl", _i(b, "add", n, 127), 23))


def _power_of_two_double(b: Builder, n: Ref) -> Ref:
    """2**n for i32 lanes n in [-1022, 1023]."""
    return _float(b, _i(b, "shl", b.convert("sext", _i(b, "add", n, 1023), "i64"), 52))


def _scale(b: Builder, y: Ref, n: Ref) -> Ref:
    """y * 2**n for an integral float n; where the result is denormal, rounded once with AVX-512."""
    kind = type_text(y.elem, y.lanes)
    if b.target.scalef and kind in ("<16 x float>", "<8 x double>"):
        name = f"@llvm.x86.avx512.mask.scalef.{'ps' if y.elem == 'float' else 'pd'}.512"
        b.declare(name, f"{kind} {name}({kind}, {kind}, {kind}, i{y.lanes}, i32)")
        text = f"call {kind} {name}({y}, {b.widen(n)}, {kind} zeroinitializer, i{y.lanes} -1, i32 4)"
        return b.pure(text, y.elem, y.lanes, max(y.depth, n.depth))
    power = _power_of_two if y.elem == "float" else _power_of_two_double
    integral = b.convert("fptosi", n, "i32")
    half = _i(b, "ashr", integral, 1)
    return b.op("fmul", b.op("fmul", y, power(b, half)), power(b, b.op("sub", integral, half)))


def _reduce_exp(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(n, r) with x = n*ln(2) + r, |r| <= ln(2)/2."""
    n = b.intrinsic("rint", _f(b, "fmul", x, 1 / math.log(2)))
    r = b.fma(n, b.like(n, -LN2_HI), x)
    return n, b.fma(n, b.like(n, -LN2_LO), r)


def _exp_reduced(b: Builder, n: Ref, r: Ref) -> Ref:
    p = b.fma(b.op("fmul", r, r), b.polynomial(r, EXP), r)
    return _scale(b, _f(b, "fadd", p, 1.0), n)


# ---- float32


def exp(b: Builder, x: Ref) -> Ref:
    """e**x of float32: 2**n times a polynomial of the remainder; inf and 0 beyond the range."""
    return _exp_reduced(b, *_reduce_exp(b, _at_least(b, _at_most(b, x, 89.0), -104.0)))


def exp2(b: Builder, x: Ref) -> Ref:
    """2**x of float32, like `exp`."""
    x = _at_least(b, _at_most(b, x, 129.0), -151.0)
    n = b.intrinsic("rint", x)
    return _exp_reduced(b, n, _f(b, "fmul", b.op("fsub", x, n), math.log(2)))


def expm1(b: Builder, x: Ref) -> Ref:
    """2**n * expm1(r) + (2**n - 1), at half scale so that 2**128 does not overflow early."""
    n, r = _reduce_exp(b, _at_least(b, _at_most(b, x, 89.0), -18.0))
    p = b.fma(b.op("fmul", r, r), b.polynomial(r, EXPM1), r)
    half = _power_of_two(b, _i(b, "sub", b.convert("fptosi", n, "i32"), 1))
    y = b.fma(p, half, _f(b, "fsub", half, 0.5))
    return b.intrinsic("copysign", b.op("fadd", y, y), x)  # -0 at -0


def _split_mantissa(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(e, m), both of x's float type except integer e: x = m * 2**e, m in [sqrt(1/2), sqrt(2)). For normal x > 0."""
    if x.elem == "float":
        sqrt_half, shift = 0x3F3504F3, 23
    else:
        sqrt_half, shift = 0x3FE6A09E667F3BCD, 52
    bits = _bits(b, x)
    e = _i(b, "ashr", _i(b, "sub", bits, sqrt_half), shift)
    return e, _float(b, b.op("sub", bits, _i(b, "shl", e, shift)))


def _log_correction(b: Builder, f: Ref) -> Ref:
    """log1p(f) - f."""
    square = b.op("fmul", f, f)
    cube = b.op("fmul", square, f)
    return b.fma(cube, b.polynomial(f, LOG), _f(b, "fmul", square, -0.5))


def _log_terms(b: Builder, x: Ref) -> tuple[Ref, Ref, Ref]:
    """(e, f, t): log(x) = e*ln(2) + f + t, t small against f. For finite x > 0, denormal too."""
    small = b.compare("fcmp olt", x, b.like(x, 2.0**-126))
    x = b.select(small, _f(b, "fmul", x, 2.0**23), x)
    e, m = _split_mantissa(b, x)
    e = b.convert("sitofp", e, "float")
    e = b.op("fsub", e, b.select(small, b.const("float", 23.0), b.const("float", 0.0)))
    f = _f(b, "fsub", m, 1.0)
    return e, f, _log_correction(b, f)


def _log_edges(b: Builder, x: Ref, y: Ref) -> Ref:
    """The result y = log(x), corrected for inf, NaN, 0 and negative x."""
    y = b.select(b.compare("fcmp olt", x, b.like(x, INF)), y, x)
    y = b.select(b.compare("fcmp oeq", x, b.like(x, 0.0)), b.like(x, -INF), y)
    return b.select(b.compare("fcmp olt", x, b.like(x, 0.0)), b.like(x, math.nan), y)


def _log_sum(b: Builder, e: Ref, f: Ref, t: Ref) -> Ref:
    y = b.fma(e, b.like(e, LN2_LO), t)
    return b.fma(e, b.like(e, LN2_HI), b.op("fadd", f, y))


def log(b: Builder, x: Ref) -> Ref:
    """Natural logarithm of float32; NaN below 0, -inf at 0."""
    return _log_edges(b, x, _log_sum(b, *_log_terms(b, x)))


def _log_base(b: Builder, x: Ref, base: float) -> Ref:
    """log(x)/log(base), with 1/log(base) in two parts and e*log_base(2) added exactly rounded last."""
    e, f, t = _log_terms(b, x)
    hi = 1.4375 if base == 2 else 0.43359375  # few bits, so that f*hi loses little
    lo = 1 / math.log(base) - hi
    per_e = 1.0 if base == 2 else 0.30078125
    remainder = b.op("fmul", b.op("fadd", f, t), b.like(f, lo))
    if base != 2:
        remainder = b.fma(e, b.like(e, math.log(2) / math.log(base) - per_e), remainder)
    remainder = b.fma(t, b.like(t, hi), remainder)
    remainder = b.fma(f, b.like(f, hi), remainder)
    return _log_edges(b, x, b.fma(e, b.like(e, per_e), remainder))


def log2(b: Builder, x: Ref) -> Ref:
    """Logarithm of float32 to base 2."""
    return _log_base(b, x, 2)


def log10(b: Builder, x: Ref) -> Ref:
    """Logarithm of float32 to base 10."""
    return _log_base(b, x, 10)


def log1p(b: Builder, x: Ref) -> Ref:
    """log(u) for u = 1 + x, with the rounding error of that sum added to the reduced argument."""
    u = _f(b, "fadd", x, 1.0)
    lost = b.select(
        b.compare("fcmp ogt", x, b.like(x, 1.0)),
        b.op("fsub", b.like(x, 1.0), b.op("fsub", u, x)),
        b.op("fsub", x, _f(b, "fsub", u, 1.0)),
    )
    e, m = _split_mantissa(b, u)
    inverse = _power_of_two(b, b.op("sub", b.like(e, 0), b.intrinsic("smin", e, b.like(e, 127))))
    f = b.fma(lost, inverse, _f(b, "fsub", m, 1.0))
    y = _log_sum(b, b.convert("sitofp", e, "float"), f, _log_correction(b, f))
    return b.intrinsic("copysign", _log_edges(b, u, y), x)  # -0 at -0


def sigmoid(b: Builder, x: Ref) -> Ref:
    """e/(1 + e) or 1/(1 + e) for e = exp(-|x|)."""
    one = b.like(x, 1.0)
    e = exp(b, b.fneg(absolute(b, x)))
    return b.op("fdiv", b.select(b.compare("fcmp olt", x, b.like(x, 0.0)), e, one), b.op("fadd", e, one))


def tanh(b: Builder, x: Ref) -> Ref:
    """A polynomial near 0, otherwise 1 - 2/(exp(2|x|) + 1) with x's sign."""
    a, square = absolute(b, x), b.op("fmul", x, x)
    small = b.fma(b.op("fmul", x, square), b.polynomial(square, TANH), x)
    e = exp(b, b.op("fadd", a, a))
    large = b.op("fsub", b.like(x, 1.0), b.op("fdiv", b.like(x, 2.0), _f(b, "fadd", e, 1.0)))
    y = b.select(b.compare("fcmp olt", a, b.like(a, 0.625)), small, large)
    return b.intrinsic("copysign", y, x)  # that of -0, too


def erf(b: Builder, x: Ref) -> Ref:
    """erf of float32: a polynomial up to 0.9, 1 - e**-polynomial beyond, with the sign of x."""
    a = absolute(b, x)
    small = b.fma(x, b.polynomial(b.op("fmul", x, x), ERF_SMALL), x)
    g = b.fneg(b.polynomial(_at_most(b, a, 4.0), ERF_LARGE))
    large = b.op("fsub", b.like(x, 1.0), _exp_reduced(b, *_reduce_exp(b, g)))
    large = b.intrinsic("copysign", large, x)
    return b.select(b.compare("fcmp olt", a, b.like(a, 0.9)), small, large)


PI_HALF_HI, PI_HALF_LO = 1.5707963267948966, 6.123233995736766e-17  # pi/2 in two doubles


def _reduce_angle(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(quadrant as i32, r): x = n*pi/2 + r. The subtraction runs in double, exact enough while |x| < 2**40."""
    wide = b.convert("fpext", x, "double")
    n = b.intrinsic("rint", _f(b, "fmul", wide, 2 / math.pi))
    r = b.fma(n, b.like(n, -PI_HALF_HI), wide)
    r = b.fma(n, b.like(n, -PI_HALF_LO), r)
    turns = b.intrinsic("floor", _f(b, "fmul", n, 0.25))
    quadrant = b.convert("fptosi", b.fma(turns, b.like(n, -4.0), n), "i32")
    return quadrant, b.convert("fptrunc", r, "float")


def sine(b: Builder, x: Ref, shift: int) -> Ref:
    """sin(x + shift*pi/2)."""
    quadrant, r = _reduce_angle(b, x)
    quadrant = _i(b, "add", quadrant, shift)
    square = b.op("fmul", r, r)
    s = b.fma(b.op("fmul", r, square), b.polynomial(square, SIN), r)
    c = b.fma(
        b.op("fmul", square, square),
        b.polynomial(square, COS),
        b.fma(square, b.like(square, -0.5), b.like(r, 1.0)),
    )
    odd = b.compare("icmp ne", _i(b, "and", quadrant, 1), b.const("i32", 0))
    sign = _i(b, "shl", _i(b, "and", quadrant, 2), 30)
    y = _float(b, b.op("xor", _bits(b, b.select(odd, c, s)), sign))
    return y if shift else b.select(b.compare("fcmp oeq", x, b.like(x, 0.0)), x, y)  # -0 at -0


def _trigonometric(name: str, shift: int) -> Callable[[Builder, Ref], Ref]:
    """A helper with a rarely executed branch to the C library for huge arguments."""

    def write(b: Builder, args: list[Ref]) -> Ref:
        (x,) = args
        slow = libm(name)
        huge = b.any_lane(b.compare("fcmp ogt", absolute(b, x), b.like(x, 2.0**40)))
        b.line(f"br i1 {huge.text}, label %huge, label %usual")
        b.line("\nhuge:")
        b.scopes[-1].memo = {}
        exact = slow(b, x)
        b.line(f"ret {exact}\nusual:")
        b.scopes[-1].memo = {}
        return sine(b, x, shift)

    return lambda b, x: helper_at(b, name, write, x)


def helper_at(b: Builder, name: str, write: Callable[[Builder, list[Ref]], Ref], *args: Ref) -> Ref:
    """A call of the module function `name`, written by `write` on first use, with the lanes of the operands."""
    wide, lanes, _ = b.broadcast(args)
    sized = b if b.lanes == lanes else Builder(b.module, lanes)
    return b.call(helper(sized, name, wide[0].elem, len(wide), write), wide[0].elem, *wide)


# 2*atanh(s)/s/ln(2) in s**2 = ((m-1)/(m+1))**2 <= 0.0295: the Taylor series 2/ln(2) * 1/(2k+1), error below 2**-46
LOG2_DOUBLE = tuple(2 / math.log(2) / (2 * k + 1) for k in range(8))
# 2**r on |r| <= 1/2: the Taylor series, error below 2**-38
EXP2_DOUBLE = tuple(math.log(2) ** k / math.factorial(k) for k in range(10))


def _log2_double(b: Builder, x: Ref) -> Ref:
    """log2 of finite positive normal doubles, to about 2**-44."""
    e, m = _split_mantissa(b, x)
    s = b.op("fdiv", _f(b, "fsub", m, 1.0), _f(b, "fadd", m, 1.0))
    integral = b.convert("sitofp", b.convert("trunc", e, "i32"), "double")
    return b.fma(s, b.polynomial(b.op("fmul", s, s), LOG2_DOUBLE), integral)


def power(b: Builder, args: list[Ref]) -> Ref:
    """2**(y*log2|x|) in double precision, then the sign and the special cases of C's pow."""
    x, y = args
    a = absolute(b, x)
    log2_a = _log2_double(b, b.convert("fpext", a, "double"))
    t = b.op("fmul", log2_a, b.convert("fpext", y, "double"))
    t = _at_least(b, _at_most(b, t, 160.0), -160.0)
    n = b.intrinsic("rint", t)
    p = b.polynomial(b.op("fsub", t, n), EXP2_DOUBLE)
    bits = b.convert("sext", _i(b, "add", b.convert("fptosi", n, "i32"), 1023), "i64")
    result = b.convert("fptrunc", b.op("fmul", p, _float(b, _i(b, "shl", bits, 52))), "float")
    zero, one, inf = b.like(x, 0.0), b.like(x, 1.0), b.like(x, INF)
    y_negative = b.compare("fcmp olt", y, zero)
    at_zero = b.select(y_negative, inf, zero)
    at_inf = b.select(y_negative, zero, inf)
    result = b.select(b.compare("fcmp oeq", a, zero), at_zero, result)
    result = b.select(b.compare("fcmp oeq", a, inf), at_inf, result)
    y_inf = b.compare("fcmp oeq", absolute(b, y), inf)
    grows = b.op("xor", b.compare("fcmp ogt", a, one), y_negative)
    result = b.select(y_inf, b.select(grows, inf, zero), result)
    integral = b.compare("fcmp oeq", b.intrinsic("trunc", y), y)
    half = _f(b, "fmul", y, 0.5)
    odd = b.op("and", integral, b.compare("fcmp one", b.intrinsic("trunc", half), half))
    negative = b.compare("icmp slt", _bits(b, x), b.const("i32", 0))
    result = b.select(b.op("and", negative, odd), b.fneg(result), result)
    finite_negative = b.op("and", b.compare("fcmp olt", x, zero), b.compare("fcmp ogt", x, b.like(x, -INF)))
    integral = b.op("or", integral, y_inf)
    invalid = b.op("and", finite_negative, b.op("xor", integral, b.const("i1", True)))
    result = b.select(invalid, b.like(x, math.nan), result)
    result = b.select(b.compare("fcmp uno", x, y), b.like(x, math.nan), result)
    is_one = b.op("and", b.compare("fcmp oeq", a, one), b.op("or", b.compare("fcmp oeq", x, one), y_inf))
    return b.select(b.op("or", is_one, b.compare("fcmp oeq", y, zero)), one, result)


def pow(b: Builder, x: Ref, y: Ref) -> Ref:
    """x**y of float32, in a separate function of the module."""
    return helper_at(b, "pow", power, x, y)


def _fmod_step(b: Builder, r: Ref, y: Ref) -> tuple[Ref, Ref]:
    """(|r / y|, r less a multiple of y): at most 3/4 |y| where the quotient is below 2**51 (2**22 for float32), which makes
    it exact; else less than 2**-50 of r, and exact for floats in float64."""
    quotient = b.op("fdiv", r, y)
    return absolute(b, quotient), b.fma(b.fneg(b.intrinsic("rint", quotient)), y, r)


def _fmod_sign(b: Builder, x: Ref, y: Ref, r: Ref) -> Ref:
    """C's fmod from any remainder r of x that is less than y: with the sign of x, and x itself where that is less."""
    wrong = b.compare("fcmp olt", b.op("fmul", b.intrinsic("copysign", b.like(x, 1.0), x), r), b.like(x, 0.0))
    a = absolute(b, y)
    r = b.intrinsic("copysign", b.select(wrong, b.op("fsub", a, absolute(b, r)), r), x)
    return b.select(b.compare("fcmp olt", absolute(b, x), a), x, r)


def _fmod_wide(b: Builder, x: Ref, y: Ref) -> Ref:
    """fmod of float32 with a quotient up to 2**277."""
    r, y_wide = b.convert("fpext", x, "double"), b.convert("fpext", y, "double")
    for _ in range(6):
        _, r = _fmod_step(b, r, y_wide)
    return b.convert("fptrunc", _fmod_sign(b, b.convert("fpext", x, "double"), y_wide, r), "float")


def _write_fmod(b: Builder, args: list[Ref]) -> Ref:
    x, y = args
    single = x.elem == "float"
    quotient, r = _fmod_step(b, x, y)
    large = b.compare("fcmp ogt", quotient, b.like(x, 2.0**22 if single else 2.0**51))
    some = b.any_lane(large)
    b.line(f"br i1 {some.text}, label %large, label %usual")
    b.line("\nlarge:")
    b.scopes[-1].memo = {}
    exact = _fmod_wide(b, x, y) if single else libm("fmod")(b, x, y)
    b.line(f"ret {exact}\nusual:")
    b.scopes[-1].memo = {}
    return _fmod_sign(b, x, y, r)


def fmod(b: Builder, x: Ref, y: Ref) -> Ref:
    """C's fmod, exact, in a separate function of the module."""
    return helper_at(b, "fmod", _write_fmod, x, y)


# ---- the C library


def libm(name: str) -> Callable[..., Ref]:
    """The C library's function, called once per lane."""

    def call(b: Builder, *args: Ref) -> Ref:
        elem = args[0].elem
        symbol = f"@{name}f" if elem == "float" else f"@{name}"
        b.declare(symbol, f"{elem} {symbol}({', '.join([elem] * len(args))})")
        if all(a.lanes == 1 for a in args):
            return b.call(symbol, elem, *args)
        return helper_at(b, "each." + name, lambda inner, xs: _each_lane(inner, symbol, xs), *args)

    return call


def _each_lane(b: Builder, symbol: str, args: list[Ref]) -> Ref:
    elem, lanes = args[0].elem, args[0].lanes
    result = Ref("poison", elem, lanes)
    for i in range(lanes):
        scalars = [b.pure(f"extractelement {a}, i64 {i}", elem, 1, a.depth) for a in args]
        one = b.call(symbol, elem, *scalars)
        result = b.pure(f"insertelement {result}, {one}, i64 {i}", elem, lanes, one.depth)
    return result


# ---- float64


def exp_double(b: Builder, x: Ref) -> Ref:
    """e**x of float64, as `exp`."""
    x = _at_least(b, _at_most(b, x, 710.0), -746.0)
    n = b.intrinsic("rint", _f(b, "fmul", x, 1 / math.log(2)))
    r = b.fma(n, b.like(n, -LN2_LOW), b.fma(n, b.like(n, -LN2_TOP), x))
    p = b.fma(b.op("fmul", r, r), b.polynomial(r, EXP_DOUBLE), r)
    return _scale(b, _f(b, "fadd", p, 1.0), n)


def sigmoid_double(b: Builder, x: Ref) -> Ref:
    """1 / (1 + e**-x) of float64."""
    one = b.like(x, 1.0)
    return b.op("fdiv", one, b.op("fadd", exp_double(b, b.fneg(x)), one))


FLOAT64: dict[str, Callable[..., Ref]] = {"exp": exp_double, "sigmoid": sigmoid_double, "fmod": fmod}
# op name -> code for float32. The others, and those of float64 that are not in FLOAT64, are LIBM.
FLOAT32: dict[str, Callable[..., Ref]] = dict(
    exp=exp, exp2=exp2, expm1=expm1, log=log, log2=log2, log10=log10, log1p=log1p, tanh=tanh, sigmoid=sigmoid, erf=erf,
    sin=_trigonometric("sin", 0), cos=_trigonometric("cos", 1), pow=pow, fmod=fmod,
)  # fmt: skip
LIBM = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "atan2", "fmod",
)  # fmt: skip


def function(name: str, elem: str) -> Callable[..., Ref]:
    """The code of `name` on `elem` (float or double)."""
    code = (FLOAT32 if elem == "float" else FLOAT64).get(name)
    return code or libm(name)


MATH_OPS = frozenset((*LIBM, "sigmoid"))
