"""Sizes that the program puts into named tuples and other containers stay symbols; code that looks inside sees ints."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import smelt
from smelt.report.inspect import entries, reasons

Point = namedtuple("Point", "n x")


class Sized(NamedTuple):
    x: torch.Tensor
    n: int = 3


class Row(tuple[Any, ...]):
    """Has an attribute beside its elements."""

    def __new__(cls, *items: Any) -> Row:
        made = super().__new__(cls, items)
        made.count_of_items = len(items)  # type: ignore[attr-defined]
        return made


class Rows(list[Any]):
    def __setitem__(self, *_: Any) -> None:
        raise ValueError("it is only read")


class Table(dict[str, Any]):
    def __setitem__(self, *_: Any) -> None:
        raise ValueError("it is only read")


def unpacked(x: torch.Tensor) -> Any:
    a, b = Sized(x, x.shape[1])
    return a * b


HELD: dict[str, Callable[[torch.Tensor], Any]] = {
    "a namedtuple": lambda x: x * Point(x.shape[0], x).n,
    "a NamedTuple": lambda x: x * Sized(x, x.shape[1]).n,
    "a shape": lambda x: x.view(Point(x.shape, x).n[0] * x.shape[1], -1),
    "a tuple inside": lambda x: x * Point((x.shape[0], x.shape[1]), x).n[1],
    "_make": lambda x: x * Point._make([x.shape[0], x]).n,
    "_replace": lambda x: x * Sized(x)._replace(n=x.shape[0]).n,
    "_asdict": lambda x: x * Sized(x, x.shape[1])._asdict()["n"],
    "unpacked": unpacked,
    "given back": lambda x: (Point(x.shape[0], x), Row(x.shape[1], 2)),
    "joined": lambda x: x.new_zeros(Point(x.shape[0], 3) + (2,)),
    "text": lambda x: (x, "%d of %d" % Point(x.shape[0], 2)),  # noqa: UP031
    "products": lambda x: x * math.prod(x.shape) / math.prod([2, *x.shape]) + math.prod(Point(x.shape[0], 2)),
    "a tuple's subclass": lambda x: x * Row(2, x.shape[0])[1] * Row(2).count_of_items,  # type: ignore[attr-defined]
}  # fmt: skip

READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "an array of a namedtuple": lambda x: (x, np.array(Point(x.shape[0], 2)).dtype),
    "an array of a list": lambda x: (x, np.array(Rows([x.shape[0], 2])).dtype),
    "an array of a deque": lambda x: (x, np.array(deque([x.shape[0], 2])).dtype),
    "an array of tuples in a list": lambda x: (x, np.array([Row(x.shape[0], 2)]).dtype),
    "JSON": lambda x: (x, json.dumps([OrderedDict(a=x.shape[0]), Table(b=x.shape[1]), Point(x.shape[0], 2)])),
    "JSON of defaults": lambda x: (x, json.dumps(defaultdict(int, a=x.shape[0]))),
    "a hash": lambda x: (x, hash(Point(x.shape[0], 2)), {Point(x.shape[0], 2): 5}),
    "the text of a tuple": lambda x: (x, str(Row(x.shape[0], 2)), repr(Sized(x.shape[0], 2))),
    "an attribute beside it": lambda x: (x, json.dumps(Row(x.shape[0], 2)), Row(1, x.shape[0]).count_of_items),  # type: ignore[attr-defined]
}  # fmt: skip


def check(f: Callable[[torch.Tensor], Any]) -> Any:
    compiled = smelt.compile(f, dynamic=True)
    for shape in ((3, 5), (4, 7), (6, 5), (8, 9)):
        x = torch.randn(*shape)
        got, want = compiled(x), f(x)
        assert type(got) is type(want)
        for a, b in zip(_pytree.tree_leaves(got), _pytree.tree_leaves(want), strict=True):
            assert type(a) is type(b)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert not reasons(compiled)
    return compiled


@pytest.mark.parametrize("f", HELD.values(), ids=HELD.keys())
def test_sizes_that_are_held_stay_symbols(f: Callable[[torch.Tensor], Any]) -> None:
    assert len(entries(check(f))) == 1


@pytest.mark.parametrize("f", READ.values(), ids=READ.keys())
def test_what_reads_them_sees_ints(f: Callable[[torch.Tensor], Any]) -> None:
    check(f)
