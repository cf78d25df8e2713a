"""Values as bytes and back: a tag of one byte, then what the tag says. docs/plan.md lists the tags.

Nothing is looked up by a name in the bytes but torch's dtypes, layouts, memory formats and operators, and nothing is called.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.errors import PlanError
from smelt.graph.sizes import Expr, Quotient, Size, Sym

Value = Any  # what an ATen call may be given, and tuples, lists and dicts of it


class Writer:
    """Bytes under construction."""

    def __init__(self, records: Mapping[type, tuple[int, Sequence[str]]]) -> None:
        self.data = bytearray()
        self._records = records  # class -> number, fields in order

    def value(self, value: Value) -> None:
        """Raises PlanError for what has no form in bytes."""
        kind = type(value)
        if kind in self._records:
            number, fields = self._records[kind]
            self.data += b"R"
            self.count(number)
            for name in fields:
                self.value(getattr(value, name))
            return
        write = _WRITERS.get(kind) or next((w for c, w in _WRITERS.items() if isinstance(value, c)), None)
        if write is None:
            raise PlanError(f"a {kind.__name__} has no form in bytes: {value!r}")
        write(self, value)

    def count(self, n: int) -> None:
        """A number from 0 on: seven bits a byte, the low ones first; the high bit says that more follow."""
        while n > 0x7F:
            self.data.append(n & 0x7F | 0x80)
            n >>= 7
        self.data.append(n)

    def raw(self, data: bytes) -> None:
        """The number of bytes, then the bytes."""
        self.count(len(data))
        self.data += data

    def text(self, text: str) -> None:
        """UTF-8, as `raw`."""
        self.raw(text.encode())

    def items(self, values: Sequence[Value]) -> None:
        """The number of values, then each with its tag."""
        self.count(len(values))
        for value in values:
            self.value(value)


class Reader:
    """Bytes being read. Raises PlanError where they end too soon or say what cannot be."""

    def __init__(self, data: bytes, records: Mapping[int, tuple[type, Sequence[str]]]) -> None:
        self._data, self._at = data, 0
        self._records = records

    def value(self) -> Value:
        """A tag and what it says. Raises PlanError for an unknown tag."""
        tag = self.take(1)
        read = _READERS.get(tag)
        if read is None:
            raise PlanError(f"an unknown tag, {tag!r}, at byte {self._at - 1}")
        return read(self)

    def take(self, n: int) -> bytes:
        """The next n bytes. Raises PlanError where fewer are left."""
        if n > len(self._data) - self._at:
            raise PlanError("the data ends in the middle of a value")
        self._at += n
        return self._data[self._at - n : self._at]

    def at_end(self) -> bool:
        """Whether all bytes are read."""
        return self._at == len(self._data)

    def count(self) -> int:
        """The inverse of `Writer.count`."""
        n = shift = 0
        while True:
            (byte,) = self.take(1)
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                return n
            shift += 7

    def raw(self) -> bytes:
        """The inverse of `Writer.raw`."""
        return self.take(self.count())

    def text(self) -> str:
        """The inverse of `Writer.text`. Raises PlanError for what is not UTF-8."""
        try:
            return self.raw().decode()
        except UnicodeDecodeError as error:
            raise PlanError("a text is not UTF-8") from error

    def items(self) -> list[Value]:
        """The inverse of `Writer.items`."""
        return [self.value() for _ in range(self.count())]

    def record(self) -> Value:
        """A record: its class's number, then its fields in order. Raises PlanError for an unknown number."""
        number = self.count()
        if number not in self._records:
            raise PlanError(f"an unknown kind of record, {number}")
        cls, fields = self._records[number]
        return cls(**{name: self.value() for name in fields})


# ------------------------------------------------------------------------------------------------------------- integers


def _write_int(w: Writer, n: int) -> None:
    w.data += b"i"
    w.raw(n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True))


def _read_int(r: Reader) -> int:
    return int.from_bytes(r.raw(), "little", signed=True)


# ------------------------------------------------------------------------------------------------- symbolic expressions


def _write_sum(w: Writer, e: Expr) -> None:
    w.data += b"z"
    w.value(e.const)
    w.count(len(e.terms))
    for atoms, coefficient in e.terms:
        w.value(coefficient)
        w.items(atoms)


def _read_sum(r: Reader) -> Size:
    total: Size = _whole(r.value())
    for _ in range(r.count()):
        term: Size = _whole(r.value())
        for atom in r.items():
            term = term * _size(atom)
        total = total + term
    return total


def _write_symbol(w: Writer, s: Sym) -> None:
    w.data += b"y"
    w.text(s.name)
    w.value(s.lo)
    w.value(s.hi)


def _read_symbol(r: Reader) -> Sym:
    name = r.text()
    return Sym(name, _whole(r.value()), _whole(r.value()))


def _write_quotient(w: Writer, q: Quotient) -> None:
    w.data += b"/" if q.op == "//" else b"%"
    w.value(q.left)
    w.value(q.right)


def _read_quotient(r: Reader) -> Size:
    left, right = _divided(r)
    return left // right


def _read_modulo(r: Reader) -> Size:
    left, right = _divided(r)
    return left % right


def _divided(r: Reader) -> tuple[Size, Size]:
    left, right = _size(r.value()), _size(r.value())
    if isinstance(right, int) and right <= 0:
        raise PlanError(f"a size divided by {right}")
    return left, right


