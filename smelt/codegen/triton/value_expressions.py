"""Loop values as Triton expressions.

Every expression is a scalar or a block that broadcasts to the block of its stage. Narrow floats are computed in
float32 and rounded after each operation, as everywhere in smelt. A `Dialect` provides the mathematical functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

from smelt.codegen.triton import ptx_functions
from smelt.loops import philox
from smelt.shapes.expr import Expr, Quotient, Size, Sym, bounds

# ptx: assembly for NVIDIA's processors (libdevice for what has none); libdevice: for all others; torch: for Triton's
# interpreter, which runs neither.
Dialect = Literal["ptx", "libdevice", "torch"]

NAMES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16", torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8",
    torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32", torch.uint64: "tl.uint64",
}  # fmt: skip
# As in signatures of kernels.
TYPES: dict[torch.dtype, str] = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16", torch.bool: "i1",
    torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint16: "u16",
    torch.uint32: "u32", torch.uint64: "u64",
}  # fmt: skip
NARROW = (torch.float16, torch.bfloat16)

_ARG = """\
@triton.jit
def {name}(a, i, b, j):
    wins = (b {order} a) | ((b != b) & (a == a))
    ties = (b == a) | ((b != b) & (a != a))
    take = wins | (ties & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
"""
_PAIR = "@triton.jit\ndef {name}(a, b):\n    return {result}\n"
_HALF = f"{{x}} >> {{n}} & {philox.WORD}"
# Functions of the printed module; it has those that it names.
HELPERS: dict[str, str] = {
    "_argmax": _ARG.format(name="_argmax", order=">"),
    "_argmin": _ARG.format(name="_argmin", order="<"),
    "_add_both": "@triton.jit\ndef _add_both(a, b, c, d):\n    return a + c, b + d\n",
    "_add": _PAIR.format(name="_add", result="a + b"),
    "_multiply": _PAIR.format(name="_multiply", result="a * b"),
    "_or": _PAIR.format(name="_or", result="a | b"),
    "_and": _PAIR.format(name="_and", result="a & b"),
    "_maximum": _PAIR.format(name="_maximum", result="tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)"),
    "_minimum": _PAIR.format(name="_minimum", result="tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)"),
    "_floordiv": """\
@triton.jit
def _floordiv(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "_remainder": """\
@triton.jit
def _remainder(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "_signed_remainder": """\
@triton.jit
def _signed_remainder(r, b):
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    # Not Triton's own function: its interpreter, which runs no assembly, leaves the language changed afterwards.
    "_philox": f"""\
@triton.jit
def _philox(seed, counter, subsequence):
    c0, c1, c2, c3 = {", ".join(_HALF.format(x=x, n=n) for x in ("counter", "subsequence") for n in (0, 32))}
    k0, k1 = {", ".join(_HALF.format(x="seed", n=n) for n in (0, 32))}
    for _ in tl.static_range({philox.ROUNDS}):
        first, second = c0 * {philox.MULTIPLIERS[0]}, c2 * {philox.MULTIPLIERS[1]}
        c0, c2 = (second >> 32 & {philox.WORD}) ^ c1 ^ k0, (first >> 32 & {philox.WORD}) ^ c3 ^ k1
        c1, c3 = second & {philox.WORD}, first & {philox.WORD}
        k0, k1 = k0 + {philox.WEYL[0]} & {philox.WORD}, k1 + {philox.WEYL[1]} & {philox.WORD}
    return c0.to(tl.uint32), c1.to(tl.uint32), c2.to(tl.uint32), c3.to(tl.uint32)
""",
    "_number": "def _number(x):\n    return int(x.handle.data.item())\n",
    "_torch": """\
def _torch(name, *operands):
    data = numpy.broadcast_arrays(*[x.handle.data for x in operands])
    result = numpy.asarray(getattr(torch, name)(*[torch.from_numpy(d.copy()) for d in data]).numpy())
    like = max(operands, key=lambda x: x.handle.data.size)
    return tl.tensor(TensorHandle(result, like.handle.dtype), like.type)
""",
}
# Of a kernel's first parameter, as Triton calls it: one number, and a search by halves.
SLOT = "{ .reg .b64 %a; mov.b64 %a, kernel_param_0; mad.wide.s32 %a, $1, 8, %a; ld.param.b64 $0, [%a]; }"
SEARCH_STEP = (
    "add.s32 %n, %p, {0}; mad.wide.s32 %a, %n, 8, %t; ld.param.s32 %s, [%a]; setp.le.s32 %q, %s, $1; "
    "selp.s32 %p, %n, %p, %q; "
)
SEARCH = (
    "{{ .reg .b64 %t, %a; .reg .s32 %p, %n, %s; .reg .pred %q; mov.b64 %t, kernel_param_0; mov.s32 %p, 0; {steps}"
    "mov.s32 $0, %p; }}"
)
IMPORTS: dict[Dialect, str] = dict(
    ptx="import triton\nimport triton.language as tl\n",
    libdevice="import triton\nimport triton.language as tl\n",
    torch="import numpy\nimport torch\nimport triton\nimport triton.language as tl\n"
    "from triton.runtime.interpreter import TensorHandle\n",
)


def _call(name: str) -> Callable[..., str]:
    return lambda dtype, *xs: f"{name}({', '.join(xs)})"


def _infix(symbol: str) -> Callable[..., str]:
    return lambda dtype, a, b: f"({a} {symbol} {b})"


def _comparison(symbol: str, reversed_symbol: str) -> Callable[..., str]:
    """A comparison with numbers on the right: Python dispatches to the other operand (`traced_frontend.py`)."""

    def text(dtype: torch.dtype, a: str, b: str) -> str:
        return f"({b} {reversed_symbol} {a})" if _is_number(a) else f"({a} {symbol} {b})"

    return text


def _truth(dtype: torch.dtype, x: str) -> str:
    return x if dtype is torch.bool else f"({x} != 0)"


def _logical(symbol: str) -> Callable[..., str]:
    return lambda dtype, a, b: f"({_truth(dtype, a)} {symbol} {_truth(dtype, b)})"


def _divide(dtype: torch.dtype, a: str, b: str) -> str:
    """A correctly rounded quotient, which Triton's plain one is not. The inverse of a power of two is exact and fast."""
    if b[0] in "-0123456789":
        fraction, exponent = math.frexp(float(b))
        if abs(fraction) == 0.5 and abs(exponent) < 100:
            return f"({a} * {1 / float(b)!r})"
    return f"tl.div_rn({a}, {b})" if dtype is torch.float32 else f"({a} / {b})"


def _same(dtype: torch.dtype, x: str) -> str:
    return x


def _extreme(name: str, nan: str, of_bools: str) -> Callable[..., str]:
    def text(dtype: torch.dtype, a: str, b: str) -> str:
        if dtype is torch.bool:
            return f"({a} {of_bools} {b})"
        return f"tl.{name}({a}, {b}, propagate_nan=tl.PropagateNan.{nan})"

    return text


# Functions that the interpreter takes from torch; `fmod` of floats (Triton's `%` of them is not exact) and others.
FUNCTIONS = frozenset(
    ("sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
     "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "floor", "ceil", "trunc",
     "round", "fmod", "pow", "atan2", "copysign", "device_log", "fast_log", "fast_sin", "fast_cos")
)  # fmt: skip
IN_TORCH = dict(
    device_log="log", fast_log="log", fast_sin="sin", fast_cos="cos", fast_exp="exp", fast_sigmoid="sigmoid"
)
ONE_PLUS = dict(one_plus_erf="erf", one_plus_tanh="tanh")
# In libdevice under another name, or composed of others.
LIBDEVICE: dict[str, Callable[..., str]] = dict(
    rsqrt=lambda d, x: _divide(d, "1.0", _sqrt(d, x)),
    sqrt=lambda d, x: _sqrt(d, x),
    reciprocal=lambda d, x: _divide(d, "1.0", x),
    sigmoid=lambda d, x: f"(1.0 / (1.0 + libdevice.exp(-{x})))",
    round=_call("libdevice.nearbyint"),
    device_log=_call("libdevice.log"),
    fast_log=_call("libdevice.log"),  # the approximations of NVIDIA's processors are assembly
    fast_sin=_call("libdevice.sin"),
    fast_cos=_call("libdevice.cos"),
    fast_exp=_call("libdevice.fast_expf"),
    fast_sigmoid=lambda d, x: f"(1.0 / (1.0 + libdevice.exp(-{x})))",
)


def _sqrt(dtype: torch.dtype, x: str) -> str:
    return f"tl.sqrt_rn({x})" if dtype is torch.float32 else f"tl.sqrt({x})"


_INFIX = dict(
    add="+", sub="-", mul="*", truncdiv="//", fmod="%", bitwise_and="&", bitwise_or="|", bitwise_xor="^",
    shift_left="<<", shift_right=">>",
)  # fmt: skip
# with the comparison of swapped operands
_COMPARISONS = dict(
    eq=("==", "=="), ne=("!=", "!="), lt=("<", ">"), le=("<=", ">="), gt=(">", "<"), ge=(">=", "<=")
)
# Plain Triton; operands of `dtype`.
OPS: dict[str, Callable[..., str]] = dict(
    {name: _infix(symbol) for name, symbol in _INFIX.items()},
    **{name: _comparison(*symbols) for name, symbols in _COMPARISONS.items()},
    neg=lambda d, x: f"(-{x})",
    abs=_call("tl.abs"),
    sign=lambda d, x: f"(({x} > 0).to({NAMES[d]}) - ({x} < 0).to({NAMES[d]}))",
    isnan=lambda d, x: f"({x} != {x})",
    isinf=lambda d, x: f"(tl.abs({x}) == float('inf'))",
    logical_not=lambda d, x: f"({x} == 0)",
    bitwise_not=lambda d, x: f"({x} ^ True)" if d is torch.bool else f"(~{x})",
    div=_divide,
    floordiv=_call("_floordiv"),
    remainder=_call("_remainder"),
    maximum=_extreme("maximum", "ALL", "|"),
    minimum=_extreme("minimum", "ALL", "&"),
    fmax=_extreme("maximum", "NONE", "|"),
    fmin=_extreme("minimum", "NONE", "&"),
    logical_and=_logical("&"),
    logical_or=_logical("|"),
    logical_xor=_logical("^"),
    where=_call("tl.where"),
    fma=_call("tl.fma"),
)
OPS.update(dict.fromkeys(("floor", "ceil", "trunc", "round"), _same))  # of integers

UNROUNDED = frozenset(
    ("neg", "abs", "where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or",
     "logical_xor")
)  # fmt: skip
# Operations in which a Python number takes the dtype of the other operand.
LITERALS = frozenset(
    ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "bitwise_and", "bitwise_or")
)  # fmt: skip
_FIRST_OF_FLOAT32 = frozenset(("div", "where", "maximum", "minimum"))  # there it is a float32


