"""Objects that differ at each call and that the program only passes on: two entries serve all of them."""

from __future__ import annotations

import datetime
import decimal
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.report.inspect import records
from tests.harness.agreement import same

CALLS = 20


class Mode(enum.Enum):
    A, B, C = range(3)


class Level(enum.IntEnum):
    LOW, HIGH = range(2)


Kind = Callable[[int], Any]
KINDS: dict[str, Kind] = {
    "tuple": lambda n: tuple(range(n % 7)),
    "tuple of other types": lambda n: (None, n) if n % 2 else (b"a", "b"),
    "tuple of tensors": lambda n: (torch.ones(2),) * (n % 5),
    "bytes": lambda n: bytes(range(n)),
    "complex": lambda n: complex(n, 1),
    "int32": np.int32,
    "float16": np.float16,
    "bool_": lambda n: np.bool_(n % 2),
    "datetime64": lambda n: np.datetime64(n, "D"),
    "text": "name{}".format,
    "frozenset": lambda n: frozenset((n, n + 1)),
    "range": range,
    "slice": lambda n: slice(n) if n % 2 else slice(1, None),
    "shape": lambda n: torch.Size(range(n % 4)),
    "enum": lambda n: tuple(Mode)[n % 3],
    "int enum": lambda n: tuple(Level)[n % 2],
    "long int": lambda n: n << 70,
    "decimal": decimal.Decimal,
    "date": lambda n: datetime.date(2000, 1, 1 + n),
    "bound method": lambda n: f"name{n}".startswith,
    "class": lambda n: (int, float, str, list, dict, tuple, set, bytes, complex)[n % 9],
}
holder = types.SimpleNamespace()


def eager(value: object) -> str:
    return type(value).__name__


disabled = torch.compiler.disable(eager)


def unread(x: torch.Tensor, value: Any) -> Any:
    return x * 2


def stored(x: torch.Tensor, value: Any) -> Any:
    holder.last = value
    holder.all = [value] * 2
    return x * 2


def returned(x: torch.Tensor, value: Any) -> Any:
    return x * 2, value, {"value": (value,)}, dict(value=value)


def passed_to_a_function(x: torch.Tensor, value: Any) -> Any:
    def inner(y: torch.Tensor, unread: Any, default: Any = value) -> Any:
        return y + 1, default

    return inner(x, value)


def read_by_eager_code(x: torch.Tensor, value: Any) -> Any:
    y = x.sin()
    text = disabled(value)
    return y + 1, text


def known_by_its_class(x: torch.Tensor, value: Any) -> Any:
    is_text = isinstance(value, str) or value is None or callable(x)
    return x * (2 if is_text else 3), type(value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program",
    [unread, stored, returned, passed_to_a_function, read_by_eager_code, known_by_its_class],
    ids=lambda f: f.__name__,
)
def test_two_entries_serve_all_values(program: Callable[..., Any], kind: str) -> None:
    compiled = smelt.compile(program)
    for number in range(CALLS):
        x, value = torch.randn(3), KINDS[kind](number)
        vars(holder).clear()
        expected, effects = program(x, value), dict(vars(holder))
        vars(holder).clear()
        result = compiled(x, value)
        same(result, expected)
        same(dict(vars(holder)), effects)
        assert program is not returned or result[1] is value
    found = dict(records(compiled))
    assert all(len(record.entries) <= (1 if program is unread else 2) for record in found.values())
    reasons = {r.kind.id for record in found.values() for r in record.reasons}
    assert reasons <= {"disabled-function"}


READERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "length": ("tuple", lambda x, value: x + len(value)),
    "items": ("tuple", lambda x, value: x + sum(value)),
    "unpacked": ("tuple", lambda x, value: torch.stack([x, x])[:, : len([*value])]),
    "equal": ("bytes", lambda x, value: x + (value == b"\0\1\2")),
    "truth": ("bytes", lambda x, value: x + 1 if value else x),
    "contains": ("frozenset", lambda x, value: x + (3 in value)),
    "key": ("enum", lambda x, value: x + {Mode.A: 1, Mode.B: 2}.get(value, 3)),
    "identity": ("enum", lambda x, value: x + (value is Mode.B)),
    "attribute": ("enum", lambda x, value: x + value.value),
    "factor": ("complex", lambda x, value: x * value),
    "scalar": ("int32", lambda x, value: x * value),
    "scalars": ("int32", lambda x, value: x + torch.tensor([value, value, 1])),
    "text": ("date", lambda x, value: (x, f"{value}", str([value]))),
    "percent": ("tuple", lambda x, value: (x, "%d" * len(value) % value)),
    "index": ("slice", lambda x, value: x[value]),
    "called": ("bound method", lambda x, value: x + value("name1")),
    "built": ("class", lambda x, value: (x, value(), isinstance(3, value), issubclass(bool, value))),
    "address": ("bytes", lambda x, value: (x, id(value) == id(value))),
    "hash": ("decimal", lambda x, value: (x, hash(value))),
    "joined": ("tuple", lambda x, value: (x, ",".join(map(str, value)), sorted([value, (1,)]))),
}