def _size(value: Value) -> Size:
    if type(value) is not int and not isinstance(value, Expr):
        raise PlanError(f"a size is expected, got {value!r}")
    return value


def _whole(value: Value) -> int:
    if type(value) is not int:
        raise PlanError(f"an integer is expected, got {value!r}")
    return value


# --------------------------------------------------------------------------------------------------------------- torch's


def _write_device(w: Writer, device: torch.device) -> None:
    w.data += b"D"
    w.text(device.type)
    w.value(device.index)


def _read_device(r: Reader) -> torch.device:
    kind, index = r.text(), r.value()
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except (RuntimeError, TypeError) as error:
        raise PlanError(f"an unknown device, {kind!r}") from error


def _write_operator(w: Writer, op: torch._ops.OpOverload) -> None:
    w.data += b"o"
    w.text(op._schema.name)
    w.text(op._overloadname)


def _read_operator(r: Reader) -> torch._ops.OpOverload:
    name, overload = r.text(), r.text()
    space, _, base = name.partition("::")
    try:
        op = getattr(getattr(getattr(torch.ops, space), base), overload)
    except (AttributeError, RuntimeError) as error:
        raise PlanError(f"an unknown operator, {name}.{overload}: is its library imported?") from error
    if not isinstance(op, torch._ops.OpOverload):
        raise PlanError(f"{name}.{overload} is no operator")
    return op


def _write_tensor(w: Writer, t: torch.Tensor) -> None:
    """Its dtype, sizes, strides, and the bytes from its first to its last element."""
    if t.device.type != "cpu" or t.layout is not torch.strided:
        raise PlanError(f"a constant on {t.device} with layout {t.layout} has no form in bytes")
    t = t.detach().resolve_conj().resolve_neg()
    span = 0 if 0 in t.shape else 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    memory = torch.as_strided(t, (span,), (1,), t.storage_offset()).contiguous()
    w.data += b"x"
    for value in (t.dtype, tuple(t.shape), t.stride()):
        w.value(value)
    w.raw(ctypes.string_at(memory.data_ptr(), span * t.itemsize) if span else b"")


def _read_tensor(r: Reader) -> torch.Tensor:
    dtype, shape, stride = r.value(), r.value(), r.value()
    data = r.raw()
    try:
        # A copy, so that torch aligns it.
        memory = (
            torch.frombuffer(bytearray(data), dtype=dtype).clone() if data else torch.empty(0, dtype=dtype)
        )
        return torch.as_strided(memory, shape, stride)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PlanError(f"a tensor that cannot be: {error}") from error


def _named(
    tag: bytes, kinds: Mapping[str, Any]
) -> tuple[Callable[[Writer, Any], None], Callable[[Reader], Any]]:
    """How to write and read the values of `kinds` by their names."""
    names = {value: name for name, value in kinds.items()}

    def write(w: Writer, value: Any) -> None:
        w.data += tag
        w.text(names[value])

    def read(r: Reader) -> Any:
        name = r.text()
        if name not in kinds:
            raise PlanError(f"an unknown name, torch.{name}")
        return kinds[name]

    return write, read


def _members(cls: type) -> dict[str, Any]:
    """The values of `cls` in torch by their own names (some dtypes have two)."""
    values = (getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name, None), cls))
    return {str(value).removeprefix("torch."): value for value in values}


_write_dtype, _read_dtype = _named(b"t", _members(torch.dtype))
_write_layout, _read_layout = _named(b"l", _members(torch.layout))
_write_format, _read_format = _named(b"m", _members(torch.memory_format))


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


def _read_dict(r: Reader) -> dict[Value, Value]:
    flat = r.items()
    if len(flat) % 2:
        raise PlanError("a key without a value")
    return dict(zip(flat[::2], flat[1::2]))


# By class. Where the class itself has no entry, the first that the value is an instance of (a `torch.Size` is a tuple).
_WRITERS: dict[type, Callable[[Writer, Any], None]] = {
    bool: _write_bool,
    int: _write_int,
    type(None): _fixed(b"N"),
    float: _write_float,
    complex: _write_complex,
    str: _write_text,
    bytes: _write_bytes,
    tuple: _write_tuple,
    list: _write_list,
    dict: _write_dict,
    Sym: _write_symbol,
    Quotient: _write_quotient,
    Expr: _write_sum,
    torch.dtype: _write_dtype,
    torch.layout: _write_layout,
    torch.memory_format: _write_format,
    torch.device: _write_device,
    torch._ops.OpOverload: _write_operator,
    torch.Tensor: _write_tensor,
}

_READERS: dict[bytes, Callable[[Reader], Any]] = {
    b"T": lambda r: True,
    b"F": lambda r: False,
    b"N": lambda r: None,
    b"i": _read_int,
    b"d": lambda r: struct.unpack("<d", r.take(8))[0],
    b"c": lambda r: complex(*struct.unpack("<dd", r.take(16))),
    b"s": Reader.text,
    b"b": Reader.raw,
    b"(": lambda r: tuple(r.items()),
    b"[": Reader.items,
    b"{": _read_dict,
    b"y": _read_symbol,
    b"/": _read_quotient,
    b"%": _read_modulo,
    b"z": _read_sum,
    b"t": _read_dtype,
    b"l": _read_layout,
    b"m": _read_format,
    b"D": _read_device,
    b"o": _read_operator,
    b"x": _read_tensor,
    b"R": Reader.record,
}
