"""Elementary functions of float32 and float64 as vector code: exponentials, logarithms, powers, erf, fmod.

Range reduction and polynomials in IR, the same code for both types with the numbers of a `Format`. Coefficient lists of
float32 are weighted least-squares fits on 400 Chebyshev nodes with Lawson reweighting (which converges to the minimax fit),
computed in extended precision for the interval and with the error weight written beside it, then rounded; those of
float64 name their source. Reductions are Cody and Waite's ("Software Manual for the Elementary Functions", 1980) with
fused multiply-adds. Errors measured by the tests, in units of the last place: exp, exp2, expm1, log, log2, log10, log1p,
erf, tanh, pow at most 1.6, sigmoid 2.3.

What has no vector code calls the C library once per lane (`math_functions.py` has the table).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from smelt.codegen.llvm.ir_builder import Builder, Ref, helper, type_text

INF = math.inf


@dataclass(frozen=True)
class Format:
    """A float type and the numbers that its functions use. `ln2_high` has few bits: its product with an exponent is exact.
    The polynomials: `exp` (exp(r) - 1 - r) / r**2 with weight r**2, `expm1` the same with weight |r|, on |r| <= ln(2)/2;
    `tanh` (tanh(x)/x - 1) / x**2 in x**2 on |x| <= 0.625; `sinh` the same of sinh on |x| <= 1."""

    mantissa: int
    bias: int
    sqrt_half: int  # the bits of sqrt(1/2)
    ln2_high: float
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    tanh: tuple[float, ...]
    sinh: tuple[float, ...]
    exp_range: tuple[float, float]  # beyond it exp is 0 or infinite
    exp2_range: tuple[float, float]
    expm1_least: float  # below it expm1 is -1
    huge: float  # from here on x**2 + 1 is x**2, and x**2 is finite

    @property
    def ln2_low(self) -> float:
        """What `ln2_high` lacks of ln(2)."""
        return LN2_LOW if self.mantissa == 52 else math.log(2) - self.ln2_high


LN2_LOW = 1.9082149292705877e-10  # ln(2) less its upper 32 bits, from more digits than a float64 has
# the Taylor series; the truncation error is below 2**-57 of exp(r) on |r| <= ln(2)/2
EXP_DOUBLE = tuple(1 / math.factorial(k) for k in range(2, 14))

FLOAT = Format(
    mantissa=23,
    bias=127,
    sqrt_half=0x3F3504F3,
    ln2_high=0.693359375,  # 355/512: n * ln2_high is exact for |n| < 2**15
    exp=(0.5, 0.1666651964187622, 0.04166620597243309, 0.008368882350623608, 0.0013950476422905922),
    expm1=(0.5, 0.1666666716337204, 0.04166635498404503, 0.00833327416330576, 0.0013941011857241392,
           0.0001991355966310948),
    tanh=(-0.3333333134651184, 0.13333210349082947, -0.05394720286130905, 0.021702967584133148, -0.008182673715054989,
          0.0021475369576364756),
    sinh=(0.1666666716337204, 0.008333339355885983, 0.00019838102161884308, 2.806280235745362e-06),
    exp_range=(-104.0, 89.0),
    exp2_range=(-151.0, 129.0),
    expm1_least=-18.0,
    huge=2.0**24,
)  # fmt: skip
# Interpolation at Chebyshev nodes in 80 digits: relative errors below 2**-58 (tanh) and 2**-70 (sinh).
DOUBLE = Format(
    mantissa=52,
    bias=1023,
    sqrt_half=0x3FE6A09E667F3BCD,
    ln2_high=0.6931471803691238,  # the upper 32 bits: n * ln2_high is exact for |n| < 2**20
    exp=EXP_DOUBLE,
    expm1=EXP_DOUBLE,
    tanh=(-0.3333333333333333, 0.1333333333333296, -0.05396825396781054, 0.021869488515352347, -0.008863235024306106,
          0.003592120760870841, -0.0014557676940659455, 0.000589622148687206, -0.0002374675659822325,
          9.23274970808537e-05, -3.092912547386467e-05, 6.354340814859719e-06),
    sinh=(0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
          2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15),
    exp_range=(-746.0, 710.0),
    exp2_range=(-1076.0, 1025.0),
    expm1_least=-38.0,
    huge=2.0**54,
)  # fmt: skip

# (log1p(f) - f + f**2/2) / f**3 on sqrt(1/2) <= 1 + f <= sqrt(2), weight f**2
LOG = (0.3333331048488617, -0.24999986588954926, 0.20002226531505585, -0.16669249534606934, 0.14218656718730927,
       -0.12384375929832458, 0.11873017996549606, -0.11789663136005402, 0.06915104389190674)  # fmt: skip
# Of float64, in s**2 for s = f/(2 + f): Lg1 to Lg7 of fdlibm's e_log.c (Sun Microsystems, 1993), error below 2**-58
LOG_DOUBLE = (0.6666666666666735130, 0.3999999999940941908, 0.2857142874366239149, 0.2222219843214978396,
              0.1818357216161805012, 0.1531383769920937332, 0.1479819860511658591)  # fmt: skip
# erf(x)/x - 1 in x**2 on |x| <= 0.9
ERF_SMALL = (0.12837916612625122, -0.37612634897232056, 0.11283719539642334, -0.026860753074288368,
             0.005204435903578997, -0.0008181926677934825, 8.538836846128106e-05)  # fmt: skip
# -log(erfc(x)) on 0.9 <= x <= 4, weight erfc/erf
ERF_LARGE = (-0.00016920518828555942, 1.1294883489608765, 0.6334008574485779, 0.10822038352489471,
             -0.025080617517232895, 0.004156255163252354, -0.00043139359331689775,
             2.0828621927648783e-05)  # fmt: skip


def format_of(x: Ref) -> Format:
    """The numbers of the float type of `x`."""
    return FLOAT if x.elem == "float" else DOUBLE


# ---- building blocks


def bits(b: Builder, x: Ref) -> Ref:
    """The bits of float lanes as integers of their size."""
    return b.convert("bitcast", x, "i32" if x.elem == "float" else "i64")


def from_bits(b: Builder, x: Ref) -> Ref:
    """The float lanes that have these bits."""
    return b.convert("bitcast", x, "float" if x.elem == "i32" else "double")


def with_int(b: Builder, opcode: str, x: Ref, value: int) -> Ref:
    """An operation of `x` and an integer."""
    return b.op(opcode, x, b.like(x, value))


def with_float(b: Builder, opcode: str, x: Ref, value: float) -> Ref:
    """An operation of `x` and a number."""
    return b.op(opcode, x, b.like(x, value))


def at_most(b: Builder, x: Ref, bound: float) -> Ref:
    """min(x, bound); NaN stays NaN. One instruction on x86, which has exactly this semantics."""
    k = b.like(x, bound)
    return b.select(b.compare("fcmp ogt", x, k), k, x)


def at_least(b: Builder, x: Ref, bound: float) -> Ref:
    """max(x, bound); NaN stays NaN."""
    k = b.like(x, bound)
    return b.select(b.compare("fcmp olt", x, k), k, x)


def absolute(b: Builder, x: Ref) -> Ref:
    """|x|; NaN's sign is cleared as well."""
    return b.intrinsic("fabs", x)


