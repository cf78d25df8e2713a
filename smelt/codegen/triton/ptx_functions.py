"""Mathematical functions as PTX: the text of one inline assembly block for each.

Triton's own functions come from libdevice, and linking that takes longer than all the rest of a small kernel. A block of
assembly is one instruction to every stage of Triton, so a long polynomial costs it nothing; the driver's compiler sees
through it. Polynomials are those of the CPU (`codegen.llvm.vector_math`), written by the same code through an
`Assembler`; `exp` and what is made of it take the processor's approximation of 2**x (relative error at most 2**-22) of
a reduced argument.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

from smelt.codegen.llvm import trigonometry, vector_math
from smelt.codegen.llvm.host_cpu import Host
from smelt.codegen.llvm.ir_builder import Builder, Module, Ref
from smelt.loops import philox as generator

_KINDS = {"float": "f32", "double": "f64", "i32": "s32", "i64": "s64", "i1": "pred"}
_CONSTRAINTS = {"float": "f", "double": "d", "i32": "r", "i64": "l"}
# LLVM's name -> PTX's, before the type. Additions say how they round, else the driver may contract them.
_FLOATS = dict(fadd="add.rn", fsub="sub.rn", fmul="mul.rn", fdiv="div.rn")
_INTEGERS = dict(add="add", sub="sub", ashr="shr")
_BITS = {"shl": "shl", "and": "and", "or": "or", "xor": "xor"}
_COMPARISONS = dict(
    oeq="eq", one="ne", olt="lt", ole="le", ogt="gt", oge="ge", uno="nan", eq="eq", ne="ne", slt="lt", sgt="gt",
)  # fmt: skip
_CONVERSIONS = dict(sitofp="cvt.rn", fptosi="cvt.rzi", fpext="cvt", fptrunc="cvt.rn", sext="cvt", trunc="cvt")
_ROUNDINGS = dict(rint="cvt.rni", floor="cvt.rmi", ceil="cvt.rpi", trunc="cvt.rzi")


class Assembler(Builder):
    """Writes PTX where its base class writes LLVM: scalar registers, one straight block."""

    def __init__(self) -> None:
        super().__init__(Module(Host("", "", 32, False, False)), 1)
        self.registers: dict[str, list[str]] = {}

    def emit(self, opcode: str, elem: str, *operands: Ref) -> Ref:
        """The instruction's result, a register for values of type `elem`."""
        text = f"{opcode} {', '.join(o.text for o in operands)}"
        memo = self.scopes[0].memo
        if text not in memo:
            memo[text] = Ref(self.fresh(), elem)
            self.registers.setdefault(_KINDS[elem], []).append(memo[text].text)
            self.line(f"{opcode} {memo[text].text}, {', '.join(o.text for o in operands)};")
        return memo[text]

    def const(self, elem: str, value: float | int | bool) -> Ref:
        """A literal of the PTX type for `elem`."""
        return Ref(_literal(elem, value), elem)

    def like(self, ref: Ref, value: float | int | bool) -> Ref:
        """A literal of `ref`'s type."""
        return self.const(ref.elem, value)

    def op(self, opcode: str, a: Ref, b: Ref) -> Ref:
        """A binary instruction, named as LLVM names it."""
        if b.elem == "i1" and b.text == "1" and opcode == "xor":
            return self.emit("not.pred", "i1", a)
        if a.elem == "i1":
            return self.emit(f"{_BITS[opcode]}.pred", "i1", a, b)
        bits = "b64" if a.elem == "i64" else "b32"
        for names, kind in ((_FLOATS, _KINDS[a.elem]), (_INTEGERS, _KINDS[a.elem]), (_BITS, bits)):
            if opcode in names:
                return self.emit(f"{names[opcode]}.{kind}", a.elem, a, b)
        raise KeyError(opcode)

    def compare(self, predicate: str, a: Ref, b: Ref) -> Ref:
        """A predicate; NaNs as in LLVM."""
        return self.emit(f"setp.{_COMPARISONS[predicate.split()[1]]}.{_KINDS[a.elem]}", "i1", a, b)

    def select(self, condition: Ref, a: Ref, b: Ref) -> Ref:
        """`a` where `condition` holds, else `b`."""
        return self.emit(f"selp.{_KINDS[a.elem]}", a.elem, a, b, condition)

    def convert(self, opcode: str, a: Ref, elem: str) -> Ref:
        """A conversion, named as LLVM names it; `a` if it has the type."""
        if a.elem == elem:
            return a
        if opcode == "bitcast":
            return self.emit("mov.b64" if elem in ("double", "i64") else "mov.b32", elem, a)
        return self.emit(f"{_CONVERSIONS[opcode]}.{_KINDS[elem]}.{_KINDS[a.elem]}", elem, a)

    def fneg(self, a: Ref) -> Ref:
        """-a, with the sign of zero turned as well."""
        return self.emit(f"neg.{_KINDS[a.elem]}", a.elem, a)

    def intrinsic(self, name: str, *args: Ref, tail: str = "") -> Ref:
        """One of LLVM's intrinsics that is one instruction."""
        elem = args[0].elem
        kind = _KINDS[elem]
        if name in _ROUNDINGS:
            return self.emit(f"{_ROUNDINGS[name]}.{kind}.{kind}", elem, *args)
        if name == "copysign":  # PTX has the sign first
            args = args[::-1]
        opcode = {"fabs": "abs", "fma": "fma.rn", "copysign": "copysign", "smin": "min"}[name]
        return self.emit(f"{opcode}.{kind}", elem, *args)

    def block(self, *results: Ref) -> str:
        """The text of the block: the results are `$0` and those that follow, then come the operands."""
        declared = [f".reg .{kind} {', '.join(names)};" for kind, names in self.registers.items()]
        body = [line.strip() for line in self.scopes[0].lines]
        outputs = [f"mov.{_KINDS[x.elem]} ${i}, {x.text};" for i, x in enumerate(results)]
        return "{ " + " ".join([*declared, *body, *outputs]) + " }"