@pytest.mark.parametrize("name", READERS)
def test_a_value_that_is_read_decides(name: str) -> None:
    kind, program = READERS[name]
    compiled = smelt.compile(program)
    for number in range(CALLS):
        x, value = torch.randn(3), KINDS[kind](number)
        same(compiled(x, value), program(x, value))
    found = dict(records(compiled))
    assert not [r for record in found.values() for r in record.reasons if r.kind.id == "recompile-limit"]


def matched(x: torch.Tensor, value: Any) -> Any:
    match value:
        case (first, *rest):
            return x, first, rest
        case {"a": 1} | str():
            return x, 1
        case bytes() | Mode.A:
            return x, 2
        case _:
            return x, 3


@pytest.mark.parametrize("kind", ["tuple", "bytes", "enum", "range"])
def test_a_value_that_is_matched(kind: str) -> None:
    compiled = smelt.compile(matched)
    for number in range(CALLS):
        x, value = torch.randn(3), KINDS[kind](number)
        same(compiled(x, value), matched(x, value))


def test_only_what_is_read_is_guarded() -> None:
    def program(x: torch.Tensor, mode: Mode, name: str, shape: tuple[int, ...]) -> Any:
        holder.last = name, shape
        return x + 1 if mode is Mode.A else x - 1

    compiled = smelt.compile(program)
    for number in range(CALLS):
        arguments = KINDS["enum"](number), f"name{number}", tuple(range(number % 7))
        x = torch.randn(3)
        same(compiled(x, *arguments), program(x, *arguments))
    ((_, record),) = records(compiled)
    assert not record.reasons and len(record.entries) == 4  # the first, and one for each mode


def test_an_error_that_the_program_handles() -> None:
    """The proxy is no integer and has no such method; the object may be one, or have it."""

    def program(x: torch.Tensor, value: Any, level: Any) -> Any:
        try:
            return x + torch.zeros([value.itemsize])[0] + [1, 2][level]
        except (TypeError, AttributeError):
            return x - 1

    compiled = smelt.compile(program)
    for number in range(6):
        x, arguments = torch.randn(3), (np.int32(number), Level(number % 2))
        same(compiled(x, *arguments), program(x, *arguments))


def test_a_bound_method_of_a_text_that_changes() -> None:
    def program(x: torch.Tensor, name: str) -> Any:
        holder.starts = name.startswith
        return x * 2, name.upper

    compiled = smelt.compile(program)
    for number in range(CALLS):
        x, name = torch.randn(3), f"name{number}"
        result, upper = compiled(x, name)
        same(result, x * 2)
        assert upper() == name.upper() and holder.starts.__self__ is name and holder.starts("name")
    ((_, record),) = records(compiled)
    assert not record.reasons and len(record.entries) == 2


def test_a_tensor_in_place_of_a_scalar() -> None:
    """The guard of a NumPy scalar calls its `item`, which a tensor of two elements refuses."""
    values: list[Any] = []

    def program(x: torch.Tensor, value: Any) -> Any:
        values.append(value)
        return x * 2

    compiled = smelt.compile(program)
    for value in (np.int32(1), np.int32(2), torch.ones(2), "a"):
        same(compiled(torch.ones(2), value), torch.ones(2) * 2)
        assert values[-1] is value
    ((_, record),) = records(compiled)
    assert not record.reasons


def test_an_array_whose_shape_changes() -> None:
    def program(x: torch.Tensor, unread: Any, array: Any) -> Any:
        holder.last = unread
        return x.sum() + torch.from_numpy(array).sum()

    compiled = smelt.compile(program)
    for number in range(CALLS):
        x, arrays = torch.randn(3), (np.ones(number + 1), np.ones((number + 1, 2)))
        same(compiled(x, *arrays), program(x, *arrays))
        assert holder.last is arrays[0]
    assert not [r for _, record in records(compiled) for r in record.reasons]


class Long(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return len(value) > 2


class Even(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return bool(value % 2 == 0)


@pytest.mark.parametrize("kind", ["tuple", "bytes", "text", "int", "range"])
def test_a_metaclass_that_reads_the_value(kind: str) -> None:
    checked: Any = Even("Checked", (), {}) if kind == "int" else Long("Checked", (), {})

    def program(x: torch.Tensor, value: Any) -> Any:
        return x * 2 if isinstance(value, (dict, checked)) else x + 1

    compiled = smelt.compile(program)
    for number in range(6):
        x, value = torch.randn(3), {"int": int, "text": lambda n: "a" * n, **KINDS}[kind](number)
        same(compiled(x, value), program(x, value))


def test_the_class_of_a_proxy() -> None:
    """Neither `__class__` nor `isinstance` shows what stands for an array, a text, or a method of these."""

    def program(x: torch.Tensor) -> Any:
        array, text = x.numpy(), f"{x}"
        values = (array, array.sum(), text, array.sum, text.count)
        names = [hasattr(value, "__name__") for value in values]
        kinds = [
            (type(value), value.__class__, isinstance(value, types.BuiltinMethodType)) for value in values
        ]
        return x + 1, kinds, names

    x = torch.randn(3)
    same(smelt.compile(program)(x), program(x))