_LLVM_TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "i64"}


class Values:
    """Prints values in one dialect and records the assembly snippets that they use."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.blocks: dict[str, str] = {}  # name in the module -> assembly

    def operation(self, name: str, dtype: torch.dtype, operands: list[str]) -> str:
        """`dtype` is the operands' (of the last one for `where`)."""
        if dtype in NARROW and name not in UNROUNDED:
            wide = [x if _is_number(x) else f"{x}.to(tl.float32)" for x in operands]
            return f"{self.operation(name, torch.float32, wide)}.to({NAMES[dtype]})"
        if dtype.is_floating_point:
            if name in FUNCTIONS or (self.dialect == "torch" and name in ("fmax", "fmin")):  # it lets NaN win
                return self.function(name, dtype, operands)
            if name in ("floordiv", "truncdiv"):
                rounding = "floor" if name == "floordiv" else "trunc"
                return self.function(rounding, dtype, [_divide(dtype, *operands)])
            if name == "remainder":
                return f"_signed_remainder({self.function('fmod', dtype, operands)}, {operands[1]})"
        return OPS[name](dtype, *operands)

    def function(self, name: str, dtype: torch.dtype, operands: list[str]) -> str:
        """A mathematical function of float32 or float64, or a cheap one (`approximate_math.py`), which becomes the
        exact one if there is no assembly for it."""
        if self.dialect != "ptx" and name in ONE_PLUS:
            return f"({self.function(ONE_PLUS[name], dtype, operands)} + 1.0)"
        if self.dialect == "torch":
            name = IN_TORCH.get(name, name)
            return f"_torch('{name}', {', '.join(operands)})"
        found = None
        if self.dialect == "ptx":
            found = ptx_functions.block(name, _LLVM_TYPES[dtype])
        if found is None:
            return LIBDEVICE.get(name, _call(f"libdevice.{name}"))(dtype, *operands)
        text, constraints = found
        symbol = f"{name}_{TYPES[dtype]}"
        self.blocks[symbol] = text
        return f"tl.inline_asm_elementwise({symbol}, '{constraints}', [{', '.join(operands)}], {NAMES[dtype]}, True, 1)"

    def philox(self, operands: list[str]) -> str:
        """The four words of a step, a tuple of uint32, of a seed, a counter and a subsequence."""
        if self.dialect != "ptx":
            return f"_philox({', '.join(operands)})"
        self.blocks["philox"], constraints = ptx_functions.block("philox", "i64") or ("", "")
        types = "(tl.uint32, tl.uint32, tl.uint32, tl.uint32)"
        return (
            f"tl.inline_asm_elementwise(philox, '{constraints}', [{', '.join(operands)}], {types}, True, 1)"
        )

    def number(self, text: str) -> str:
        """An integer bound of a loop: Triton's interpreter accepts only Python's."""
        return f"_number({text})" if self.dialect == "torch" else text

    def slot(self, table: str, position: str) -> str:
        """A 64-bit number of a table: on NVIDIA processors the table is the kernel's first parameter, which is in
        constant memory and can be indexed; elsewhere a pointer to it."""
        if self.dialect != "ptx":
            return f"tl.load({table} + {position})"
        self.blocks["slot"] = SLOT
        return f"tl.inline_asm_elementwise(slot, '=l,r', [{position}], tl.int64, True, 1)"

    def search(self, table: str, slots: int, position: str, number: str) -> list[str]:
        """Statements that compute the last index with at most `number` in the first `slots` of a table, a power of
        two, in ascending order; the first if there is none. (One block of assembly: a kernel whose search Triton sees
        takes half as long again to compile.)"""
        steps = [slots >> n for n in range(1, slots.bit_length())]
        if self.dialect == "ptx":
            self.blocks["search"] = SEARCH.format(steps="".join(map(SEARCH_STEP.format, steps)))
            return [f"{position} = tl.inline_asm_elementwise(search, '=r,r', [{number}], tl.int32, True, 1)"]
        found = [f"({self.slot(table, f'{position} + {n}')} <= {number}).to(tl.int32) * {n}" for n in steps]
        return [f"{position} = tl.full([], 0, tl.int32)", *(f"{position} += {step}" for step in found)]

    def prelude(self, body: str) -> str:
        """The text that a module with this body needs above it."""
        assembly = [f'{name} = tl.constexpr("{text}")\n' for name, text in self.blocks.items()]
        helpers = [
            f"\n\n{text}" for name, text in HELPERS.items() if f"{name}(" in body or f" {name})" in body
        ]
        extra = "from triton.language.extra import libdevice\n" if "libdevice." in body else ""
        return "".join([IMPORTS[self.dialect], extra, *assembly, *helpers])