def _literal(elem: str, value: float | int | bool) -> str:
    if elem == "float":
        return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    if elem == "double":
        return f"0d{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


# ---- functions where the processor has something better than the CPU's code


def _one(opcode: str) -> Callable[..., Ref]:
    """One instruction."""
    return lambda b, *xs: b.emit(f"{opcode}.{_KINDS[xs[0].elem]}", xs[0].elem, *xs)


def _rounding(name: str) -> Callable[..., Ref]:
    return lambda b, x: b.intrinsic(name, x)


LOG2_E = 1.4426950216293335  # of float32; the remainder of log2(e) is:
LOG2_E_REST = math.log2(math.e) - LOG2_E
ERFC_POWER = tuple(-math.log2(math.e) * c for c in vector_math.ERF_LARGE)  # log2 of erfc
SHIFTED = 1.5 * 2.0**23  # a float32 from here on counts in its lowest bits


def exp(b: Assembler, x: Ref) -> Ref:
    """2**n * 2**r of float32 for n = floor(x*log2(e)), between -126 and 126: what is beyond is left to r. Adding n to a
    large number makes it an integer in the low bits, which become an exponent."""
    share = b.emit("fma.rn.sat.f32", "float", x, b.like(x, LOG2_E / 252), b.like(x, 0.5))  # of [-126, 126]
    shifted = b.emit("fma.rm.f32", "float", share, b.like(x, 252.0), b.like(x, SHIFTED + 1))
    minus_n = b.op("fsub", b.like(x, SHIFTED + 127), shifted)
    r = b.fma(x, b.like(x, LOG2_E_REST), b.fma(x, b.like(x, LOG2_E), minus_n))
    exponent = b.op("shl", b.convert("bitcast", shifted, "i32"), b.const("i32", 23))
    return b.op("fmul", b.emit("ex2.approx.ftz.f32", "float", r), b.convert("bitcast", exponent, "float"))


def sigmoid(b: Assembler, x: Ref) -> Ref:
    """1 / (1 + e**-x), as eager computes it."""
    return b.emit("rcp.rn.f32", "float", b.op("fadd", exp(b, b.fneg(x)), b.like(x, 1.0)))


