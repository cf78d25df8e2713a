"""The types of scalars in Triton's language, and of what two of them are computed in.

Each is one object: types are compared by identity. The rules are those of Triton's `language.semantic`; where that has no
type, there is a TypeError.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

BOOLEAN, INTEGER, FLOAT, POINTER = range(4)  # a Python number takes the type of what has no lower rank
_FLOATS = ("fp64", "fp32", "fp16", "bf16")


@dataclass(frozen=True, eq=False)
class Kind:
    """A type, as `tl` calls it but for floats ("int32", "fp32"). `to`: what a pointer points to."""

    name: str
    bits: int
    rank: int
    signed: bool = False
    to: Kind | None = None

    @property
    def is_integer(self) -> bool:
        """Booleans are integers of one bit, without a sign."""
        return self.rank <= INTEGER

    @property
    def is_float(self) -> bool:
        """Whether it is one of four floats."""
        return self.rank == FLOAT


INT1 = Kind("int1", 1, BOOLEAN)
INT8, INT16, INT32, INT64 = (Kind(f"int{n}", n, INTEGER, True) for n in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (Kind(f"uint{n}", n, INTEGER) for n in (8, 16, 32, 64))
FP16, BF16, FP32, FP64 = (
    Kind(n, b, FLOAT, True) for n, b in dict(fp16=16, bf16=16, fp32=32, fp64=64).items()
)

# As signatures of kernels call them.
SIGNATURES = dict(
    i1=INT1, i8=INT8, i16=INT16, i32=INT32, i64=INT64, u8=UINT8, u16=UINT16, u32=UINT32, u64=UINT64, fp16=FP16, bf16=BF16,
    fp32=FP32, fp64=FP64,
)  # fmt: skip


@functools.cache
def pointer(to: Kind) -> Kind:
    """The type of pointers to `to`."""
    return Kind(f"*{to.name}", 64, POINTER, to=to)


def of_signature(text: str) -> Kind:
    """The type of an argument: "*fp32", "i64"."""
    return pointer(SIGNATURES[text[1:]]) if text[0] == "*" else SIGNATURES[text]


def of_number(number: object) -> Kind:
    """What a Python number is where nothing else says it."""
    if isinstance(number, bool):
        return INT1
    if isinstance(number, int):
        for kind, low, high in _RANGES:
            if low <= number < high:
                return kind
    if isinstance(number, float):
        size = abs(number)
        is_wide = 0 < size < 2**-126 or (2 - 2**-23) * 2**127 < size < float("inf")
        return FP64 if is_wide else FP32
    raise TypeError(f"{number!r} is no number of a kernel")


_RANGES = ((INT32, -(2**31), 2**31), (UINT32, 2**31, 2**32), (INT64, -(2**63), 2**63), (UINT64, 2**63, 2**64))


@functools.cache
def common(a: Kind, b: Kind, is_number: bool, divides: bool) -> Kind:
    """What `a` and `b` are computed in. `is_number`: the second is of a Python number. `divides`: by `/`, `//` or `%`."""
    narrow = (FP16, BF16)
    if is_number and b.rank <= a.rank < POINTER:
        return FP32 if divides and a in narrow else a
    floats = [k for k in (a, b) if k.rank == FLOAT]
    for kind in (FP64, FP32, FP16):
        if kind in floats:
            return FP32 if divides and kind is FP16 else kind
    if floats:
        return BF16 if a is b and not divides else FP32
    if POINTER in (a.rank, b.rank) or (divides and a.signed != b.signed):
        raise TypeError(f"{a.name} and {b.name}")
    return promoted(a, b)


def promoted(a: Kind, b: Kind) -> Kind:
    """Of two integers, the wider; of two as wide, the one without a sign."""
    if a.signed == b.signed:
        return a if a.bits > b.bits else b
    unsigned, other = (b, a) if a.signed else (a, b)
    return unsigned if unsigned.bits >= other.bits else other


def check(number: float, kind: Kind) -> None:
    """Raises ValueError where an integer has no number like this."""
    if kind.is_integer:
        low, high = (-(1 << kind.bits - 1), 1 << kind.bits - 1) if kind.signed else (0, 1 << kind.bits)
        if not low <= number < high:
            raise ValueError(f"{number} is no {kind.name}")