def power_of_two(b: Builder, n: Ref) -> Ref:
    """2**n for i32 or i64 lanes n that are exponents of normal numbers: of float32, or of float64."""
    f = FLOAT if n.elem == "i32" else DOUBLE
    return from_bits(b, with_int(b, "shl", with_int(b, "add", n, f.bias), f.mantissa))


def integer(b: Builder, n: Ref) -> Ref:
    """An integral float as an integer of its size; |n| < 2**31."""
    narrow = b.convert("fptosi", n, "i32")
    return narrow if n.elem == "float" else b.convert("sext", narrow, "i64")


def integral(b: Builder, n: Ref) -> Ref:
    """An integer, |n| < 2**31, as a float of its size."""
    narrow = b.convert("trunc", n, "i32")
    return b.convert("sitofp", narrow, "float" if n.elem == "i32" else "double")


def scale(b: Builder, y: Ref, n: Ref) -> Ref:
    """y * 2**n for an integral float n; where the result is denormal, rounded once with AVX-512."""
    kind = type_text(y.elem, y.lanes)
    if b.target.scalef and kind in ("<16 x float>", "<8 x double>"):
        name = f"@llvm.x86.avx512.mask.scalef.{'ps' if y.elem == 'float' else 'pd'}.512"
        b.declare(name, f"{kind} {name}({kind}, {kind}, {kind}, i{y.lanes}, i32)")
        text = f"call {kind} {name}({y}, {b.widen(n)}, {kind} zeroinitializer, i{y.lanes} -1, i32 4)"
        return b.pure(text, y.elem, y.lanes, max(y.depth, n.depth))
    whole = b.convert("fptosi", n, "i32")
    half = with_int(b, "ashr", whole, 1)
    rest = b.op("sub", whole, half)
    if y.elem == "double":
        half, rest = b.convert("sext", half, "i64"), b.convert("sext", rest, "i64")
    return b.op("fmul", b.op("fmul", y, power_of_two(b, half)), power_of_two(b, rest))


