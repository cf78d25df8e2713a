"""Binary encoding of values: a tag of one byte, then the tag's payload. docs/plan.md lists the tags.

Bytes may be damaged or forged: the reader of a value states its type (`Reader.of`); a record's fields have the types
that its class declares. Names in the bytes refer only to torch's dtypes, layouts, memory formats and operators, and
reading calls nothing.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from smelt.errors import PlanError
from smelt.graph.object_handles import Handle
from smelt.plan.type_conformance import Test, fields_of, name_of, test_of
from smelt.shapes.expr import Atom, Expr, Quotient, Size, Sym
from smelt.torch_private import OpOverload

T = TypeVar("T")
DEPTH = 100  # of values inside values: a fifth of the frames that Python allows by default
INT_BYTES = 32  # of an integer; what is printed of a plan stays short
INT64 = 1 << 63

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


class Reader:
    """Bytes being read. Raises PlanError if they end early or are inconsistent."""

    def __init__(self, data: bytes, records: Mapping[int, tuple[type, Sequence[str]]]) -> None:
        self._data, self._at, self._end = data, 0, len(data)
        self._records = records
        self._depth = 0

    def of(self, annotation: type[T]) -> T:
        """The next value, which must conform to a type annotation: a class, `tuple[int, ...]`, `dict[str, Any]`."""
        read: T = self.like(annotation, "a value")
        return read

    def like(self, annotation: object, what: str) -> Value:
        """The next value for any annotation, unions included. `what`: the value's name in the message."""
        value = self.value()
        if not test_of(annotation)(value):
            raise PlanError(f"{what} has to be {name_of(annotation)}; a {type(value).__name__} is there")
        return value

    def value(self) -> Value:
        """The next value, of any type: a tag and its payload. Raises PlanError for an unknown tag."""
        tag = self.take(1)
        read = READERS.get(tag)
        if read is None:
            raise PlanError(f"an unknown tag, {tag!r}, at byte {self._at - 1}")
        self._depth += 1
        if self._depth > DEPTH:
            raise PlanError(f"values are nested more than {DEPTH} deep")
        value = read(self)
        self._depth -= 1
        return value

    def take(self, n: int) -> bytes:
        """The next n bytes. Raises PlanError if fewer are left."""
        at = self._at
        if n > self._end - at:
            raise PlanError("the data ends in the middle of a value")
        self._at = at + n
        return self._data[at : at + n]

    def at_end(self) -> bool:
        """Whether all bytes are read."""
        return self._at == len(self._data)

    def count(self) -> int:
        """The inverse of `Writer.count`."""
        at = self._at
        if at < self._end and (byte := self._data[at]) < 0x80:  # nearly always
            self._at = at + 1
            return byte
        n = shift = 0
        while True:
            (byte,) = self.take(1)
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                return n
            shift += 7
            if shift > 63:
                raise PlanError("a count of more than 64 bits")

    def raw(self) -> bytes:
        """The inverse of `Writer.raw`."""
        return self.take(self.count())

    def text(self) -> str:
        """The inverse of `Writer.text`. Raises PlanError for invalid UTF-8."""
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
        values = {}
        for name, test in _tests_of(cls, tuple(fields)):
            value = values[name] = self.value()
            if not test(value):
                wanted = name_of(fields_of(cls)[name])
                raise PlanError(
                    f"{cls.__name__}.{name} has to be {wanted}; a {type(value).__name__} is there"
                )
        return cls(**values)


@functools.cache
def _tests_of(cls: type, fields: tuple[str, ...]) -> tuple[tuple[str, Test], ...]:
    """The fields of a record with the tests of their values."""
    declared = fields_of(cls)
    return tuple((name, test_of(declared[name])) for name in fields)


# ------------------------------------------------------------------------------------------------------------- integers


def _write_int(w: Writer, n: int) -> None:
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    if len(data) > INT_BYTES:
        raise PlanError(f"an integer of {len(data)} bytes has no form in bytes")
    w.data += b"i"
    w.raw(data)


