"""sin, cos and tan as vector code, and their reduction of angles to multiples of pi/2.

Arguments beyond a limit go to the C library by a rarely executed branch. Errors measured by the tests, in units of the last
place: sin and cos 1.6, tan 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.codegen.llvm.ir_builder import Builder, Ref
from smelt.codegen.llvm.vector_math import absolute, bits, from_bits, helper_at, libm, with_float, with_int

# pi/2 in three parts
PI_HALF = {
    "float": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "double": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2/2) / r**4 in r**2, on |r| <= pi/4: of float32 fits as in `vector_math`, of
# float64 S1 to S6 and C1 to C6 of fdlibm's k_sin.c and k_cos.c (Sun Microsystems, 1993)
SIN = {
    "float": (-0.1666666716337204, 0.008333329111337662, -0.0001983933470910415, 2.71831163445313e-06),
    "double": (-0.166666666666666324348, 0.00833333333332248946124, -0.000198412698298579493134,
               2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10),
}  # fmt: skip
COS = {
    "float": (0.04166664555668831, -0.001388736767694354, 2.443845005473122e-05),
    "double": (0.0416666666666666019037, -0.00138888888888741095749, 2.48015872894767294178e-05,
               -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11),
}  # fmt: skip
ROUND = {
    "float": 1.5 * 2.0**23,
    "double": 1.5 * 2.0**52,
}  # added to a number, it leaves an integer in the lowest bits
NEAR = {"float": 2.0**17, "double": 2.0**30}  # `reduce_near` is exact up to here
FAR = 2.0**40  # `reduce_far` is exact enough up to here
Reduced = tuple[
    Ref, Ref, Ref | None
]  # (quadrant, r, low): x = n*pi/2 + r + low, |r| <= pi/4, n as an integer
Reduce = Callable[[Builder, Ref], Reduced]


def _multiple(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """(its lowest bits, n): the integer n next to x/(pi/2)."""
    total = b.fma(x, b.like(x, 2 / math.pi), b.like(x, ROUND[x.elem]))
    return bits(b, total), with_float(b, "fsub", total, ROUND[x.elem])


def reduce_near(b: Builder, x: Ref) -> Reduced:
    """The first subtraction is exact: a multiple of a unit in the last place of pi/2, below 1. What the second one and its
    product round off is `low`, which counts where r is near 0."""
    high, middle, last = PI_HALF[x.elem]
    quadrant, n = _multiple(b, x)
    first = b.fma(n, b.like(n, -high), x)
    second = b.op("fmul", n, b.like(n, -middle))
    r = b.op("fadd", first, second)
    added = b.op("fsub", r, first)
    lost = b.op("fadd", b.op("fsub", first, b.op("fsub", r, added)), b.op("fsub", second, added))
    rounded = b.fma(n, b.like(n, middle), second)
    return quadrant, r, b.op("fsub", b.fma(n, b.like(n, -last), lost), rounded)


def reduce_far(b: Builder, x: Ref) -> Reduced:
    """Of float32, by subtractions in double."""
    high, middle, _ = PI_HALF["double"]
    wide = b.convert("fpext", x, "double")
    quadrant, n = _multiple(b, wide)
    r = b.fma(n, b.like(n, -middle), b.fma(n, b.like(n, -high), wide))
    return b.convert("trunc", quadrant, "i32"), b.convert("fptrunc", r, "float"), None


def _sine_and_cosine(b: Builder, r: Ref, low: Ref | None) -> tuple[Ref, Ref]:
    one, square = b.like(r, 1.0), b.op("fmul", r, r)
    half = with_float(b, "fmul", square, 0.5)
    first = b.op("fsub", one, half)
    lost = b.op("fsub", b.op("fsub", one, first), half)
    cube, fourth = b.op("fmul", r, square), b.op("fmul", square, square)
    if low is None:
        s = b.fma(cube, b.polynomial(square, SIN[r.elem]), r)
    else:
        s = b.op("fadd", r, b.fma(cube, b.polynomial(square, SIN[r.elem]), b.op("fmul", low, first)))
        lost = b.fma(b.fneg(r), low, lost)
    return s, b.op("fadd", first, b.fma(fourth, b.polynomial(square, COS[r.elem]), lost))


def _is_odd(b: Builder, quadrant: Ref) -> Ref:
    return b.compare("icmp ne", with_int(b, "and", quadrant, 1), b.like(quadrant, 0))


def _zero_stays(b: Builder, x: Ref, y: Ref) -> Ref:
    return b.select(b.compare("fcmp oeq", x, b.like(x, 0.0)), x, y)  # -0 at -0


def sine(b: Builder, x: Ref, shift: int, reduce: Reduce = reduce_far) -> Ref:
    """sin(x + shift*pi/2)."""
    quadrant, r, low = reduce(b, x)
    s, c = _sine_and_cosine(b, r, low)
    quadrant = with_int(b, "add", quadrant, shift)
    sign = with_int(b, "shl", with_int(b, "and", quadrant, 2), 30 if x.elem == "float" else 62)
    y = from_bits(b, b.op("xor", bits(b, b.select(_is_odd(b, quadrant), c, s)), sign))
    return y if shift else _zero_stays(b, x, y)


def tangent(b: Builder, x: Ref, reduce: Reduce) -> Ref:
    """sin/cos, or -cos/sin in odd quadrants."""
    quadrant, r, low = reduce(b, x)
    s, c = _sine_and_cosine(b, r, low)
    odd = _is_odd(b, quadrant)
    return _zero_stays(b, x, b.op("fdiv", b.select(odd, b.fneg(c), s), b.select(odd, s, c)))


Code = Callable[[Builder, Ref], Ref]


def _up_to(limit: float, name: str, usual: Code, beyond: Code) -> Code:
    """A helper with a rarely executed branch to `beyond` where an argument exceeds `limit`."""

    def write(b: Builder, args: list[Ref]) -> Ref:
        (x,) = args
        huge = b.any_lane(b.compare("fcmp ogt", absolute(b, x), b.like(x, limit)))
        b.line(f"br i1 {huge.text}, label %huge, label %usual")
        b.line("\nhuge:")
        b.scopes[-1].memo = {}
        b.line(f"ret {beyond(b, x)}\nusual:")
        b.scopes[-1].memo = {}
        return usual(b, x)

    return lambda b, x: helper_at(b, name, write, x)


def _function(name: str, by: Callable[[Builder, Ref, Reduce], Ref]) -> Code:
    def code(b: Builder, x: Ref) -> Ref:
        beyond: Code = libm(name)
        if x.elem == "float":
            beyond = _up_to(FAR, f"{name}.far", lambda b, x: by(b, x, reduce_far), beyond)
        return _up_to(NEAR[x.elem], name, lambda b, x: by(b, x, reduce_near), beyond)(b, x)

    return code


sin = _function("sin", lambda b, x, reduce: sine(b, x, 0, reduce))
cos = _function("cos", lambda b, x, reduce: sine(b, x, 1, reduce))
tan = _function("tan", tangent)
