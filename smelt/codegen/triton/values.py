"""Loop values as Triton expressions.

Every expression is a block that broadcasts to (outer points, stage points). Narrow floats are computed in float32 and
rounded after each operation, as everywhere in smelt.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from smelt.codegen.llvm.vmath import TANH
from smelt.graph.sizes import Expr, Quotient, Size, Sym, bounds

NAMES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16", torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8",
    torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32", torch.uint64: "tl.uint64",
}  # fmt: skip
NARROW = (torch.float16, torch.bfloat16)

# Helper functions of the printed module. expm1 and log1p are Kahan's: the rounding error of exp(x) or 1 + x cancels
# in the quotient. tanh has the polynomial of the CPU code near 0.
_TANH = " + s * (".join(repr(c) for c in TANH) + ")" * (len(TANH) - 1)
PRELUDE = f"""\
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def _argmax(a, i, b, j):
    wins = (b > a) | ((b != b) & (a == a))
    ties = (b == a) | ((b != b) & (a != a))
    take = wins | (ties & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def _argmin(a, i, b, j):
    wins = (b < a) | ((b != b) & (a == a))
    ties = (b == a) | ((b != b) & (a != a))
    take = wins | (ties & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _and(a, b):
    return a & b


@triton.jit
def _tanh(x):
    s = x * x
    small = x + x * s * ({_TANH})
    e = tl.exp(2.0 * tl.abs(x))
    large = 1.0 - 2.0 / (e + 1.0)
    return tl.where(tl.abs(x) < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def _expm1(x):
    u = tl.exp(x)
    y = (u - 1.0) * (x / tl.log(u))
    y = tl.where(u == 1.0, x, y)
    return tl.where((u == 0.0) | (u == float("inf")), u - 1.0, y)


@triton.jit
def _log1p(x):
    u = 1.0 + x
    y = tl.log(u) * (x / (u - 1.0))
    y = tl.where(u == 1.0, x, y)
    return tl.where(u == float("inf"), u, y)


@triton.jit
def _sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def _round(x):
    r = tl.floor(x)
    d = x - r
    odd = r - 2.0 * tl.floor(r * 0.5)
    up = (d > 0.5) | ((d == 0.5) & (odd == 1.0))
    return tl.where(up, r + 1.0, r)


@triton.jit
def _trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def _floordiv(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def _remainder(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
"""


def _call(name: str) -> Callable[..., str]:
    return lambda dtype, *xs: f"{name}({', '.join(xs)})"


def _infix(symbol: str) -> Callable[..., str]:
    return lambda dtype, a, b: f"({a} {symbol} {b})"


def _truth(dtype: torch.dtype, x: str) -> str:
    return x if dtype is torch.bool else f"({x} != 0)"


def _logical(symbol: str) -> Callable[..., str]:
    return lambda dtype, a, b: f"({_truth(dtype, a)} {symbol} {_truth(dtype, b)})"


def _by_kind(floating: Callable[..., str], integer: Callable[..., str]) -> Callable[..., str]:
    return lambda dtype, *xs: (floating if dtype.is_floating_point else integer)(dtype, *xs)


# Correctly rounded division and square root; Triton's plain ones are approximate in float32.


def _divide(dtype: torch.dtype, a: str, b: str) -> str:
    return f"tl.div_rn({a}, {b})" if dtype is torch.float32 else f"({a} / {b})"


def _sqrt(dtype: torch.dtype, x: str) -> str:
    return f"tl.sqrt_rn({x})" if dtype is torch.float32 else f"tl.sqrt({x})"


def _one(dtype: torch.dtype) -> str:
    return constant(1.0, dtype)


def _same(dtype: torch.dtype, x: str) -> str:
    return x


LIBDEVICE = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "log10", "pow", "atan2",
             "copysign")  # fmt: skip

OPS: dict[str, Callable[..., str]] = dict(
    neg=lambda d, x: f"(-{x})",
    abs=_call("tl.abs"),
    sqrt=_sqrt,
    rsqrt=lambda d, x: _divide(d, _one(d), _sqrt(d, x)),
    reciprocal=lambda d, x: _divide(d, _one(d), x),
    exp=_call("tl.exp"),
    exp2=_call("tl.exp2"),
    expm1=_call("_expm1"),
    log=_call("tl.log"),
    log2=_call("tl.log2"),
    log1p=_call("_log1p"),
    sin=_call("tl.sin"),
    cos=_call("tl.cos"),
    tanh=_call("_tanh"),
    erf=_call("tl.erf"),
    sigmoid=lambda d, x: f"(1.0 / (1.0 + tl.exp(-{x})))",
    floor=_by_kind(_call("tl.floor"), _same),
    ceil=_by_kind(_call("tl.ceil"), _same),
    trunc=_by_kind(_call("_trunc"), _same),
    round=_by_kind(_call("_round"), _same),
    sign=_call("_sign"),
    isnan=lambda d, x: f"({x} != {x})",
    isinf=lambda d, x: f"(tl.abs({x}) == float('inf'))",
    logical_not=lambda d, x: f"({x} == 0)",
    bitwise_not=lambda d, x: f"({x} ^ True)" if d is torch.bool else f"(~{x})",
    add=_infix("+"),
    sub=_infix("-"),
    mul=_infix("*"),
    div=_divide,
    floordiv=_by_kind(lambda d, a, b: f"tl.floor({_divide(d, a, b)})", _call("_floordiv")),
    truncdiv=_by_kind(lambda d, a, b: f"_trunc({_divide(d, a, b)})", _infix("//")),
    remainder=_call("_remainder"),
    fmod=_infix("%"),
    maximum=_call("_maximum"),
    minimum=_call("_minimum"),
    fmax=lambda d, a, b: f"tl.where({a} != {a}, {b}, tl.where({b} > {a}, {b}, {a}))",
    fmin=lambda d, a, b: f"tl.where({a} != {a}, {b}, tl.where({b} < {a}, {b}, {a}))",
    eq=_infix("=="),
    ne=_infix("!="),
    lt=_infix("<"),
    le=_infix("<="),
    gt=_infix(">"),
    ge=_infix(">="),
    logical_and=_logical("&"),
    logical_or=_logical("|"),
    logical_xor=_logical("^"),
    bitwise_and=_infix("&"),
    bitwise_or=_infix("|"),
    bitwise_xor=_infix("^"),
    shift_left=_infix("<<"),
    shift_right=_infix(">>"),
    where=_call("tl.where"),
    fma=_call("tl.fma"),
)
OPS.update({name: _call(f"libdevice.{name}") for name in LIBDEVICE})

UNROUNDED = frozenset(
    ("neg", "abs", "where", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
     "logical_not", "logical_and", "logical_or", "logical_xor")
)  # fmt: skip


def operation(name: str, dtype: torch.dtype, operands: list[str]) -> str:
    """`dtype` is the operands' (of the last one for `where`)."""
    if dtype in NARROW and name not in UNROUNDED:
        wide = [f"{x}.to(tl.float32)" for x in operands]
        return f"({OPS[name](torch.float32, *wide)}).to({NAMES[dtype]})"
    return OPS[name](dtype, *operands)


def constant(number: float | int | bool, dtype: torch.dtype) -> str:
    """A block of one element."""
    if isinstance(number, float) and not math.isfinite(number):
        text = f"float('{number}')"
    else:
        text = repr(number)
    return f"tl.full([1, 1], {text}, {NAMES[dtype]})"


def cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    """The expression `x` of dtype `source` converted to `target`, as eager converts."""
    if target is torch.bool:
        return _truth(source, x)
    if target in NARROW and source is not torch.float32 and source not in NARROW:  # as eager: through float32
        x = f"{x}.to(tl.float32)"
    return f"{x}.to({NAMES[target]})"


def index(e: Size, names: dict[Sym, str]) -> str:
    """An index expression over named blocks."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Sym):
        return names[e]
    if isinstance(e, Quotient):
        left, right = index(e.left, names), index(e.right, names)
        if bounds(e.left)[0] >= 0:
            return f"({left} {e.op} {right})"
        return f"{'_floordiv' if e.op == '//' else '_remainder'}({left}, {right})"
    terms = [_term(m, c, names) for m, c in e.terms]
    if e.const:
        terms.append(str(e.const))
    return f"({' + '.join(terms)})"


def _term(atoms: tuple[Expr, ...], factor: int, names: dict[Sym, str]) -> str:
    parts = [index(a, names) for a in atoms]
    return " * ".join(parts if factor == 1 else [*parts, str(factor)])