# ---- exponentials


def reduce_exp(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(n, r) with x = n*ln(2) + r, |r| <= ln(2)/2."""
    f = format_of(x)
    n = b.intrinsic("rint", with_float(b, "fmul", x, 1 / math.log(2)))
    r = b.fma(n, b.like(n, -f.ln2_high), x)
    return n, b.fma(n, b.like(n, -f.ln2_low), r)


def _exp_reduced(b: Builder, n: Ref, r: Ref) -> Ref:
    p = b.fma(b.op("fmul", r, r), b.polynomial(r, format_of(r).exp), r)
    return scale(b, with_float(b, "fadd", p, 1.0), n)


def _within(b: Builder, x: Ref, least: float, most: float) -> Ref:
    return at_least(b, at_most(b, x, most), least)


def exp(b: Builder, x: Ref) -> Ref:
    """e**x: 2**n times a polynomial of the remainder; inf and 0 beyond the range."""
    return _exp_reduced(b, *reduce_exp(b, _within(b, x, *format_of(x).exp_range)))


def exp2(b: Builder, x: Ref) -> Ref:
    """2**x, like `exp`."""
    x = _within(b, x, *format_of(x).exp2_range)
    n = b.intrinsic("rint", x)
    return _exp_reduced(b, n, with_float(b, "fmul", b.op("fsub", x, n), math.log(2)))


def expm1(b: Builder, x: Ref) -> Ref:
    """2**n * expm1(r) + (2**n - 1), at half scale so that the largest power of two does not overflow early."""
    f = format_of(x)
    n, r = reduce_exp(b, _within(b, x, f.expm1_least, f.exp_range[1]))
    p = b.fma(b.op("fmul", r, r), b.polynomial(r, f.expm1), r)
    half = power_of_two(b, with_int(b, "sub", integer(b, n), 1))
    y = b.fma(p, half, with_float(b, "fsub", half, 0.5))
    return b.intrinsic("copysign", b.op("fadd", y, y), x)  # -0 at -0


def sigmoid(b: Builder, x: Ref) -> Ref:
    """e/(1 + e) or 1/(1 + e) for e = exp(-|x|)."""
    one = b.like(x, 1.0)
    e = exp(b, b.fneg(absolute(b, x)))
    return b.op("fdiv", b.select(b.compare("fcmp olt", x, b.like(x, 0.0)), e, one), b.op("fadd", e, one))


def sigmoid_double(b: Builder, x: Ref) -> Ref:
    """1 / (1 + e**-x) of float64."""
    one = b.like(x, 1.0)
    return b.op("fdiv", one, b.op("fadd", exp(b, b.fneg(x)), one))


def _near_zero(b: Builder, x: Ref, coefficients: tuple[float, ...]) -> Ref:
    """x + x**3 * polynomial(x**2)."""
    square = b.op("fmul", x, x)
    return b.fma(b.op("fmul", x, square), b.polynomial(square, coefficients), x)


def tanh(b: Builder, x: Ref) -> Ref:
    """A polynomial near 0, otherwise 1 - 2/(exp(2|x|) + 1) with x's sign."""
    a = absolute(b, x)
    small = _near_zero(b, x, format_of(x).tanh)
    e = exp(b, b.op("fadd", a, a))
    large = b.op("fsub", b.like(x, 1.0), b.op("fdiv", b.like(x, 2.0), with_float(b, "fadd", e, 1.0)))
    y = b.select(b.compare("fcmp olt", a, b.like(a, 0.625)), small, large)
    return b.intrinsic("copysign", y, x)  # that of -0, too


def _half_exp(b: Builder, a: Ref) -> tuple[Ref, Ref]:
    """(e**a / 2, e**-a / 2) for a >= 0; the former does not overflow early."""
    n, r = reduce_exp(b, at_most(b, a, format_of(a).exp_range[1] + 1))
    half = _exp_reduced(b, with_float(b, "fsub", n, 1.0), r)
    return half, b.op("fdiv", b.like(a, 0.25), half)


def sinh(b: Builder, x: Ref) -> Ref:
    """A polynomial up to 1, beyond (e**|x| - e**-|x|) / 2 with the sign of x."""
    a = absolute(b, x)
    up, down = _half_exp(b, a)
    large = b.intrinsic("copysign", b.op("fsub", up, down), x)
    return b.select(b.compare("fcmp olt", a, b.like(a, 1.0)), _near_zero(b, x, format_of(x).sinh), large)


def cosh(b: Builder, x: Ref) -> Ref:
    """(e**|x| + e**-|x|) / 2."""
    return b.op("fadd", *_half_exp(b, absolute(b, x)))


# ---- logarithms


def split_mantissa(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(e, m), both of x's float type except integer e: x = m * 2**e, m in [sqrt(1/2), sqrt(2)). For normal x > 0."""
    f, pattern = format_of(x), bits(b, x)
    e = with_int(b, "ashr", with_int(b, "sub", pattern, f.sqrt_half), f.mantissa)
    return e, from_bits(b, b.op("sub", pattern, with_int(b, "shl", e, f.mantissa)))


def log_correction(b: Builder, f: Ref) -> Ref:
    """log1p(f) - f. Of float64 by fdlibm's series in f/(2 + f)."""
    square = b.op("fmul", f, f)
    if f.elem == "float":
        cube = b.op("fmul", square, f)
        return b.fma(cube, b.polynomial(f, LOG), with_float(b, "fmul", square, -0.5))
    half = with_float(b, "fmul", square, 0.5)
    s = b.op("fdiv", f, with_float(b, "fadd", f, 2.0))
    z = b.op("fmul", s, s)
    return b.fma(s, b.fma(z, b.polynomial(z, LOG_DOUBLE), half), b.fneg(half))


def _log_terms(b: Builder, x: Ref) -> tuple[Ref, Ref, Ref]:
    """(e, f, t): log(x) = e*ln(2) + f + t, t small against f. For finite x > 0, denormal too."""
    kind = format_of(x)
    small = b.compare("fcmp olt", x, b.like(x, 2.0 ** (1 - kind.bias)))
    x = b.select(small, with_float(b, "fmul", x, 2.0**kind.mantissa), x)
    e, m = split_mantissa(b, x)
    whole = integral(b, e)
    whole = b.op("fsub", whole, b.select(small, b.like(x, float(kind.mantissa)), b.like(x, 0.0)))
    f = with_float(b, "fsub", m, 1.0)
    return whole, f, log_correction(b, f)


def log_edges(b: Builder, x: Ref, y: Ref) -> Ref:
    """The result y = log(x), corrected for inf, NaN, 0 and negative x."""
    y = b.select(b.compare("fcmp olt", x, b.like(x, INF)), y, x)
    y = b.select(b.compare("fcmp oeq", x, b.like(x, 0.0)), b.like(x, -INF), y)
    return b.select(b.compare("fcmp olt", x, b.like(x, 0.0)), b.like(x, math.nan), y)


def log_sum(b: Builder, e: Ref, f: Ref, t: Ref) -> Ref:
    """e*ln(2) + f + t."""
    kind = format_of(f)
    y = b.fma(e, b.like(e, kind.ln2_low), t)
    return b.fma(e, b.like(e, kind.ln2_high), b.op("fadd", f, y))


def log(b: Builder, x: Ref) -> Ref:
    """Natural logarithm; NaN below 0, -inf at 0."""
    return log_edges(b, x, log_sum(b, *_log_terms(b, x)))


@dataclass(frozen=True)
class Base:
    """A base of logarithms: 1/log(base), and log(2)/log(base), each as a number of few bits and the rest."""

    per_log: tuple[float, float]
    per_exponent: tuple[float, float]


TWO = Base((1.4375, 0.005195040888963407), (1.0, 0.0))
TEN = Base((0.43359375, 0.000700731903251828), (0.30078125, 0.0002487456639811952))


def _log_base(b: Builder, x: Ref, base: Base) -> Ref:
    """log(x)/log(base), with e*log_base(2) added exactly rounded last."""
    e, f, t = _log_terms(b, x)
    (high, low), (per_e, rest) = base.per_log, base.per_exponent
    remainder = b.op("fmul", b.op("fadd", f, t), b.like(f, low))
    if rest:
        remainder = b.fma(e, b.like(e, rest), remainder)
    remainder = b.fma(t, b.like(t, high), remainder)
    remainder = b.fma(f, b.like(f, high), remainder)
    return log_edges(b, x, b.fma(e, b.like(e, per_e), remainder))


def log2(b: Builder, x: Ref) -> Ref:
    """Logarithm to base 2."""
    return _log_base(b, x, TWO)


def log10(b: Builder, x: Ref) -> Ref:
    """Logarithm to base 10."""
    return _log_base(b, x, TEN)


def log1p(b: Builder, x: Ref, low: Ref | None = None) -> Ref:
    """log(u) for u = 1 + x (+ low, small against x), with the rounding error of that sum added to the reduced argument."""
    u = with_float(b, "fadd", x, 1.0)
    lost = b.select(
        b.compare("fcmp ogt", x, b.like(x, 1.0)),
        b.op("fsub", b.like(x, 1.0), b.op("fsub", u, x)),
        b.op("fsub", x, with_float(b, "fsub", u, 1.0)),
    )
    y = log_of_sum(b, u, lost if low is None else b.op("fadd", lost, low))
    return b.intrinsic("copysign", log_edges(b, u, y), x)  # -0 at -0


def log_of_sum(b: Builder, u: Ref, low: Ref) -> Ref:
    """log(u + low) for finite normal u > 0, and `low` below half a unit in its last place."""
    e, m = split_mantissa(b, u)
    most = format_of(u).bias
    inverse = power_of_two(b, b.op("sub", b.like(e, 0), b.intrinsic("smin", e, b.like(e, most))))
    f = b.fma(low, inverse, with_float(b, "fsub", m, 1.0))
    return log_sum(b, integral(b, e), f, log_correction(b, f))


# ---- erf and powers


def erf(b: Builder, x: Ref) -> Ref:
    """erf of float32: a polynomial up to 0.9, 1 - e**-polynomial beyond, with the sign of x."""
    a = absolute(b, x)
    small = b.fma(x, b.polynomial(b.op("fmul", x, x), ERF_SMALL), x)
    g = b.fneg(b.polynomial(at_most(b, a, 4.0), ERF_LARGE))
    large = b.op("fsub", b.like(x, 1.0), _exp_reduced(b, *reduce_exp(b, g)))
    large = b.intrinsic("copysign", large, x)
    return b.select(b.compare("fcmp olt", a, b.like(a, 0.9)), small, large)


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
    e, m = split_mantissa(b, x)
    s = b.op("fdiv", with_float(b, "fsub", m, 1.0), with_float(b, "fadd", m, 1.0))
    return b.fma(s, b.polynomial(b.op("fmul", s, s), LOG2_DOUBLE), integral(b, e))


def power(b: Builder, args: list[Ref]) -> Ref:
    """2**(y*log2|x|) in double precision, then the sign and the special cases of C's pow."""
    x, y = args
    a = absolute(b, x)
    log2_a = _log2_double(b, b.convert("fpext", a, "double"))
    t = b.op("fmul", log2_a, b.convert("fpext", y, "double"))
    t = at_least(b, at_most(b, t, 160.0), -160.0)
    n = b.intrinsic("rint", t)
    p = b.polynomial(b.op("fsub", t, n), EXP2_DOUBLE)
    result = b.convert("fptrunc", b.op("fmul", p, power_of_two(b, integer(b, n))), "float")
    zero, one, inf = b.like(x, 0.0), b.like(x, 1.0), b.like(x, INF)
    y_negative = b.compare("fcmp olt", y, zero)
    at_zero = b.select(y_negative, inf, zero)
    at_inf = b.select(y_negative, zero, inf)
    result = b.select(b.compare("fcmp oeq", a, zero), at_zero, result)
    result = b.select(b.compare("fcmp oeq", a, inf), at_inf, result)
    y_inf = b.compare("fcmp oeq", absolute(b, y), inf)
    grows = b.op("xor", b.compare("fcmp ogt", a, one), y_negative)
    result = b.select(y_inf, b.select(grows, inf, zero), result)
    whole = b.compare("fcmp oeq", b.intrinsic("trunc", y), y)
    half = with_float(b, "fmul", y, 0.5)
    odd = b.op("and", whole, b.compare("fcmp one", b.intrinsic("trunc", half), half))
    negative = b.compare("icmp slt", bits(b, x), b.const("i32", 0))
    result = b.select(b.op("and", negative, odd), b.fneg(result), result)
    finite_negative = b.op("and", b.compare("fcmp olt", x, zero), b.compare("fcmp ogt", x, b.like(x, -INF)))
    whole = b.op("or", whole, y_inf)
    invalid = b.op("and", finite_negative, b.op("xor", whole, b.const("i1", True)))
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
