"""Sizes put in place of symbols in nested values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from smelt.graph.tensor_specs import make_spec
from smelt.loops.kernel_ir import Kernel
from smelt.schedule.schedule import KernelItem
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitute

S, T = Sym("s0", 2), Sym("s1", 2)


class Pair(NamedTuple):
    first: object
    second: object


@dataclass(frozen=True)
class Inner:
    extent: Size
    name: str = ""


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]
    anything: Any
    title: str


@dataclass
class Mutable:
    size: Size


def test_containers_keep_their_classes() -> None:
    value = [S, (S + T, "x"), {"a": slice(0, S)}, Pair(T, None), torch.float32]
    expected = [3, (8, "x"), {"a": slice(0, 3)}, Pair(5, None), torch.float32]
    assert substitute(value, {S: 3, T: 5}) == expected


def test_dataclasses_are_entered_and_mutable_ones_are_leaves() -> None:
    leaf = Mutable(S)
    value = Outer((Inner(2 * S, "n"), Inner(7)), [leaf, T], "title")
    assert substitute(value, {S: 3, T: 5}) == Outer((Inner(6, "n"), Inner(7)), [leaf, 5], "title")


def test_what_does_not_change_is_the_same_object() -> None:
    value = Outer((Inner(7),), ("x", 2.0), "title")
    assert substitute(value, {S: 3}) is value


def test_other_symbols_stay() -> None:
    assert substitute((S + T, T), {S: 3}) == (T + 3, T)
    assert substitute((S + T,), {S: T, T: S}) == (S + T,)


def test_specs_are_interned() -> None:
    spec = make_spec((S, 4), (4, 1), torch.float32, torch.device("cpu"))
    fixed = make_spec((3, 4), (4, 1), torch.float32, torch.device("cpu"))
    assert substitute(spec, {S: 3}) is fixed


def test_kernels_take_their_sizes_as_arguments() -> None:
    item = KernelItem(Kernel.__new__(Kernel), (0,))
    assert substitute([item], {S: 3})[0] is item
