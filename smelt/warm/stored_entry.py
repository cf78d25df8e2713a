"""Stored entries: guards and the compiled frame as JSON, the plan as in serialized plans.

    entry  := number lengths json graphs plans (libraries steps)*
                                                   number of sections and their lengths: 8 bytes each, little-endian
    json   := {table, facts, nodes, collect, weak, frame, graph, graphs, gpus}
                                                   graphs: the SHA-256 of `graphs`; gpus: the identity of each
                                                   GPU (`gpu_identity.identity`)
    graph  := {sizes, symbols, constants, title}   sizes: what each symbol is read from (`_native.SizeDispatch`);
                                                   constants: of `graphs`
            and with gradients {node}              (`stored_node.py`)
    graphs := bytes                                the graphs, where a call may need another plan (`compile_again.py`)
    plans  := [role, sizes | null, constants, replays]*
                                                   sizes: of a plan for these alone; replays: as a CUDA graph; in JSON
    constants := [dtype, sizes, strides, hex, device]*
    table  := as in live_objects.py, digests in hexadecimal
    nodes  := [parent, kind, form of the key, [[guard, kind, form of the value]*], number in `inputs`]*
    form   := null | bool | int | float | text    that constant
            | ["t", form*] | ["s", form*] | ["z", form*]   tuple, torch.Size, frozenset
            | ["r", number]                        an object of the table
            | ["k", kind, name]                    a dtype, layout, memory format or device of torch
            | ["b", hex] | ["c", real, imag] | ["l", form, form, form] | ["g", a, b, c] | ["e"] | ["n"]
                                                   bytes, complex, slice, range, Ellipsis, NotImplemented
    value  := form | ["F", number] | ["C", names, parts] | ["T", number of facts, reads] | ["A", registration*]
    frame  := {source, name, label, flags, scope, positions, direct}
                                                   scope: what each global of the source is; positions: the code of
                                                   functions that show lines of the program

Readers trust nothing: bytes that are no entry raise Damaged, a form that does not fit raises that or an ordinary error
(KeyError, TypeError), or Missing. `find_entry` treats all of these as a miss.
"""

from __future__ import annotations

import abc
import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt import _native
from smelt.guards.tensor_facts import TensorFacts
from smelt.warm.live_objects import Missing, load_class_facts

_LENGTH = struct.Struct("<Q")
_KINDS: dict[str, type] = {
    "dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device,
}  # fmt: skip


class Damaged(ValueError):
    """Bytes that are no stored entry."""


@dataclass(frozen=True)
class StoredPlan:
    """A plan of an entry. `role`: which graph of the entry has it (`Role`); `sizes`: the sizes that it is for, or None for
    all that it covers; `libraries`, `steps`: sections of `plans_to_bytes`; `replays`: as a CUDA graph."""

    role: tuple[Any, ...]
    sizes: tuple[int, ...] | None
    constants: list[list[Any]]
    libraries: bytes
    steps: bytes
    replays: bool = False

    def linked(self) -> _native.ProgramPlans:
        """The plan with its machine code and its constants. Raises ValueError for bytes that are none."""
        constants = tuple([constant(form) for form in self.constants])
        return _native.ProgramPlans(self.libraries, ((self.steps, constants),))

    @property
    def row(self) -> list[Any]:
        """The plan's row in the entry's list of plans."""
        return [self.role, self.sizes, self.constants, self.replays]


@dataclass(frozen=True)
class StoredEntry:
    """`data`: guards, frame and graph; `graphs`: aten graphs, or nothing; `plans`: calls may add more."""

    data: dict[str, Any]
    graphs: bytes
    plans: tuple[StoredPlan, ...]

    def to_bytes(self) -> bytes:
        """The stored bytes."""
        plans = [part for plan in self.plans for part in (plan.libraries, plan.steps)]
        return _joined([_json(self.data), self.graphs, _json([p.row for p in self.plans]), *plans])


MOST_PLANS = 16  # of an entry


def merged(first: bytes, second: bytes) -> bytes:
    """The stored bytes of an entry with the plans of both. Raises Damaged."""
    one, other = from_bytes(first), from_bytes(second)
    more = [plan for plan in other.plans if plan not in one.plans]
    return StoredEntry(one.data, one.graphs, (*one.plans, *more)[:MOST_PLANS]).to_bytes() if more else first


def entry_digest(content: bytes) -> bytes:
    """The digest of an entry, whichever plans it has. Raises Damaged."""
    data, graphs, *_ = _sections(content)
    return hashlib.sha256(hashlib.sha256(data).digest() + graphs).digest()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join((_LENGTH.pack(len(parts)), *(_LENGTH.pack(len(part)) for part in parts), *parts))


def _sections(content: bytes) -> list[bytes]:
    width = _LENGTH.size
    count = _LENGTH.unpack_from(content)[0] if len(content) >= width else 0
    begin = width * (count + 1)
    if count < 3 or not count % 2 or begin > len(content):
        raise Damaged("not the sections that it states")
    parts = []
    for (length,) in _LENGTH.iter_unpack(content[width:begin]):
        parts.append(content[begin : begin + length])
        begin += length
    if begin != len(content):
        raise Damaged("not the lengths that it states")
    return parts


def constant_form(tensor: torch.Tensor) -> list[Any]:
    """The stored form of a constant: dtype, sizes, strides, its bytes from the first to the last element, and its device."""
    count = _extent(tensor.shape, tensor.stride())
    content = tensor.as_strided((count,), (1,)).cpu().view(torch.uint8).numpy().tobytes()
    return [
        str(tensor.dtype).removeprefix("torch."),
        list(tensor.shape),
        list(tensor.stride()),
        content.hex(),
        str(tensor.device),
    ]


def constant(form: Sequence[Any]) -> torch.Tensor:
    """The constant of a stored form."""
    dtype, shape, stride, content, device = form
    found, count = _torch("dtype", dtype), _extent(shape, stride)
    data = bytearray.fromhex(content)
    if len(data) != count * found.itemsize:
        raise Damaged("a constant of another size")
    if not count:
        return torch.empty_strided(shape, stride, dtype=found, device=device)
    return torch.frombuffer(data, dtype=found).to(device).as_strided(shape, stride)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements from the first to the last, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def from_bytes(content: bytes) -> StoredEntry:
    """The entry that `to_bytes` wrote. Raises Damaged."""
    text, graphs, table, *parts = _sections(content)
    try:
        data, rows = json.loads(text), json.loads(table)
        plans = [
            StoredPlan(as_tuples(role), as_tuples(sizes), constants, libraries, steps, replays)
            for (role, sizes, constants, replays), libraries, steps in zip(
                rows, parts[::2], parts[1::2], strict=True
            )
        ]
    except (ValueError, TypeError) as error:
        raise Damaged(str(error)) from None
    if not isinstance(data, dict):
        raise Damaged("no object")
    return StoredEntry(data, graphs, tuple(plans))


def as_tuples(value: Any) -> Any:
    """`value`, with tuples in place of lists, also of nested ones."""
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


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
            cls, dtype, device, shape, stride, *flags = self._facts[number]
            requires_grad, conj_neg, inference = flags
            facts = self._made[number] = TensorFacts(
                self._objects[cls], _torch("dtype", dtype), torch.device(device), tuple(shape), tuple(stride),
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