def tanh(b: Assembler, x: Ref) -> Ref:
    """As `vmath.tanh`; the quotient need not be exact, as at most 1/4 of the result is lost to it."""
    a, square = vector_math.absolute(b, x), b.op("fmul", x, x)
    small = b.fma(b.op("fmul", x, square), b.polynomial(square, vector_math.FLOAT.tanh), x)
    inverse = b.emit("rcp.approx.f32", "float", b.op("fadd", exp(b, b.op("fadd", a, a)), b.like(x, 1.0)))
    large = b.intrinsic("copysign", b.fma(inverse, b.like(x, -2.0), b.like(x, 1.0)), x)
    return b.select(b.compare("fcmp olt", a, b.like(a, 0.625)), small, large)


def erf(b: Assembler, x: Ref) -> Ref:
    """As `vmath.erf`; erfc, a fifth of erf at most, is a power of two: GELU of bfloat16 is bound by arithmetic, too."""
    a = vector_math.absolute(b, x)
    small = b.fma(x, b.polynomial(b.op("fmul", x, x), vector_math.ERF_SMALL), x)
    power = b.polynomial(b.emit("min.f32", "float", a, b.like(a, 4.0)), ERFC_POWER)
    large = b.op("fsub", b.like(x, 1.0), b.emit("ex2.approx.ftz.f32", "float", power))
    is_large = b.compare("fcmp oge", a, b.like(a, 0.9))  # NaN is not: `min` loses it
    return b.select(is_large, b.intrinsic("copysign", large, x), small)


# ---- cheap ones (`approximate_math.py`): of float32, relative errors within 2**-15, results below 2**-126 are 0


def fast_exp(b: Assembler, x: Ref) -> Ref:
    """An error of |x| * 2**-23 beside that of the processor's approximation, 2**-22."""
    return b.emit("ex2.approx.ftz.f32", "float", b.op("fmul", x, b.like(x, math.log2(math.e))))


def fast_sigmoid(b: Assembler, x: Ref) -> Ref:
    """1 / (1 + e**-x); 0 where e**-x is infinite, as eager's."""
    power = b.emit("ex2.approx.ftz.f32", "float", b.op("fmul", x, b.like(x, -math.log2(math.e))))
    return b.emit("rcp.approx.ftz.f32", "float", b.op("fadd", power, b.like(x, 1.0)))


def one_plus_tanh(b: Assembler, x: Ref) -> Ref:
    """2 / (1 + e**(-2x)), more exact below 0 than a sum is."""
    power = b.emit("ex2.approx.ftz.f32", "float", b.op("fmul", x, b.like(x, -2 * math.log2(math.e))))
    return b.emit("rcp.approx.ftz.f32", "float", b.fma(power, b.like(x, 0.5), b.like(x, 0.5)))


# log2 of erfc(a) for a from 0 to 4.03: erfc's error is at most 2.6e-5 of erfc + 1.4e-8 (least maximum, by least squares
# whose weights follow the errors).
ERFC_HALF = (
    -3.6993747926317155e-05, -1.6269285678863525, -0.9225119352340698, -0.14288927614688873, 0.026231570169329643,
    -0.0022704601287841797,
)  # fmt: skip
ERFC_HALF_END = 5.7 / math.sqrt(2)  # erfc is less than half of 1's last place beyond


def one_plus_erf(b: Assembler, x: Ref) -> Ref:
    """1 + (1 - erfc) of |x| with the sign of x, inexact by 2**-24 below 0, as a sum of float32 is. 0 at -inf."""
    a = b.emit("min.f32", "float", vector_math.absolute(b, x), b.like(x, ERFC_HALF_END))
    erfc = b.emit("ex2.approx.ftz.f32", "float", b.polynomial(a, ERFC_HALF))
    erf = b.intrinsic("copysign", b.op("fsub", b.like(x, 1.0), erfc), x)
    return b.op("fadd", erf, b.like(x, 1.0))


def _tan(b: Assembler, x: Ref) -> Ref:
    return b.op("fdiv", trigonometry.sine(b, x, 0), trigonometry.sine(b, x, 1))


