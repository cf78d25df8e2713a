"""Replayed effects, for each kind of effect and of object, leave the same state as eager."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
from torch import nn

from smelt.capture.base.value_kinds import MISSING
from smelt.capture.emit.effect_replay import stores_of
from smelt.capture.environment import side_effects as fx
from smelt.guards.source import Source
from tests.harness.emitted import HandMadeFrame, fake_of_two


class Plain:
    count = 0


class Guarded:
    """Its `__setattr__` is not called: capture has run it already."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(name)


class Slotted:
    __slots__ = ("a",)


class Words(list):
    def __setitem__(self, *a: Any) -> None:
        raise AssertionError


class Table(dict):
    def __setitem__(self, *a: Any) -> None:
        raise AssertionError


def replay(target: Any, *made: fx.Effect, result: Any = None) -> tuple[Any, str]:
    frame = HandMadeFrame()
    frame.obj = target
    frame.sources[id(target)] = Source("arg", "obj", index=1)
    compiled = frame.emit(result, *stores_of(made))
    return compiled.function(frame.x, target, (frame.x,)), compiled.source


@pytest.mark.parametrize("cls", [Plain, Guarded, Slotted, nn.Identity, type("Local", (), {})])
def test_attributes(cls: Any) -> None:
    x, t = cls(), fake_of_two()
    got, source = replay(x, fx.SetAttr(x, "a", t), result=t)
    assert x.a is got
    replay(x, fx.DelAttr(x, "a"))
    assert not hasattr(x, "a")


def test_plain_attributes_are_plain_statements() -> None:
    x = Plain()
    assert "obj.count = 1" in replay(x, fx.SetAttr(x, "count", 1))[1]


def test_classes_functions_and_modules() -> None:
    cls, module = type("C", (), {}), types.ModuleType("m")
    replay(cls, fx.SetAttr(cls, "n", 3))
    replay(module, fx.SetAttr(module, "n", 3))
    replay(replay, fx.SetAttr(replay, "n", 3))
    assert (cls.n, module.n, replay.n) == (3, 3, 3)  # type: ignore[attr-defined]
    replay(cls, fx.DelAttr(cls, "n"))
    assert not hasattr(cls, "n")


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, Table, collections.Counter])
def test_items(make: Any) -> None:
    d = make(a=1, b=2)
    replay(d, fx.SetItem(d, "c", 3), fx.DelItem(d, "a"))
    assert list(d.items()) == [("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    "x, items",
    [
        ([1, 2], (3,)),
        (Words([1]), (2, 3)),
        ({1, 2}, (5,)),
        ({1}, ()),
        (collections.deque([1, 2], maxlen=2), (7, 8)),
        ({"a": 1}, (("b", 1), ("a", 2))),
        (collections.OrderedDict(a=1, b=2), (("b", 2), ("a", 1))),
        (Table(a=1), (("b", 1),)),
        ({}, ()),
    ],
)
def test_contents(x: Any, items: tuple[Any, ...]) -> None:
    replay(x, fx.ReplaceContents(x, items))
    assert tuple(x.items() if isinstance(x, dict) else x) == items


def test_changes_of_a_set() -> None:
    x = {1, 2, "a"}
    text = replay(
        x,
        fx.SetChange(x, "update", ((3, 4),)),
        fx.SetChange(x, "discard", (2,)),
        fx.SetChange(x, "clear", ()),
    )[1]
    assert "set.update(obj, (3, 4))" in text and "set.discard(obj, 2)" in text and not x


def test_an_object_that_holds_itself() -> None:
    x: list[Any] = []
    replay(x, fx.ReplaceContents(x, (x, 1)))
    assert x[0] is x


def test_cells() -> None:
    cell = types.CellType(1)
    replay(cell, fx.SetCell(cell, 2))
    assert cell.cell_contents == 2
    replay(cell, fx.SetCell(cell, MISSING))
    with pytest.raises(ValueError):
        cell.cell_contents