def takes_literal(name: str, dtype: torch.dtype) -> bool:
    """Whether an operand of the operation may be a Python number (not all may)."""
    return name in LITERALS or (name in _FIRST_OF_FLOAT32 and dtype is torch.float32)


def _is_number(text: str) -> bool:
    return text[0] in "-0123456789" or text.startswith("float(") or text in ("True", "False")


def literal(number: float | int | bool, dtype: torch.dtype) -> str:
    """A Python number."""
    if dtype is torch.bool:
        return str(bool(number))
    if not dtype.is_floating_point:
        return str(int(number))
    rounded = torch.tensor(float(number), dtype=torch.float64).to(dtype).item()
    return repr(rounded) if math.isfinite(rounded) else f"float('{rounded}')"


def constant(number: float | int | bool, dtype: torch.dtype) -> str:
    """A scalar of `dtype`."""
    return f"tl.full([], {literal(number, dtype)}, {NAMES[dtype]})"


def cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    """The expression `x` of dtype `source` converted to `target`, as eager converts."""
    if target is torch.bool:
        return _truth(source, x)
    if target in NARROW and source is not torch.float32 and source not in NARROW:  # as eager: through float32
        x = f"{x}.to(tl.float32)"
    return f"{x}.to({NAMES[target]})"


def from_bits(x: str, dtype: torch.dtype) -> str:
    """The number of `dtype` in the low bytes of the 64-bit integer `x`."""
    if dtype is torch.bool:
        return f"({x}.to(tl.int8) != 0)"
    if not dtype.is_floating_point:
        return f"{x}.to({NAMES[dtype]})"
    return f"{x}.to(tl.int{8 * dtype.itemsize}).to({NAMES[dtype]}, bitcast=True)"


def index(e: Size, names: dict[Sym, str], named: Callable[[Quotient, str], str]) -> str:
    """An index expression over named blocks; `named` formats a quotient with this text."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Sym):
        return names[e]
    if isinstance(e, Quotient):
        left, right = index(e.left, names, named), index(e.right, names, named)
        if bounds(e.left)[0] >= 0:
            return named(e, f"{left} {e.sign} {right}")
        return named(e, f"{'_floordiv' if e.op == 'floordiv' else '_remainder'}({left}, {right})")
    terms = [_term(m, c, names, named) for m, c in e.terms]
    if e.const:
        terms.append(str(e.const))
    return f"({' + '.join(terms)})" if len(terms) > 1 else f"({terms[0]})"


def _term(
    atoms: tuple[Expr, ...], factor: int, names: dict[Sym, str], named: Callable[[Quotient, str], str]
) -> str:
    factors = [index(a, names, named) for a in atoms]
    return " * ".join(factors if factor == 1 else [*factors, str(factor)])
