"""What native code does to outside objects happens once a call, as in eager: it is replayed, or the call is not captured.

Each program gives a function and what is left behind; both are compared with eager's over several calls.
"""

from __future__ import annotations

import collections
import csv
import functools
import heapq
import io
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons

Program = tuple[Callable[[torch.Tensor], object], Callable[[], object]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def _changing(name: str, make: Callable[[], Any], change: Callable[[Any], object]) -> None:
    """A program that calls a native function which changes what `make` gives."""

    def program() -> Program:
        held = make()
        return lambda x: (x + 1, change(held)), lambda: held

    PROGRAMS[name] = program


def _numbers() -> list[int]:
    return list(range(9))


_append = operator.methodcaller("append", 5)
_pop = operator.methodcaller("pop", 0)
_sort = operator.methodcaller("sort", reverse=True)
for _name, _make, _change in (
    ("delitem", _numbers, lambda v: operator.delitem(v, 0)),
    ("setitem", _numbers, lambda v: operator.setitem(v, 0, v[0] + 1)),
    ("iconcat", _numbers, lambda v: len(operator.iconcat(v, [1]))),
    ("iadd", _numbers, lambda v: len(operator.iadd(v, [1]))),
    ("imul", lambda: [1], lambda v: len(operator.imul(v, 2))),
    ("ior", dict, lambda v: len(operator.ior(v, {len(v): 1}))),
    ("isub", lambda: set(range(9)), lambda v: len(operator.isub(v, {len(v) - 1}))),
    ("methodcaller", _numbers, lambda v: (_append(v), _pop(v), _sort(v), len(v))),
    ("heappop", _numbers, lambda v: heapq.heappop(v)),
    ("heappop_max", lambda: [5, 4, 3, 2, 1], lambda v: heapq._heappop_max(v)),
    ("heapreplace_max", lambda: [5, 4, 3, 2, 1], lambda v: heapq._heapreplace_max(v, 0)),
    ("unbound", _numbers, lambda v: list.__delitem__(v, 0)),
    ("reduced", list, lambda v: len(functools.reduce(operator.iadd, [[1], [2]], v))),
    ("rotated", lambda: collections.deque([1, 2, 3]), lambda v: v.rotate(1)),
    ("popitem", lambda: collections.OrderedDict((i, i) for i in range(9)), lambda v: v.popitem(last=False)),
    ("bytearray", lambda: bytearray(b"ab"), lambda v: len(operator.iadd(v, b"x"))),
):  # fmt: skip
    _changing(_name, _make, _change)


def _advancing(name: str, make: Callable[[], Any], ask: Callable[[Any], object]) -> None:
    """A program that advances an iterator from outside, of which the rest is left behind."""

    def program() -> Program:
        held = make()
        return lambda x: (x + 1, ask(held)), lambda: list(itertools.islice(held, 9))

    PROGRAMS[name] = program


def _text() -> io.StringIO:
    return io.StringIO("a\nb\nc\nd\ne\nf\n")


for _name, _make, _change in (
    ("in_text", _text, lambda v: "b\n" in v),
    ("in_bytes", lambda: io.BytesIO(b"a\nb\nc\n"), lambda v: b"a\n" in v),
    ("contains_text", _text, lambda v: operator.contains(v, "b\n")),
    ("count_of_text", _text, lambda v: operator.countOf(v, "b\n")),
    ("next_of_text", _text, next),
    ("unpacked_text", _text, lambda v: [*v]),
    ("in_reader", lambda: csv.reader(["a,b", "c,d", "e,f"]), lambda v: ["a", "b"] in v),
    ("in_iterator", lambda: iter([1, 2, 3, 4, 5, 6]), lambda v: 2 in v),
    ("any_of_iterator", lambda: iter([0, 1, 0, 1, 0, 1]), any),
    ("sliced_count", itertools.count, lambda v: list(itertools.islice(v, 2))),
):  # fmt: skip
    _advancing(_name, _make, _change)


@program
def tensors_are_swapped() -> Program:
    a, b = torch.zeros(2), torch.ones(2)

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.utils.swap_tensors(a, b)
        return x + a.sum()

    return fn, lambda: (a, b)


def _observed(name: str, compile: Callable[[Any], Any]) -> str:
    fn, state = PROGRAMS[name]()
    call, seen = compile(fn), []
    for _ in range(4):
        try:
            seen.append(call(torch.ones(2)))
        except Exception as error:
            seen.append((type(error), str(error)))
    failed = [r for r in reasons(call) if r.kind.id == "internal-error"] if call is not fn else []
    assert not failed, failed
    return repr((seen, state()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_effects_happen_once(name: str) -> None:
    assert _observed(name, smelt.compile) == _observed(name, lambda fn: fn)
