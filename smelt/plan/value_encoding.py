"""Binary encoding of values: a tag of one byte, then the tag's payload. docs/plan.md lists the tags.

Names in the bytes refer only to torch's dtypes, layouts, memory formats and operators. Reading calls nothing but the
classes of records.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.errors import PlanError
from smelt.graph.object_handles import Handle
from smelt.shapes.expr import Expr, Quotient, Size, Sym
from smelt.torch_private import OpOverload

DEPTH = 100  # of values inside values: a fifth of the frames that Python allows by default
INT_BYTES = 32  # of an integer; what is printed of a plan stays short

Value = Any  # what an ATen call may be given, and tuples, lists and dicts of it


class Writer:
    """Bytes under construction."""

    def __init__(self, records: Mapping[type, tuple[int, Sequence[str]]]) -> None:
        self.data = bytearray()
        self._records = records  # class -> number, fields in order
        self._depth = 0

    def value(self, value: Value) -> None:
        """Append a value with its tag. Raises PlanError for values without an encoding."""
        self._depth += 1
        if self._depth > DEPTH:
            raise PlanError(f"values nested more than {DEPTH} deep have no form in bytes")
        self._tagged(value)
        self._depth -= 1

    def _tagged(self, value: Value) -> None:
        kind = type(value)
        if kind in self._records:
            number, fields = self._records[kind]
            self.data += b"R"
            self.count(number)
            for name in fields:
                self.value(getattr(value, name))
            return
        write = _WRITERS.get(kind) or next((w for c, w in _WRITERS.items() if isinstance(value, c)), None)
        if write is None or kind is Handle:  # a number that means nothing elsewhere
            raise PlanError(f"a {kind.__name__} has no form in bytes: {value!r}")
        write(self, value)

    def count(self, n: int) -> None:
        """Append a non-negative number: seven bits a byte, low bits first; the high bit marks continuation."""
        while n > 0x7F:
            self.data.append(n & 0x7F | 0x80)
            n >>= 7
        self.data.append(n)

    def raw(self, data: bytes) -> None:
        """Append the number of bytes, then the bytes."""
        self.count(len(data))
        self.data += data

    def text(self, text: str) -> None:
        """Append UTF-8, as `raw`."""
        self.raw(text.encode())

    def items(self, values: Sequence[Value]) -> None:
        """Append the number of values, then each with its tag."""
        self.count(len(values))
        for value in values:
            self.value(value)


def encoded(value: Value, records: Mapping[type, tuple[int, Sequence[str]]] | None = None) -> bytes:
    """A value as bytes. Raises PlanError for a value without an encoding."""
    writer = Writer(records or {})
    writer.value(value)
    return bytes(writer.data)


def decode(data: bytes, records: Mapping[int, tuple[type, Sequence[str]]]) -> Value:
    """The value that `Writer` wrote, decoded by native/values/decode.cpp. `records`: number -> class, fields in order.

    Raises PlanError for other bytes, and for parts that no size, operator or record is made of.
    """
    makers: dict[int | str, Any] = {**_MAKERS, **dict(records.items())}
    try:
        return _native.decode(data, makers)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        raise PlanError(f"bytes that hold no value: {error}") from error


# ------------------------------------------------------------------------------------------------------------- integers


def _write_int(w: Writer, n: int) -> None:
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    if len(data) > INT_BYTES:
        raise PlanError(f"an integer of {len(data)} bytes has no form in bytes")
    w.data += b"i"
    w.raw(data)


# ------------------------------------------------------------------------------------------------- symbolic expressions


def _write_sum(w: Writer, e: Expr) -> None:
    w.data += b"z"
    w.value(e.const)
    w.count(len(e.terms))
    for atoms, coefficient in e.terms:
        w.value(coefficient)
        w.items(atoms)


def _sum(constant: int, *terms: tuple[Any, ...]) -> Size:
    total: Size = constant
    for term in terms:
        total = total + math.prod(term)
    return total


def _write_symbol(w: Writer, s: Sym) -> None:
    w.data += b"y"
    w.text(s.name)
    w.value(s.lo)
    w.value(s.hi)


def _write_quotient(w: Writer, q: Quotient) -> None:
    w.data += b"/" if q.op == "floordiv" else b"%"
    w.value(q.left)
    w.value(q.right)


# --------------------------------------------------------------------------------------------------------------- torch's


def _write_device(w: Writer, device: torch.device) -> None:
    w.data += b"D"
    w.text(device.type)
    w.value(device.index)


def _write_operator(w: Writer, op: OpOverload) -> None:
    w.data += b"o"
    w.text(op._schema.name)
    w.text(op._overloadname)


def _operator(name: str, overload: str) -> OpOverload:
    space, _, base = name.partition("::")
    try:
        op = getattr(getattr(getattr(torch.ops, space), base), overload)
    except (AttributeError, RuntimeError) as error:
        raise PlanError(f"an unknown operator, {name}.{overload}: is its library imported?") from error
    if not isinstance(op, OpOverload):
        raise PlanError(f"{name}.{overload} is no operator")
    return op


def _named(tag: bytes, kinds: Mapping[str, Any]) -> Callable[[Writer, Any], None]:
    """The writer of the values of `kinds` by their names."""
    names = {value: name for name, value in kinds.items()}

    def write(w: Writer, value: Any) -> None:
        w.data += tag
        w.text(names[value])

    return write


def _members(cls: type) -> dict[str, Any]:
    """The values of `cls` in torch by canonical name (some dtypes have two)."""
    values = (getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name, None), cls))
    return {str(value).removeprefix("torch."): value for value in values}


_write_dtype = _named(b"t", _members(torch.dtype))
_write_layout = _named(b"l", _members(torch.layout))
_write_format = _named(b"m", _members(torch.memory_format))


# ---------------------------------------------------------------------------------------------------------------- tables


def _fixed(tag: bytes) -> Callable[[Writer, Any], None]:
    def write(w: Writer, value: Any) -> None:
        w.data += tag

    return write


def _write_bool(w: Writer, value: bool) -> None:
    w.data += b"T" if value else b"F"


def _write_text(w: Writer, value: str) -> None:
    w.data += b"s"
    w.text(value)


def _write_bytes(w: Writer, value: bytes) -> None:
    w.data += b"b"
    w.raw(value)


def _write_float(w: Writer, value: float) -> None:
    w.data += b"d" + struct.pack("<d", value)


def _write_complex(w: Writer, value: complex) -> None:
    w.data += b"c" + struct.pack("<dd", value.real, value.imag)


def _write_tuple(w: Writer, value: tuple[Value, ...]) -> None:
    w.data += b"("
    w.items(value)


def _write_list(w: Writer, value: list[Value]) -> None:
    w.data += b"["
    w.items(value)


def _write_dict(w: Writer, value: dict[Value, Value]) -> None:
    w.data += b"{"
    w.items([x for pair in value.items() for x in pair])


# By class. Where the class itself has no entry, the first that the value is an instance of (a `torch.Size` is a tuple).
_WRITERS: dict[type, Callable[[Writer, Any], None]] = {
    bool: _write_bool, int: _write_int, type(None): _fixed(b"N"), float: _write_float, complex: _write_complex,
    str: _write_text, bytes: _write_bytes, tuple: _write_tuple, list: _write_list, dict: _write_dict,
    Sym: _write_symbol, Quotient: _write_quotient, Expr: _write_sum, torch.dtype: _write_dtype,
    torch.layout: _write_layout, torch.memory_format: _write_format, torch.device: _write_device,
    OpOverload: _write_operator,
}  # fmt: skip

# What values with these tags are made of, by their parts.
_MAKERS: dict[int | str, Callable[..., Any]] = {
    "y": Sym,
    "/": operator.floordiv,
    "%": operator.mod,
    "z": _sum,
    "o": _operator,
}
