"""Stored entries: guards and the compiled frame as JSON, the plan as in serialized plans.

    entry  := lengths json libraries plan         lengths: of the three sections, 8 bytes each, little-endian
    json   := {table, facts, nodes, collect, weak, frame, constants}
    constants := [dtype, sizes, strides, hex]*
    table  := as in live_objects.py, digests in hexadecimal
    nodes  := [parent, kind, form of the key, [[guard, kind, form of the value]*], number in `inputs`]*
    form   := null | bool | int | float | text    that constant
            | ["t", form*] | ["s", form*] | ["z", form*]   tuple, torch.Size, frozenset
            | ["r", number]                        an object of the table
            | ["k", kind, name]                    a dtype, layout, memory format or device of torch
            | ["b", hex] | ["c", real, imag] | ["l", form, form, form] | ["g", a, b, c] | ["e"] | ["n"]
                                                   bytes, complex, slice, range, Ellipsis, NotImplemented
    value  := form | ["F", number] | ["C", names, parts] | ["T", number of facts, reads] | ["A", registration*]
    frame  := {source, name, label, flags, scope, direct}   scope: what each global of the source is

Readers trust nothing: bytes that are no entry raise Damaged, a form that does not fit raises that or an ordinary error
(KeyError, TypeError), or Missing. `find_entry` treats all of these as a miss.
"""

from __future__ import annotations

import abc
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.guards.tensor_facts import TensorFacts
from smelt.warm.live_objects import Missing, load_class_facts

_LENGTHS = struct.Struct("<QQQ")
_KINDS: dict[str, type] = {
    "dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device,
}  # fmt: skip


class Damaged(ValueError):
    """Bytes that are no stored entry."""


@dataclass(frozen=True)
class StoredEntry:
    """`data`: guards, frame and constants; `libraries`, `plan`: sections of `plans_to_bytes`."""

    data: dict[str, Any]
    libraries: bytes
    plan: bytes

    def to_bytes(self) -> bytes:
        """The stored bytes."""
        text = json.dumps(self.data, separators=(",", ":")).encode()
        parts = (text, self.libraries, self.plan)
        return _LENGTHS.pack(*map(len, parts)) + b"".join(parts)

    def constants(self) -> tuple[torch.Tensor, ...]:
        """The constants of the plan."""
        return tuple([_constant(*form) for form in self.data["constants"]])


def constant_form(tensor: torch.Tensor) -> list[Any]:
    """The stored form of a constant on the CPU: dtype, sizes, strides, and its bytes from the first to the last element."""
    count = _extent(tensor.shape, tensor.stride())
    content = tensor.as_strided((count,), (1,)).view(torch.uint8).numpy().tobytes()
    return [
        str(tensor.dtype).removeprefix("torch."),
        list(tensor.shape),
        list(tensor.stride()),
        content.hex(),
    ]


def _constant(dtype: str, shape: Sequence[int], stride: Sequence[int], content: str) -> torch.Tensor:
    found, count = _torch("dtype", dtype), _extent(shape, stride)
    data = bytearray.fromhex(content)
    if len(data) != count * found.itemsize:
        raise Damaged("a constant of another size")
    if not count:
        return torch.empty_strided(shape, stride, dtype=found)
    return torch.frombuffer(data, dtype=found).as_strided(shape, stride)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements from the first to the last, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def from_bytes(content: bytes) -> StoredEntry:
    """The entry that `to_bytes` wrote. Raises Damaged."""
    if len(content) < _LENGTHS.size:
        raise Damaged("too short")
    lengths = _LENGTHS.unpack_from(content)
    if _LENGTHS.size + sum(lengths) != len(content):
        raise Damaged("not the lengths that it states")
    begin, parts = _LENGTHS.size, []
    for length in lengths:
        parts.append(content[begin : begin + length])
        begin += length
    try:
        data = json.loads(parts[0])
    except ValueError as error:
        raise Damaged(str(error)) from None
    if not isinstance(data, dict):
        raise Damaged("no object")
    return StoredEntry(data, parts[1], parts[2])


# ----------------------------------------------------------------------------------------------------- values from forms


class FormReader:
    """Values from forms. `objects`: those of the table, as far as they are resolved."""

    def __init__(self, objects: Sequence[Any], facts: Sequence[Any], version: Callable[[type], int]) -> None:
        self._objects, self._version_of = objects, version
        self._facts = facts
        self._made: dict[int, TensorFacts] = {}
        self._classes: dict[Any, Any] = {}  # whose attributes are compared already

    def value(self, form: Any) -> Any:
        """The value of a form."""
        if type(form) is not list:
            return form
        return _FORMS[form[0]](self, *form[1:])

    def nodes(self, rows: Sequence[Any]) -> tuple[Any, ...]:
        """The nodes that a native guard tree is built from."""
        value = self.value
        return tuple(
            [
                (parent, kind, value(key), tuple([(i, check, value(v)) for i, check, v in checks]), collect)
                for parent, kind, key, checks, collect in rows
            ]
        )

    def _function(self, number: int) -> Any:
        f = self._objects[number]
        return f.__code__, f.__defaults__, f.__kwdefaults__

    def _registry_token(self, registrations: Any) -> object:
        for cls, base, known in registrations:
            if issubclass(self._objects[cls], self._objects[base]) is not known:
                raise Missing("a registration has changed")
        return abc.get_cache_token()

    def _tensor(self, number: int, reads: Any) -> Any:
        facts = self._made.get(number)
        if facts is None:
            cls, dtype, shape, stride, *flags = self._facts[number]
            requires_grad, conj_neg, inference = flags
            facts = self._made[number] = TensorFacts(
                self._objects[cls], _torch("dtype", dtype), torch.device("cpu"), tuple(shape), tuple(stride),
                requires_grad, torch.strided, conj_neg, inference,
            )  # fmt: skip
        return (facts, tuple([tuple(read) for read in reads])) if reads else facts


def _torch(kind: str, name: str) -> Any:
    found = torch.device(name) if kind == "device" else getattr(torch, name)
    if type(found) is not _KINDS[kind]:
        raise Damaged(f"torch.{name}")
    return found


_FORMS: dict[str, Callable[..., Any]] = {
    "t": lambda r, *items: tuple([r.value(i) for i in items]),
    "s": lambda r, *items: torch.Size([r.value(i) for i in items]),
    "z": lambda r, *items: frozenset([r.value(i) for i in items]),
    "r": lambda r, number: r._objects[number],
    "k": lambda r, kind, name: _torch(kind, name),
    "b": lambda r, text: bytes.fromhex(text),
    "c": lambda r, real, imag: complex(real, imag),
    "l": lambda r, *parts: slice(*[r.value(p) for p in parts]),
    "g": lambda r, *parts: range(*parts),
    "e": lambda r: ...,
    "n": lambda r: NotImplemented,
    "F": FormReader._function,
    "C": lambda r, *stored: load_class_facts(stored, r._objects, r._version_of, r._classes),
    "T": FormReader._tensor,
    "A": FormReader._registry_token,
}
