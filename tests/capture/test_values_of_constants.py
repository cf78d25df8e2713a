"""Immutable arguments: the compiled frame returns and passes on those of its own call."""

from __future__ import annotations

import datetime
import decimal
import math
import pathlib
import types
import zlib
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.capture.reconstruction.constants import CONSTANTS, LITERALS
from smelt.torch_private import SDPBackend

ADD, EAST, WEST = torch.ops.aten.add, *(datetime.timezone(datetime.timedelta(hours=h)) for h in (1, -1))
DAY, FIELDS = datetime.datetime(2000, 1, 1), vars(types.FunctionType)
PAIRS: list[tuple[Any, Any]] = [
    (1, 2), (True, False), ("a", "b"), (b"a", b"b"), (None, ...), (NotImplemented, 1), (1.0, 2.0), (1j, 2j),
    (range(2), range(3)), (torch.int8, torch.int16), (torch.device("cpu"), torch.device("meta")),
    (torch.strided, torch.sparse_coo), (torch.channels_last, torch.preserve_format),
    (torch.finfo(torch.half), torch.finfo(torch.double)), (torch.iinfo(torch.int8), torch.iinfo(torch.int16)),
    (ADD, torch.ops.aten.mul), (ADD.Tensor, ADD.Scalar), (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION), (len, abs),
    (str.upper, str.lower), (int.__add__, int.__sub__), (vars(dict)["fromkeys"], vars(float)["fromhex"]),
    (FIELDS["__code__"], FIELDS["__name__"]), (FIELDS["__doc__"], FIELDS["__globals__"]),
    ((lambda: 1).__code__, (lambda: 2).__code__), (math, zlib), (list[int], list[str]), (int | str, int | float),
    (DAY.date(), datetime.date(2001, 1, 1)), (datetime.time(1, tzinfo=EAST), datetime.time(1, tzinfo=WEST)),
    (DAY, DAY.replace(tzinfo=EAST)), (datetime.timedelta(1), datetime.timedelta(2)), (EAST, WEST),
    (decimal.Decimal("1"), decimal.Decimal("1.0")), (pathlib.Path("a"), pathlib.Path("b")),
    (pathlib.PureWindowsPath("a"), pathlib.PureWindowsPath("b")),
    (np.random._pickle.__randomstate_ctor, np.random._pickle.__generator_ctor),  # type: ignore[attr-defined]
]  # fmt: skip


def test_that_every_class_of_constants_has_a_pair() -> None:
    assert {*CONSTANTS, *LITERALS} <= {type(x) for pair in PAIRS for x in pair}


@pytest.mark.parametrize("pair", PAIRS, ids=[type(a).__name__ for a, _ in PAIRS])
def test_constants_of_each_call(pair: tuple[Any, Any]) -> None:
    seen: list[Any] = []

    def f(x: torch.Tensor, p: Any) -> Any:
        y = x + 1
        smelt.graph_break()
        seen.append(p)
        return y * 2, p, [p]

    for program in (f, lambda x, p: (x + 1, p, [p])):
        compiled = smelt.compile(program, options={"recompile_limit": 100})
        for p in (*pair, *pair):
            _, result, (inner,) = compiled(torch.ones(2), p)
            assert repr(result) == repr(p) and type(result) is type(p) and inner is result
            assert program is not f or repr(seen.pop()) == repr(p)


def test_paths_made_inside() -> None:
    def f(x: torch.Tensor, p: pathlib.Path) -> Any:
        return x + len(p.name), p / "a", p.parent, pathlib.Path("q")

    compiled = smelt.compile(f, fullgraph=True)
    for name in ("a", "bc", "a"):
        p = pathlib.Path(name) / name
        assert compiled(torch.ones(2), p)[1:] == f(torch.ones(2), p)[1:]
