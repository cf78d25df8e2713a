"""The representation of torch dtypes in memory and in registers; loads, stores and conversions between dtypes.

float16 and bfloat16 are computed in float32 registers whose values are always representable in the narrow type: every
operation rounds its result. bool is a byte in memory and an i1 in registers.

Conversions follow x86 ATen. Where C++ leaves them undefined (a float outside the integer's range, NaN), int32 and
int64 give their minimum, and narrower integers the low bits of the int32 result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.codegen.llvm.ir_builder import Builder, Ref


@dataclass(frozen=True)
class Type:
    """`elem`: LLVM type in registers; `memory`: in memory. `kind`: f (float), s, u (integers), b (bool).
    `narrow`: half or bfloat when registers are wider than memory."""

    elem: str
    memory: str
    kind: str
    bytes: int
    narrow: str = ""


TYPES: dict[torch.dtype, Type] = {
    torch.float32: Type("float", "float", "f", 4), torch.float64: Type("double", "double", "f", 8),
    torch.float16: Type("float", "half", "f", 2, "half"), torch.bfloat16: Type("float", "i16", "f", 2, "bfloat"),
    torch.bool: Type("i1", "i8", "b", 1), torch.uint8: Type("i8", "i8", "u", 1),
    torch.int8: Type("i8", "i8", "s", 1), torch.int16: Type("i16", "i16", "s", 2),
    torch.int32: Type("i32", "i32", "s", 4), torch.int64: Type("i64", "i64", "s", 8),
    torch.uint16: Type("i16", "i16", "u", 2), torch.uint32: Type("i32", "i32", "u", 4),
    torch.uint64: Type("i64", "i64", "u", 8),
}  # fmt: skip


def from_memory(b: Builder, x: Ref, t: Type) -> Ref:
    """A loaded value in register form: bool as i1, half precision as float32 (exactly)."""
    if t.kind == "b":
        return b.compare("icmp ne", x, b.const("i8", 0))
    if t.narrow == "half":
        return b.convert("fpext", x, "float")
    if t.narrow == "bfloat":
        wide = b.convert("zext", x, "i32")
        return b.convert("bitcast", b.op("shl", wide, b.const("i32", 16)), "float")
    return x


def to_memory(b: Builder, x: Ref, t: Type) -> Ref:
    """A value in memory form; half precision must be rounded already (`rounded`)."""
    if t.kind == "b":
        return b.convert("zext", x, "i8")
    if t.narrow == "half":
        return b.convert("fptrunc", x, "half")
    if t.narrow == "bfloat":
        bits = b.convert("bitcast", x, "i32")
        return b.convert("trunc", b.op("lshr", bits, b.const("i32", 16)), "i16")
    return x


def rounded(b: Builder, x: Ref, t: Type) -> Ref:
    """A float32 rounded to nearest even in the narrow type `t`; unchanged when `t` is not narrow."""
    if t.narrow == "half":
        return b.convert("fpext", b.convert("fptrunc", x, "half"), "float")
    if t.narrow == "bfloat":
        bits = b.convert("bitcast", x, "i32")
        odd = b.op("and", b.op("lshr", bits, b.const("i32", 16)), b.const("i32", 1))
        up = b.op("add", b.op("add", bits, b.const("i32", 0x7FFF)), odd)
        up = b.op("and", up, b.const("i32", -0x10000))
        return b.select(
            b.compare("fcmp uno", x, x), b.const("float", float("nan")), b.convert("bitcast", up, "float")
        )
    return x


def truth(b: Builder, x: Ref, t: Type) -> Ref:
    """x != 0; NaN is true."""
    if t.kind == "b":
        return x
    return b.compare("fcmp une" if t.kind == "f" else "icmp ne", x, b.like(x, 0))


def convert(b: Builder, x: Ref, source: Type, target: Type) -> Ref:
    """`x` of dtype `source` as dtype `target`."""
    if target.kind == "b":
        return truth(b, x, source)
    if target.kind == "f":
        return rounded(b, _to_float(b, x, source, target), target)
    if source.kind == "f":
        return _float_to_int(b, x, target)
    return _resize(b, x, target.elem, signed=source.kind == "s")


def _to_float(b: Builder, x: Ref, source: Type, target: Type) -> Ref:
    if source.kind != "f":
        return b.convert("sitofp" if source.kind == "s" else "uitofp", x, target.elem)
    if source.elem == target.elem:
        return x
    return b.convert("fpext" if target.elem == "double" else "fptrunc", x, target.elem)


def _float_to_int(b: Builder, x: Ref, target: Type) -> Ref:
    """A float as an integer. Out of range is poison in LLVM; x86 gives a definite number, which `freeze` pins."""
    wide = "i64" if target.bytes == 8 or (target.kind == "u" and target.bytes == 4) else "i32"
    return _resize(b, b.freeze(b.convert("fptosi", x, wide)), target.elem, signed=True)


def _resize(b: Builder, x: Ref, elem: str, signed: bool) -> Ref:
    have, want = int(x.elem[1:]), int(elem[1:])
    opcode = "trunc" if want < have else "sext" if signed else "zext"
    return b.convert(opcode, x, elem)