def _read_int(r: Reader) -> int:
    data = r.raw()
    if len(data) > INT_BYTES:
        raise PlanError(f"an integer of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


# ------------------------------------------------------------------------------------------------- symbolic expressions


def _write_sum(w: Writer, e: Expr) -> None:
    w.data += b"z"
    w.value(e.const)
    w.count(len(e.terms))
    for atoms, coefficient in e.terms:
        w.value(coefficient)
        w.items(atoms)


def _read_sum(r: Reader) -> Size:
    total: Size = r.of(int)
    for _ in range(r.count()):
        term: Size = r.of(int)
        for _ in range(r.count()):
            term = term * r.of(Atom)
        total = total + term
    return total


def _write_symbol(w: Writer, s: Sym) -> None:
    w.data += b"y"
    w.text(s.name)
    w.value(s.lo)
    w.value(s.hi)


def _read_symbol(r: Reader) -> Sym:
    name, lo, hi = r.text(), r.of(int), r.of(int)
    if lo > hi:
        raise PlanError(f"a symbol from {lo} to {hi}")
    return Sym(name, lo, hi)


def _write_quotient(w: Writer, q: Quotient) -> None:
    w.data += b"/" if q.op == "floordiv" else b"%"
    w.value(q.left)
    w.value(q.right)


def _read_quotient(r: Reader) -> Size:
    left, right = _divided(r)
    return left // right


def _read_modulo(r: Reader) -> Size:
    left, right = _divided(r)
    return left % right


def _divided(r: Reader) -> tuple[Size, Size]:
    left, right = r.like(Size, "a dividend"), r.like(Size, "a divisor")
    if isinstance(right, int) and right <= 0:
        raise PlanError(f"a size divided by {right}")
    return left, right


# --------------------------------------------------------------------------------------------------------------- torch's


def _write_device(w: Writer, device: torch.device) -> None:
    w.data += b"D"
    w.text(device.type)
    w.value(device.index)


def _read_device(r: Reader) -> torch.device:
    kind, index = r.text(), r.like(int | None, "a device's index")
    if index is not None and not 0 <= index < 128:  # torch keeps it in eight bits, with a sign
        raise PlanError(f"a device of index {index}")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError as error:
        raise PlanError(f"an unknown device, {kind!r}") from error


def _write_operator(w: Writer, op: OpOverload) -> None:
    w.data += b"o"
    w.text(op._schema.name)
    w.text(op._overloadname)


def _read_operator(r: Reader) -> OpOverload:
    name, overload = r.text(), r.text()
    space, _, base = name.partition("::")
    try:
        op = getattr(getattr(getattr(torch.ops, space), base), overload)
    except (AttributeError, RuntimeError) as error:
        raise PlanError(f"an unknown operator, {name}.{overload}: is its library imported?") from error
    if not isinstance(op, OpOverload):
        raise PlanError(f"{name}.{overload} is no operator")
    return op


def _write_tensor(w: Writer, t: torch.Tensor) -> None:
    """Append dtype, sizes, strides, and the bytes from the first to the last element."""
    if t.device.type != "cpu" or t.layout is not torch.strided:
        raise PlanError(f"a constant on {t.device} with layout {t.layout} has no form in bytes")
    t = t.detach().resolve_conj().resolve_neg()
    span = _span(t.shape, t.stride())
    memory = torch.as_strided(t, (span,), (1,), t.storage_offset()).contiguous()
    w.data += b"x"
    for value in (t.dtype, tuple(t.shape), t.stride()):
        w.value(value)
    w.raw(ctypes.string_at(memory.data_ptr(), span * t.itemsize) if span else b"")


def _read_tensor(r: Reader) -> torch.Tensor:
    dtype, shape, stride = r.of(torch.dtype), r.of(tuple[int, ...]), r.of(tuple[int, ...])
    data = r.raw()
    if len(data) != _span(shape, stride) * dtype.itemsize:
        raise PlanError(f"{len(data)} bytes for a tensor of {dtype} with sizes {shape} and strides {stride}")
    try:
        # A copy, so that torch aligns it.
        memory = (
            torch.frombuffer(bytearray(data), dtype=dtype).clone() if data else torch.empty(0, dtype=dtype)
        )
        return torch.as_strided(memory, shape, stride)
    except RuntimeError as error:
        raise PlanError(f"a tensor that cannot be: {error}") from error


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last. Raises PlanError for sizes that torch cannot represent."""
    fits = len(shape) == len(stride) and all(0 <= n < INT64 for n in (*shape, *stride))
    if not fits or math.prod(max(n, 1) for n in shape) >= INT64:
        raise PlanError(f"a tensor with sizes {tuple(shape)} and strides {tuple(stride)}")
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def _named(
    tag: bytes, kinds: Mapping[str, Any]
) -> tuple[Callable[[Writer, Any], None], Callable[[Reader], Any]]:
    """Writers and readers of the values of `kinds` by their names."""
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
    """The values of `cls` in torch by canonical name (some dtypes have two)."""
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
    try:
        return dict(zip(flat[::2], flat[1::2]))
    except TypeError as error:
        raise PlanError(f"a key that cannot be: {error}") from error


# By class. Where the class itself has no entry, the first that the value is an instance of (a `torch.Size` is a tuple).
_WRITERS: dict[type, Callable[[Writer, Any], None]] = {
    bool: _write_bool, int: _write_int, type(None): _fixed(b"N"), float: _write_float, complex: _write_complex,
    str: _write_text, bytes: _write_bytes, tuple: _write_tuple, list: _write_list, dict: _write_dict,
    Sym: _write_symbol, Quotient: _write_quotient, Expr: _write_sum, torch.dtype: _write_dtype,
    torch.layout: _write_layout, torch.memory_format: _write_format, torch.device: _write_device,
    OpOverload: _write_operator, torch.Tensor: _write_tensor,
}  # fmt: skip

READERS: dict[bytes, Callable[[Reader], Any]] = {
    b"T": lambda r: True, b"F": lambda r: False, b"N": lambda r: None, b"i": _read_int,
    b"d": lambda r: struct.unpack("<d", r.take(8))[0], b"c": lambda r: complex(*struct.unpack("<dd", r.take(16))),
    b"s": Reader.text, b"b": Reader.raw, b"(": lambda r: tuple(r.items()), b"[": Reader.items, b"{": _read_dict,
    b"y": _read_symbol, b"/": _read_quotient, b"%": _read_modulo, b"z": _read_sum, b"t": _read_dtype,
    b"l": _read_layout, b"m": _read_format, b"D": _read_device, b"o": _read_operator, b"x": _read_tensor,
    b"R": Reader.record,
}  # fmt: skip