def _rsqrt_double(b: Assembler, x: Ref) -> Ref:
    return b.emit("rcp.rn.f64", "double", b.emit("sqrt.rn.f64", "double", x))


def _fast_log(b: Assembler, x: Ref) -> Ref:
    return b.op("fmul", b.emit("lg2.approx.f32", "float", x), b.like(x, math.log(2)))


def philox(b: Assembler, seed: Ref, counter: Ref, subsequence: Ref) -> tuple[Ref, ...]:
    """The four words of a step, of 32 bits (`loops.philox`)."""

    def words(x: Ref) -> tuple[Ref, Ref]:
        upper = b.emit("shr.u64", "i64", x, Ref("32", "i32"))
        return b.emit("cvt.u32.u64", "i32", x), b.emit("cvt.u32.u64", "i32", upper)

    c, k = [*words(counter), *words(subsequence)], list(words(seed))
    for _ in range(generator.ROUNDS):
        high, low = (
            [b.emit(f"mul.{part}.u32", "i32", c[i], Ref(str(m), "i32")) for i, m in _MULTIPLIED]
            for part in ("hi", "lo")
        )
        c = [
            b.op("xor", b.op("xor", high[1], c[1]), k[0]),
            low[1],
            b.op("xor", b.op("xor", high[0], c[3]), k[1]),
            low[0],
        ]
        k = [b.emit("add.u32", "i32", x, Ref(str(step), "i32")) for x, step in zip(k, generator.WEYL)]
    return tuple(c)


_MULTIPLIED = tuple(zip((0, 2), generator.MULTIPLIERS))

_BOTH: dict[str, Callable[..., Ref]] = dict(
    sqrt=_one("sqrt.rn"), reciprocal=_one("rcp.rn"), floor=_rounding("floor"), ceil=_rounding("ceil"),
    trunc=_rounding("trunc"), round=_rounding("rint"), copysign=lambda b, x, y: b.intrinsic("copysign", x, y),
)  # fmt: skip
# By the LLVM type of the operands. rsqrt and exp2 are what CUDA's own functions are. Angles beyond 2**40 are imprecise.
FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = dict(
    float=dict(
        _BOTH, rsqrt=_one("rsqrt.approx"), exp2=_one("ex2.approx"), exp=exp, sigmoid=sigmoid, tanh=tanh, erf=erf,
        tan=_tan, sin=lambda b, x: trigonometry.sine(b, x, 0), cos=lambda b, x: trigonometry.sine(b, x, 1),
        expm1=vector_math.expm1, log=vector_math.log, log2=vector_math.log2, log10=vector_math.log10,
        log1p=vector_math.log1p, pow=lambda b, x, y: vector_math.power(b, [x, y]), fast_log=_fast_log,
        fast_sin=_one("sin.approx"), fast_cos=_one("cos.approx"), fast_exp=fast_exp, fast_sigmoid=fast_sigmoid,
        one_plus_tanh=one_plus_tanh, one_plus_erf=one_plus_erf,
    ),
    double=dict(_BOTH, rsqrt=_rsqrt_double, exp=vector_math.exp, sigmoid=vector_math.sigmoid_double),
    i64=dict(philox=philox),
)  # fmt: skip


_OPERANDS = dict(pow=2, copysign=2, philox=3)
_RESULTS = dict(philox=4)


@functools.cache
def block(name: str, elem: str) -> tuple[str, str] | None:
    """The assembly of a function and its constraints, as `tl.inline_asm_elementwise` takes them; `elem` is LLVM's type of
    the operands. None where there is none."""
    write = FUNCTIONS[elem].get(name)
    if write is None:
        return None
    assembler, first = Assembler(), _RESULTS.get(name, 1)
    operands = [Ref(f"${first + i}", elem) for i in range(_OPERANDS.get(name, 1))]
    result = write(assembler, *operands)
    results = result if isinstance(result, tuple) else (result,)
    outputs, read = ([_CONSTRAINTS[x.elem] for x in xs] for xs in (results, operands))
    return assembler.block(*results), ",".join([*(f"={letter}" for letter in outputs), *read])
