"""The world changes between two calls of a compiled function, and changes back: every call gives eager's answer.

One row is a program and a change of something that its capture read. A row says what the recompile event must name; a row
that says None must not compile again, because the change is not one that the program could see.
"""

from __future__ import annotations

import abc
import builtins
import codecs
import collections
import contextlib
import contextvars
import copy
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import importlib
import inspect
import json
import locale
import logging
import math
import os
import pickle
import reprlib
import statistics
import sys
import time
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import smelt
from smelt import events
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import failure_of

Undo = contextlib.ExitStack
Change = Callable[[Undo], Any]
ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Row:
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], Change]]
    says: str | None
    captured: bool


ROWS: dict[str, Row] = {}


def row(says: str | None, captured: bool = True) -> Any:
    """Declares a row: the function returns (program, arguments, change)."""

    def declare(make: Any) -> Any:
        assert make.__name__ not in ROWS
        ROWS[make.__name__] = Row(make, says, captured)
        return make

    return declare


def put(undo: Undo, owner: Any, name: Any, value: Any) -> None:
    """`owner.name = value`, or `owner[name] = value` of a dictionary, until undone. ABSENT: it is deleted."""
    store, delete, old = _access(owner, name)
    delete(name) if value is ABSENT else store(name, value)
    undo.callback(delete, name) if old is ABSENT else undo.callback(store, name, old)


def _access(owner: Any, name: Any) -> tuple[Any, Any, Any]:
    if isinstance(owner, dict):
        return owner.__setitem__, owner.__delitem__, owner.get(name, ABSENT)
    slot = name in _SPECIAL or not hasattr(owner, "__dict__")
    old = getattr(owner, name) if slot else vars(owner).get(name, ABSENT)
    return (lambda n, v: setattr(owner, n, v)), (lambda n: delattr(owner, n)), old


def put_item(undo: Undo, owner: Any, key: Any, value: Any) -> None:
    owner[key] = value
    undo.callback(owner.__delitem__, key)


_SPECIAL = (
    "__qualname__",
    "__class__",
    "__dict__",
    "__code__",
    "__defaults__",
    "__kwdefaults__",
    "__bases__",
    "__name__",
    "grad",
)


def putting(owner: Any, name: Any, value: Any) -> Change:
    return lambda undo: put(undo, owner, name, value)


def entering(manager: Callable[[], Any]) -> Change:
    return lambda undo: undo.enter_context(manager())


def calling(do: Callable[[], Any], back: Callable[[], Any]) -> Change:
    def change(undo: Undo) -> None:
        do()
        undo.callback(back)

    return change


X = torch.linspace(-1.0, 2.0, 6).reshape(2, 3)


class Box:
    """An ordinary object."""

    kind = 2.0

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def scale(self) -> float:
        return 3.0


class Inline:
    """An object whose attributes the interpreter keeps outside of a dictionary."""

    def __init__(self) -> None:
        self.a = 1.5
        self.b = (1, 2)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Point(typing.NamedTuple):
    x: float
    y: float


class Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), nn.Tanh())).eval()


# ------------------------------------------------------------------------------------------- names


GLOBAL, OTHER = 2.0, 3.0


@row("__dict__['GLOBAL']: expected 2.0, found 5.0")
def global_rebound():
    return (lambda x: x * GLOBAL), (X,), putting(globals(), "GLOBAL", 5.0)


@row("expected 2.0, found 2")
def global_becomes_an_integer():
    return (lambda x: x * GLOBAL), (X,), putting(globals(), "GLOBAL", 2)


@row("nothing there")
def global_deleted():
    def fn(x: Any) -> Any:
        try:
            return x * GLOBAL
        except NameError:
            return x - 1

    return fn, (X,), putting(globals(), "GLOBAL", ABSENT)


@row("expected 'abs' not in it, found 'abs' in it")
def builtin_shadowed_by_a_global():
    return (lambda x: x * abs(-3)), (X,), putting(globals(), "abs", lambda v: 10)


@row("builtins")
def builtin_replaced():
    return (lambda x: x * abs(-3)), (X,), putting(builtins, "abs", lambda v: 10)


@row("'print_twice'")
def builtin_added():
    def fn(x: Any) -> Any:
        try:
            return x * print_twice  # type: ignore[name-defined]  # noqa: F821
        except NameError:
            return x

    return fn, (X,), putting(builtins, "print_twice", 4.0)


@row("cell_contents: expected 2.0, found 7.0")
def closure_cell():
    k = 2.0

    def change(undo: Undo) -> None:
        nonlocal k
        k = 7.0
        undo.callback(restore)

    def restore() -> None:
        nonlocal k
        k = 2.0

    return (lambda x: x * k), (X,), change


@row("cell_contents")
def closure_cell_of_a_helper():
    def outer(k: float) -> Any:
        return lambda x: x * k

    helper = outer(2.0)
    return (lambda x: helper(x)), (X,), putting(helper.__closure__[0], "cell_contents", 5.0)


@row("pi: expected 3.14")
def module_attribute():
    return (lambda x: x * math.pi), (X,), putting(math, "pi", 3.0)


@row("sqrt: expected function sqrt, found function module_function.<locals>.<lambda>")
def module_function():
    return (lambda x: x * math.sqrt(4.0)), (X,), putting(math, "sqrt", lambda v: v)


@row("smelt_test_world")
def entry_of_sys_modules():
    sys.modules["smelt_test_world"] = first = types.ModuleType("smelt_test_world")
    second = types.ModuleType("smelt_test_world")
    first.value, second.value = 2.0, 3.0  # type: ignore[attr-defined]

    def fn(x: Any) -> Any:
        import smelt_test_world  # type: ignore[import-not-found]

        return x * smelt_test_world.value

    return fn, (X,), putting(sys.modules, "smelt_test_world", second)


@row("value: expected 2.0, found 9.0")
def attribute_of_an_imported_module():
    sys.modules["smelt_test_world"] = module = types.ModuleType("smelt_test_world")
    module.value = 2.0  # type: ignore[attr-defined]

    def fn(x: Any) -> Any:
        from smelt_test_world import value

        return x * value

    return fn, (X,), putting(module, "value", 9.0)


# ------------------------------------------------------------------------------------------- functions


def helper(x: Any, by: float = 2.0, *, plus: float = 1.0) -> Any:
    return x * by + plus


@row("helper.__code__: expected that of helper (line ")
def code():
    other = (lambda x, by=0, *, plus=0: x - by).__code__
    return (lambda x: helper(x)), (X,), putting(helper, "__code__", other)


@row("helper.__defaults__: expected (2.0,), found (9.0,)")
def defaults():
    return (lambda x: helper(x)), (X,), putting(helper, "__defaults__", (9.0,))


@row("helper.__kwdefaults__: expected {'plus': 1.0}, found {'plus': 7.0}")
def keyword_defaults():
    return (lambda x: helper(x)), (X,), putting(helper, "__kwdefaults__", {"plus": 7.0})


@row("plus")
def keyword_default_in_place():
    return (lambda x: helper(x)), (X,), putting(helper.__kwdefaults__, "plus", 7.0)


@row("helper")
def function_replaced():
    return (lambda x: helper(x)), (X,), putting(globals(), "helper", lambda x: x - 5)


@row("tag")
def attribute_of_a_function():
    helper.tag = 2.0  # type: ignore[attr-defined]
    return (lambda x: x * helper.tag), (X,), putting(helper, "tag", 3.0)  # type: ignore[attr-defined]


@row("partial")
def partial_replaced():
    box = Box(f=functools.partial(helper, by=3.0))
    return (lambda x: box.f(x)), (X,), putting(box, "f", functools.partial(helper, by=4.0))


@row("keywords")
def keywords_of_a_partial():
    f = functools.partial(helper, by=3.0)
    return (lambda x: f(x)), (X,), putting(f.keywords, "by", 4.0)


@row("__wrapped__")
def wrapped_function_replaced():
    @functools.wraps(helper)
    def outer(x: Any) -> Any:
        return outer.__wrapped__(x)

    return (lambda x: outer(x)), (X,), putting(outer, "__wrapped__", lambda x: x + 9)


@row("cached.cache[3]")
def cache_of_a_function_cleared():
    state = Box(k=2.0)

    @functools.lru_cache
    def cached(n: int) -> float:
        return state.k * n

    cached(3)  # so that only the entry is guarded, not how the function made it

    def change(undo: Undo) -> None:
        put(undo, state, "k", 5.0)
        cached.cache_clear()
        undo.callback(cached.cache_clear)

    return (lambda x: x * cached(3)), (X,), change


@row(None)
def cached_value_outlives_its_cause():
    state = Box(k=2.0)

    @functools.lru_cache
    def cached(n: int) -> float:
        return state.k * n

    cached(3)
    return (lambda x: x * cached(3)), (X,), putting(state, "k", 5.0)


@row("_cached")
def cached_property():
    class Lazy:
        def __init__(self) -> None:
            self.k = 2.0

        @functools.cached_property
        def _cached(self) -> float:
            return self.k * 3

    lazy = Lazy()
    return (lambda x: x * lazy._cached), (X,), lambda undo: (lazy._cached, put(undo, lazy, "_cached", 11.0))


@row("f.__defaults__: expected (2.0,), found (5.0,)")
def signature():
    def f(a: float, b: float = 2.0) -> float:
        return a + b

    def fn(x: Any) -> Any:
        return x * len(inspect.signature(f).parameters) + inspect.signature(f).parameters["b"].default

    return fn, (X,), putting(f, "__defaults__", (5.0,))


@row("__signature__")
def signature_declared():
    def f(a: float) -> float:
        return a

    def fn(x: Any) -> Any:
        return x * len(inspect.signature(f).parameters)

    return fn, (X,), putting(f, "__signature__", inspect.Signature())


# ------------------------------------------------------------------------------------------- objects and classes


@row("value: expected 1.0, found 2.0")
def attribute():
    box = Box(value=1.0)
    return (lambda x: x * box.value), (X,), putting(box, "value", 2.0)


@row("a: expected 1.5, found 2.5")
def attribute_kept_inline():
    box = Inline()
    return (lambda x: x * box.a + box.b[1]), (X,), putting(box, "a", 2.5)


@row("value: expected 1.0, found 2.0")
def slot():
    box = Slotted(1.0)
    return (lambda x: x * box.value), (X,), putting(box, "value", 2.0)


@row("nothing there")
def attribute_deleted():
    box = Box(value=1.0)
    return (lambda x: x * getattr(box, "value", 5.0)), (X,), putting(box, "value", ABSENT)


@row("extra")
def attribute_added():
    box = Box()
    return (lambda x: x * getattr(box, "extra", 5.0)), (X,), putting(box, "extra", 2.0)


@row("kind")
def attribute_over_a_class_attribute():
    box = Box()
    return (lambda x: x * box.kind), (X,), putting(box, "kind", 7.0)


@row("scale")
def method_over_a_method():
    box = Box()
    return (lambda x: x * box.scale()), (X,), putting(box, "scale", lambda: 7.0)


@row("Box.kind: expected 2.0, found 9.0")
def class_attribute():
    box = Box()
    return (lambda x: x * box.kind), (X,), putting(Box, "kind", 9.0)


@row("class Box as it was")
def method():
    box = Box()
    return (lambda x: x * box.scale()), (X,), putting(Box, "scale", lambda self: 9.0)


@row("class")
def attribute_of_a_base_class():
    class Derived(Box):
        pass

    box = Derived()
    return (lambda x: x * box.kind), (X,), putting(Box, "kind", 9.0)


@row("class Box as it was")
def property_added():
    box = Box(value=1.0)
    return (lambda x: x * box.value), (X,), putting(Box, "value", property(lambda self: 8.0))


@row("class Box as it was")
def getattribute_added():
    box = Box(value=1.0)
    return (lambda x: x * box.value), (X,), putting(Box, "__getattribute__", lambda self, name: 8.0)


@row("class")
def getattr_added():
    class Bare:
        pass

    bare = Bare()
    return (lambda x: x * getattr(bare, "k", 2.0)), (X,), putting(Bare, "__getattr__", lambda s, n: 6.0)


@row("class")
def length_added():
    class Sized:
        pass

    sized = Sized()
    return (lambda x: x * (2.0 if sized else 3.0)), (X,), putting(Sized, "__len__", lambda s: 0)


@row("class")
def equality_added():
    class Plain:
        pass

    a, b = Plain(), Plain()
    return (lambda x: x * (2.0 if a == b else 3.0)), (X,), putting(Plain, "__eq__", lambda s, o: True)


@row("__class__: expected")
def class_of_an_instance():
    class Other(Box):
        kind = 10.0

    box = Box()
    return (lambda x: x * box.kind), (X,), putting(box, "__class__", Other)


@row("__class__: expected")
def class_of_an_instance_kept_inline():
    class Other(Inline):
        def double(self) -> float:
            return 0.0

    Inline.double = lambda self: self.a * 2  # type: ignore[attr-defined]
    box = Inline()
    return (lambda x: x * box.double()), (X,), putting(box, "__class__", Other)  # type: ignore[attr-defined]


@row("value")
def dictionary_of_an_instance_replaced():
    box = Box(value=1.0)
    return (lambda x: x * box.value), (X,), putting(box, "__dict__", {"value": 4.0})


@row("class")
def bases_of_a_class():
    class One:
        k = 1.0

    class Two:
        k = 2.0

    class Derived(One):
        pass

    box = Derived()
    return (lambda x: x * box.k), (X,), putting(Derived, "__bases__", (Two,))


@row("class")
def member_added_to_an_enumeration():
    return (lambda x: x * Color.RED.value * len(Color)), (X,), putting(Color, "extra", 3.0)


@row("same Color as before")
def another_member_of_an_enumeration():
    box = Box(color=Color.RED)
    return (lambda x: x * (2.0 if box.color is Color.RED else 3.0)), (X,), putting(box, "color", Color.BLUE)


@row("_value_")
def value_of_a_member():
    return (lambda x: x * Color.RED.value), (X,), putting(Color.RED, "_value_", 6.0)


@row("get_cache_token()")
def abstract_class_registration():
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    square, made = Square(), []

    def fn(x: Any) -> Any:
        return x * (2.0 if isinstance(square, Shape) else 3.0)

    def change(undo: Undo) -> None:
        made.append(Shape.register(Square))

    return fn, (X,), change


@row("get_cache_token()")
def subclass_of_a_registered_class():
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    def fn(x: Any) -> Any:
        return x * (2.0 if issubclass(Square, Shape) else 3.0)

    return fn, (X,), lambda undo: Shape.register(Square)


@row("class")
def protocol_checked_at_run_time():
    @typing.runtime_checkable
    class Sized(typing.Protocol):
        def size(self) -> int: ...

    class Thing:
        pass

    thing = Thing()
    return (lambda x: x * (2.0 if isinstance(thing, Sized) else 3.0)), (X,), putting(Thing, "size", len)


@row("")
def protocol_satisfied_by_an_instance():
    @typing.runtime_checkable
    class HasSize(typing.Protocol):
        size: int

    thing = Box()
    return (lambda x: x * (2.0 if isinstance(thing, HasSize) else 3.0)), (X,), putting(thing, "size", 1)


@row("")
def fields_of_a_dataclass():
    @dataclasses.dataclass
    class Config:
        a: float = 1.0
        b: float = 2.0

    def fn(x: Any) -> Any:
        return x * len(dataclasses.fields(Config)) + sum(f.default for f in dataclasses.fields(Config))

    return fn, (X,), putting(Config.__dataclass_fields__["a"], "default", 9.0)  # type: ignore[attr-defined]


@row("")
def a_field_removed_from_a_dataclass():
    @dataclasses.dataclass
    class Config:
        a: float = 1.0
        b: float = 2.0

    config = Config()

    def fn(x: Any) -> Any:
        return x * len(dataclasses.fields(config))

    return fn, (X,), putting(Config.__dataclass_fields__, "b", ABSENT)  # type: ignore[attr-defined]


@row("b: expected 2.0, found 8.0")
def values_of_a_dataclass_as_a_dictionary():
    @dataclasses.dataclass
    class Config:
        a: float = 1.0
        b: float = 2.0

    config = Config()

    def fn(x: Any) -> Any:
        return x * sum(dataclasses.asdict(config).values())

    return fn, (X,), putting(config, "b", 8.0)


@row("b: expected 2.0, found 8.0")
def dataclasses_compared():
    @dataclasses.dataclass
    class Config:
        a: float = 1.0
        b: float = 2.0

    one, two = Config(), Config()
    return (lambda x: x * (2.0 if one == two else 3.0)), (X,), putting(two, "b", 8.0)


@row("nothing there", captured=False)
def weak_reference_that_dies():
    holder = [Box(value=2.0)]
    reference = weakref.ref(holder[0])

    def fn(x: Any) -> Any:
        found = reference()
        return x if found is None else x * found.value

    return fn, (X,), lambda undo: (holder.clear(), gc.collect())


@row("value: expected 2.0, found 5.0")
def object_behind_a_weak_reference():
    box = Box(value=2.0)
    reference = weakref.ref(box)
    return (lambda x: x * reference().value), (X,), putting(box, "value", 5.0)


# ------------------------------------------------------------------------------------------- containers


@row("length 3")
def list_grown():
    values = [1.0, 2.0]
    return (lambda x: sum(x * v for v in values)), (X,), calling(lambda: values.append(3.0), values.pop)


@row("[1]: expected 2.0, found 4.0")
def list_element():
    values = [1.0, 2.0]
    return (
        (lambda x: x * values[1]),
        (X,),
        calling(lambda: values.__setitem__(1, 4.0), lambda: values.__setitem__(1, 2.0)),
    )


@row("keys ('a', 'b')")
def dictionary_in_another_order():
    table = {"a": 1.0, "b": 2.0}

    def reorder() -> None:
        table["a"] = table.pop("a")

    def fn(x: Any) -> Any:
        for i, v in enumerate(table.values()):
            x = x * (i + 1) + v
        return x

    return fn, (X,), calling(reorder, lambda: (table.clear(), table.update(a=1.0, b=2.0)))


@row("keys ('a', 'b')")
def ordered_dictionary_in_another_order():
    table = collections.OrderedDict(a=1.0, b=2.0)

    def fn(x: Any) -> Any:
        for i, v in enumerate(table.values()):
            x = x * (i + 1) + v
        return x

    return fn, (X,), calling(lambda: table.move_to_end("a"), lambda: table.move_to_end("b"))


@row("keys", captured=True)
def set_in_another_order():
    box = Box(values={0, 8})
    return (lambda x: [x * v for v in box.values]), (X,), putting(box, "values", {8, 0})


@row("")
def frozen_set_in_another_order():
    box = Box(values=frozenset([0, 8]))
    return (lambda x: [x * v for v in box.values]), (X,), putting(box, "values", frozenset([8, 0]))


@row("expected 'z' not in it, found 'z' in it")
def key_added_that_was_asked_for():
    table = {"a": 1.0}
    return (lambda x: x * (2.0 if "z" in table else 3.0)), (X,), putting(table, "z", 1.0)


@row(None)
def key_added_that_was_not_asked_for():
    table = {"a": 1.0}
    return (lambda x: x * table["a"]), (X,), putting(table, "z", 1.0)


@row("'z'")
def key_added_to_a_default_dictionary():
    table: Any = collections.defaultdict(lambda: 2.0, a=1.0)
    return (lambda x: x * table.get("z", 5.0)), (X,), putting(table, "z", 1.0)


@row("default_factory")
def factory_of_a_default_dictionary():
    table: Any = collections.defaultdict(lambda: 2.0)

    def fn(x: Any) -> Any:
        y = x * table["q"]
        del table["q"]
        return y

    old = table.default_factory
    return (
        fn,
        (X,),
        calling(
            lambda: setattr(table, "default_factory", lambda: 4.0),
            lambda: setattr(table, "default_factory", old),
        ),
    )


@row("length 2")
def deque_grown():
    values = collections.deque([1.0])
    return (lambda x: x * len(values)), (X,), calling(lambda: values.append(2.0), values.pop)


@row("[1]: expected 2.0, found 5.0")
def named_tuple():
    box = Box(point=Point(1.0, 2.0))
    return (lambda x: x * box.point.x + box.point.y), (X,), putting(box, "point", Point(1.0, 5.0))


@row("__class__: expected tests.guards.test_world.Point, found tuple")
def tuple_in_place_of_a_named_tuple():
    box = Box(point=Point(1.0, 2.0))

    def fn(x: Any) -> Any:
        return x * (box.point.x if isinstance(box.point, Point) else 9.0)

    return fn, (X,), putting(box, "point", (1.0, 2.0))


@row("['c'][0].shape")
def tensor_deep_inside():
    nested = {"a": {"b": ({"c": [torch.ones(3)]},)}}
    inner: Any = nested["a"]["b"][0]["c"]
    back = inner[0]
    return (
        (lambda x: x * nested["a"]["b"][0]["c"][0].sum()),
        (X,),
        calling(lambda: inner.__setitem__(0, torch.ones(4)), lambda: inner.__setitem__(0, back)),
    )


NUMBERS: tuple[tuple[Any, Any], ...] = (
    (1, True), (1, 1.0), (0.0, -0.0), (1.0, float("nan")), (1, 2**70), (True, False), (1j, 2j), ((1, 2), (1, 2.0)),
    ("a", "b"), (None, 0), (torch.float32, torch.float64), (slice(0, 1), slice(0, 2)), (range(2), range(3)),
    (torch.Size([1]), (1,)), (b"a", b"b"), ((0.0,), (-0.0,)),
)  # fmt: skip


def _number(first: Any, second: Any) -> Any:
    def make() -> Any:
        box = Box(value=first)

        def fn(x: Any) -> Any:
            return x * 2, box.value, type(box.value)

        return fn, (X,), putting(box, "value", second)

    return make


for _first, _second in NUMBERS:
    ROWS[f"constant {_first!r} becomes {_second!r}"] = Row(
        _number(_first, _second), f"expected {_first!r}, found ", True
    )


@row(None)
def nan_stays_nan():
    box = Box(value=float("nan"))
    return (
        (lambda x: (x * 2, math.isnan(box.value))),
        (X,),
        putting(box, "value", float("inf") - float("inf")),
    )


# ------------------------------------------------------------------------------------------- modules


@row("_forward_hooks: expected no hooks, found 1")
def forward_hook():
    m = net()

    def change(undo: Undo) -> None:
        undo.callback(m[1].register_forward_hook(lambda module, args, out: out * 10).remove)

    return (lambda x: m(x)), (X,), change


@row("no hooks")
def forward_hook_on_the_root():
    m = net()

    def change(undo: Undo) -> None:
        undo.callback(m.register_forward_hook(lambda module, args, out: out * 10).remove)

    return m, (X,), change


@row("no hooks")
def forward_pre_hook():
    m = net()

    def change(undo: Undo) -> None:
        undo.callback(m[2][0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)).remove)

    return (lambda x: m(x)), (X,), change


@row("_forward_hooks")
def hook_removed():
    m = net()
    hooks = m[1]._forward_hooks
    m[1].register_forward_hook(lambda module, args, out: out * 10)
    kept = dict(hooks)
    return (lambda x: m(x)), (X,), calling(hooks.clear, lambda: hooks.update(kept))


@row("_forward_hooks")
def hook_replaced():
    m = net()
    hooks = m[1]._forward_hooks
    m[1].register_forward_hook(lambda module, args, out: out * 10)
    (key,) = hooks
    return (lambda x: m(x)), (X,), putting(hooks, key, lambda module, args, out: out - 1)


@row("_global_forward_hooks")
def hook_of_all_modules():
    m = net()

    def change(undo: Undo) -> None:
        add = nn.modules.module.register_module_forward_hook
        undo.callback(add(lambda module, args, out: out * 3).remove)

    return (lambda x: m(x)), (X,), change


@row("forward")
def forward_replaced_on_an_instance():
    m = net()
    return (lambda x: m(x)), (X,), putting(m[1], "forward", lambda x: x - 1)


@row("forward")
def forward_replaced_on_the_root():
    m = net()
    return m, (X,), putting(m, "forward", lambda x: x - 1)


@row("class Tanh")
def forward_replaced_on_a_class():
    m = net()
    return (lambda x: m(x)), (X,), putting(nn.Tanh, "forward", lambda self, x: x - 1)


@row("class")
def call_of_modules_replaced():
    m = net()
    return (lambda x: m(x)), (X,), putting(nn.Tanh, "__call__", lambda self, x: x - 1)


@row("training: expected False, found True")
def training():
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.BatchNorm1d(3)).eval()
    m[2].momentum = 0.0
    return (lambda x: m(x)), (X,), calling(m.train, m.eval)


@row("keys")
def module_appended():
    m = net()
    return (lambda x: m(x)), (X,), calling(lambda: m.append(nn.Sigmoid()), lambda: m.__delitem__(3))


@row("")
def module_appended_to_a_module_list():
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Tanh()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    m = Stack()
    return m, (X,), calling(lambda: m.layers.append(nn.Sigmoid()), lambda: m.layers.__delitem__(1))


@row("__class__: expected")
def module_replaced_in_a_sequence():
    m, old = net(), nn.Sigmoid()

    def swap() -> None:
        m[1], saved[0] = saved[0], m[1]

    saved: list[Any] = [old]
    return (lambda x: m(x)), (X,), calling(swap, swap)


@row(None)
def module_replaced_by_an_equal_one():
    m = net()
    other = net()
    other.load_state_dict(m.state_dict())
    return (lambda x: m(x)), (X,), putting(m._modules, "2", other[2])


@row("")
def module_used_twice():
    m = net()
    return (lambda x: m(x)), (X,), putting(m._modules, "1", m[2])


@row("")
def modules_in_another_order():
    m = nn.Sequential(nn.Tanh(), nn.ReLU())

    def reorder(key: str) -> Any:
        return lambda: m._modules.__setitem__(key, m._modules.pop(key))

    return (lambda x: m(x)), (X,), calling(reorder("0"), reorder("1"))


@row("")
def parametrization_added():
    class Double(nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 2

    m = net()

    def change(undo: Undo) -> None:
        parametrize.register_parametrization(m[0], "weight", Double())
        undo.callback(parametrize.remove_parametrizations, m[0], "weight", False)

    return (lambda x: m(x)), (X,), change


@row("")
def weight_norm_added():
    m = net()

    def change(undo: Undo) -> None:
        nn.utils.weight_norm(m[0])
        undo.callback(nn.utils.remove_weight_norm, m[0])

    return (lambda x: m(x)), (X,), change


@row("bias")
def bias_removed():
    m = net()
    return (lambda x: m(x)), (X,), putting(m[0]._parameters, "bias", None)


@row("weight.shape")
def weight_of_another_shape():
    m = net()

    def fn(x: Any) -> Any:
        return x @ m[0].weight.t()

    return fn, (X,), putting(m[0]._parameters, "weight", nn.Parameter(torch.ones(5, 3)))


@row(None)
def weight_of_equal_metadata():
    m = net()
    return (lambda x: m(x)), (X,), putting(m[0]._parameters, "weight", nn.Parameter(torch.ones(3, 3)))


@row("weight")
def attribute_over_a_parameter():
    m = net()

    def change(undo: Undo) -> None:
        m[0].__dict__["weight"] = torch.full((3, 3), 2.0)
        undo.callback(m[0].__dict__.pop, "weight")

    return (lambda x: m(x)), (X,), change


@row("")
def buffer_removed_and_set_on_the_class():
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("offset", torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x + self.offset

    m = Offset()
    return m, (X,), putting(Offset, "offset", 5.0)


@row(".dtype: expected torch.float32, found torch.float64")
def module_converted():
    m = nn.Linear(3, 3)
    return (lambda x: m.weight.sum() * x), (X,), calling(m.double, m.float)


@row(".requires_grad: expected True, found False")
def parameters_frozen():
    m = nn.Linear(3, 3)
    fn = lambda x: (m(x), x * (2 if m.weight.requires_grad else 3))  # noqa: E731
    return fn, (X,), calling(lambda: m.requires_grad_(False), lambda: m.requires_grad_(True))


@row("")
def parameters_tied():
    m = net()

    def fn(x: Any) -> Any:
        return x * (2.0 if m[0].weight is m[2][0].weight else 3.0)

    return fn, (X,), putting(m[2][0]._parameters, "weight", m[0].weight)


# ------------------------------------------------------------------------------------------- more of the above


@row("", captured=False)
def view_of_a_dictionary_from_outside():
    table = {"a": 1.0, "b": 2.0}
    values = table.values()
    return (lambda x: sum(x * v for v in values)), (X,), putting(table, "b", 5.0)


@row("value: expected 2.0, found 3.0", captured=False)
def mapping_proxy():
    table = {"value": 2.0}
    proxy = types.MappingProxyType(table)
    return (lambda x: x * proxy["value"]), (X,), putting(table, "value", 3.0)


@row("value")
def namespace():
    space = types.SimpleNamespace(value=2.0)
    return (lambda x: x * space.value), (X,), putting(space, "value", 3.0)


@row("offset", captured=False)
def views_of_one_storage_by_offset():
    base = torch.arange(10.0)
    holder = {"make": lambda: [base[2:5]]}
    return (
        (lambda x: x * x.storage_offset()),
        (lambda: tuple(holder["make"]())),
        putting(holder, "make", lambda: [base[3:6]]),
    )


@row(None)
def outside_view_written_through_its_base():
    base = torch.ones(4)
    view = base[:2]

    def fn(x: Any) -> Any:
        return x.sum() * view

    return fn, (X,), calling(lambda: base.mul_(3), lambda: base.div_(3))


@row("no shared memory")
def outside_tensors_that_come_to_share_memory():
    box = Box(a=torch.ones(3), b=torch.ones(3))

    def fn(x: Any) -> Any:
        box.a.mul_(1.0)
        return x.sum() * (box.a + box.b)

    return fn, (X,), lambda undo: put(undo, box, "b", box.a.view(3))


@row("class")
def descriptor_changed():
    class Ten:
        def __get__(self, obj: Any, cls: Any) -> float:
            return 10.0

    class Owner:
        ten = Ten()

    owner = Owner()
    return (lambda x: x * owner.ten), (X,), putting(Ten, "__get__", lambda self, obj, cls: 11.0)


@row("code")
def body_of_a_property():
    class Owner:
        @property
        def value(self) -> float:
            return 2.0

    owner = Owner()
    other = (lambda self: 7.0).__code__
    return (lambda x: x * owner.value), (X,), putting(Owner.value.fget, "__code__", other)  # type: ignore[attr-defined]


@row("class")
def class_method_replaced():
    class Owner:
        @classmethod
        def value(cls) -> float:
            return 2.0

    return (lambda x: x * Owner.value()), (X,), putting(Owner, "value", classmethod(lambda cls: 5.0))


@row("class")
def attribute_of_a_metaclass():
    class Meta(type):
        level = 2.0

    class Owner(metaclass=Meta):
        pass

    return (lambda x: x * Owner.level), (X,), putting(Meta, "level", 4.0)


@row("class")
def special_method_replaced():
    class Scale:
        def __call__(self, x: Any) -> Any:
            return x * 2

    scale = Scale()
    return (lambda x: scale(x)), (X,), putting(Scale, "__call__", lambda self, x: x * 3)


@row("class")
def item_access_replaced():
    class Table:
        def __getitem__(self, key: Any) -> float:
            return 2.0

    table = Table()
    return (lambda x: x * table["a"]), (X,), putting(Table, "__getitem__", lambda self, key: 6.0)


@row("class")
def iteration_replaced():
    class Steps:
        def __iter__(self) -> Any:
            return iter((1.0, 2.0))

    steps = Steps()
    return (lambda x: [x * v for v in steps]), (X,), putting(Steps, "__iter__", lambda self: iter((3.0,)))


@row("class")
def context_manager_replaced():
    class Manager:
        def __enter__(self) -> float:
            return 2.0

        def __exit__(self, *exc: Any) -> None: ...

    manager = Manager()

    def fn(x: Any) -> Any:
        with manager as k:
            return x * k

    return fn, (X,), putting(Manager, "__enter__", lambda self: 9.0)


@row("Box.gone")
def attribute_deleted_from_a_class():
    Box.gone = 4.0  # type: ignore[attr-defined]
    box = Box()
    return (lambda x: x * getattr(box, "gone", 1.0)), (X,), putting(Box, "gone", ABSENT)


@row("__self__")
def bound_method_of_another_object():
    one, two = Box(value=1.0), Box(value=2.0)
    one.call = types.MethodType(lambda self, x: x * self.value, one)
    return (lambda x: one.call(x)), (X,), putting(one, "call", types.MethodType(one.call.__func__, two))


@row("__defaults__")
def defaults_of_a_module_forward():
    class Net(nn.Module):
        def forward(self, x: Any, by: float = 2.0) -> Any:
            return x * by

    m = Net()
    return m, (X,), putting(Net.forward, "__defaults__", (3.0,))


@row("_non_persistent_buffers_set", captured=False)
def names_of_buffers_that_are_not_saved():
    m = nn.BatchNorm1d(3).eval()
    return (
        (lambda x: x * len(m._non_persistent_buffers_set)),
        (X,),
        calling(
            lambda: m._non_persistent_buffers_set.add("q"), lambda: m._non_persistent_buffers_set.discard("q")
        ),
    )


@row("")
def module_dictionary_in_another_order():
    m = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})

    def fn(x: Any) -> Any:
        for layer in m.values():
            x = layer(x) - 0.5
        return x

    def reorder(key: str) -> Any:
        return lambda: m._modules.__setitem__(key, m._modules.pop(key))

    return fn, (X,), calling(reorder("a"), reorder("b"))


@row("")
def parameter_list_grown():
    m = nn.ParameterList([nn.Parameter(torch.ones(3))])

    def pop() -> None:
        del m._parameters["1"]
        m._size -= 1

    return (
        (lambda x: sum(x * p for p in m)),
        (X,),
        calling(lambda: m.append(nn.Parameter(torch.ones(3))), pop),
    )


@row("dropout")
def probability_of_dropout():
    m = nn.MultiheadAttention(4, 2, dropout=0.0).eval()
    fn = lambda x: m(x, x, x)[0] * (1 + m.dropout)  # noqa: E731
    return fn, (torch.ones(2, 1, 4),), putting(m, "dropout", 0.5)


@row("p: expected 0.0, found 1.0")
def probability_of_a_dropout_layer():
    m = nn.Dropout(0.0)
    return (lambda x: m(x)), (X,), putting(m, "p", 1.0)


@row("eps")
def eps_of_a_norm():
    m = nn.LayerNorm(3)
    return (lambda x: m(x)), (X,), putting(m, "eps", 0.5)


@row("normalized_shape")
def shape_of_a_norm():
    m = nn.LayerNorm(3, elementwise_affine=False)
    return (lambda x: m(x)), (X,), putting(m, "normalized_shape", (2, 3))


@row("momentum")
def statistics_that_are_tracked():
    m = nn.BatchNorm1d(3).train()
    m.momentum = 0.0
    return (lambda x: m(x)), (X,), putting(m, "momentum", None)


@row("")
def buffer_that_becomes_none():
    m = nn.BatchNorm1d(3, affine=False).eval()
    return (lambda x: m(x)), (X,), putting(m._buffers, "running_mean", None)


@row("__name__")
def name_of_a_function():
    return (lambda x: x * len(helper.__name__)), (X,), putting(helper, "__name__", "h")


@row("")
def name_of_a_class():
    class Short:
        pass

    box = Short()
    return (lambda x: x * len(type(box).__name__)), (X,), putting(Short, "__name__", "MuchLonger")


@row("same")
def object_of_the_same_class_by_identity():
    one, two = Box(), Box()
    box = Box(held=one)
    return (lambda x: x * (2.0 if box.held is one else 3.0)), (X,), putting(box, "held", two)


@row("")
def class_in_a_table():
    table = {"act": nn.ReLU}
    return (lambda x: table["act"]()(x)), (X,), putting(table, "act", nn.Tanh)


@row("value: expected 2.0, found 3.0")
def object_behind_a_default():
    box = Box(value=2.0)

    def inner(x: Any, by: Any = box) -> Any:
        return x * by.value

    return (lambda x: inner(x)), (X,), putting(box, "value", 3.0)


@row("level")
def level_of_a_logger():
    import logging

    logger = logging.getLogger("smelt.test.world")
    logger.setLevel(logging.ERROR)

    def fn(x: Any) -> Any:
        return x * (2.0 if logger.isEnabledFor(logging.INFO) else 3.0)

    return fn, (X,), calling(lambda: logger.setLevel(logging.INFO), lambda: logger.setLevel(logging.ERROR))


@row("_is_fastpath_enabled")
def fast_path_of_attention():
    m = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    enabled = torch.backends.mha.set_fastpath_enabled
    return (lambda x: m(x)), (torch.ones(1, 2, 4),), calling(lambda: enabled(False), lambda: enabled(True))


@row("not in", captured=False)
def function_registered_for_a_type():
    @functools.singledispatch
    def scale(k: Any) -> float:
        return 2.0

    def change(undo: Undo) -> None:
        scale.register(float)(lambda k: 5.0)

    return (lambda x: x * scale(1.0)), (X,), change


@row("extra")
def attribute_added_to_a_module():
    module = types.ModuleType("smelt_test_world")
    return (lambda x: x * getattr(module, "extra", 2.0)), (X,), putting(module, "extra", 3.0)


@row("extra")
def attribute_added_to_a_module_that_was_asked_for():
    module = types.ModuleType("smelt_test_world")
    return (lambda x: x * (2.0 if hasattr(module, "extra") else 3.0)), (X,), putting(module, "extra", None)


@row("")
def getattr_of_a_module():
    module = types.ModuleType("smelt_test_world")
    module.__getattr__ = lambda name: 2.0  # type: ignore[method-assign, assignment]
    return (lambda x: x * module.anything), (X,), putting(module, "__getattr__", lambda name: 4.0)


@row("", captured=False)
def cell_that_was_empty():
    def change(undo: Undo) -> None:
        nonlocal k
        k = 4.0
        undo.callback(empty)

    def empty() -> None:
        nonlocal k
        del k

    def fn(x: Any) -> Any:
        try:
            return x * k
        except NameError:
            return x - 1

    k = 2.0
    empty()
    return fn, (X,), change


@row("")
def subclass_defined():
    class Base:
        pass

    made: list[type] = []
    return (
        (lambda x: x * len(Base.__subclasses__())),
        (X,),
        lambda undo: made.append(type("Derived", (Base,), {})),
    )


@row("")
def annotations_of_a_function():
    def f(a: int) -> None: ...

    f.__annotations__ = {"a": 1}
    return (lambda x: x * len(f.__annotations__)), (X,), putting(f.__annotations__, "b", 2)


@row("")
def annotations_of_a_class():
    class Owner:
        a: int

    return (lambda x: x * len(Owner.__annotations__)), (X,), putting(Owner.__annotations__, "b", int)


@row("")
def names_in_a_module():
    module = types.ModuleType("smelt_test_world")
    return (lambda x: x * len(vars(module))), (X,), putting(module, "extra", 3.0)


@row("")
def attributes_of_an_object():
    box = Box(a=1.0)
    return (lambda x: x * sum(vars(box).values())), (X,), putting(box, "b", 5.0)


@row("")
def attributes_in_the_order_in_which_they_were_set():
    box = Box(a=1.0, b=2.0)

    def change(undo: Undo) -> None:
        box.a = vars(box).pop("a")
        undo.callback(lambda: setattr(box, "b", vars(box).pop("b")))

    def fn(x: Any) -> Any:
        for v in vars(box).values():
            x = (x + 1) * v
        return x

    return fn, (X,), change


@row("")
def key_of_a_sort():
    box = Box(key=lambda v: v)
    return (lambda x: x * sorted([3.0, -1.0], key=box.key)[0]), (X,), putting(box, "key", lambda v: -v)


@row("code")
def code_of_the_key_of_a_sort():
    def key(v: float) -> float:
        return v

    other = (lambda v: -v).__code__
    return (lambda x: x * sorted([3.0, -1.0], key=key)[0]), (X,), putting(key, "__code__", other)


@row("")
def global_read_by_a_callback():
    return (lambda x: sum(map(lambda v: x * v * GLOBAL, [1.0, 2.0]))), (X,), putting(globals(), "GLOBAL", 9.0)  # noqa: C417


@row("class")
def text_of_an_object():
    class Named:
        def __repr__(self) -> str:
            return "abc"

    named = Named()
    return (lambda x: x * len(f"{named}")), (X,), putting(Named, "__str__", lambda self: "abcdef")


@row("class")
def hash_of_a_key():
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return True

    a, b = Key(), Key()
    return (lambda x: x * len({a, b})), (X,), putting(Key, "__eq__", lambda self, other: self is other)


@row("")
def iterator_from_outside():
    box = Box(values=[1.0, 2.0])
    return (lambda x: [x * v for v in iter(box.values)]), (X,), putting(box, "values", [3.0])


@row("")
def range_and_slice():
    box = Box(n=slice(0, 2), r=range(2))
    return (lambda x: (x[box.n], [x * i for i in box.r])), (X,), putting(box, "r", range(3))


@row("")
def counter_and_chain_map():
    counter = collections.Counter("aab")
    return (lambda x: x * counter["a"]), (X,), putting(counter, "a", 7)


@row("")
def string_in_a_tuple_in_a_dictionary():
    table = {"k": ("a", ("b", 1))}
    return (lambda x: x * len(table["k"][1][0])), (X,), putting(table, "k", ("a", ("bcd", 1)))


@row("")
def typed_dictionary_of_modules():
    table = {"act": nn.ReLU(), "out": nn.Tanh()}
    return (lambda x: table["out"](table["act"](x))), (X,), putting(table, "act", nn.Sigmoid())


@row("")
def submodule_shared_with_the_outside():
    shared = nn.Linear(3, 3)
    m = nn.Sequential(shared, nn.ReLU())
    return (lambda x: m(x) + shared(x)), (X,), putting(m._modules, "0", nn.Linear(3, 3))


@row("")
def loop_over_a_dictionary_of_tensors():
    table = {"a": torch.ones(3), "b": torch.ones(3)}
    return (lambda x: [x * t for t in table.values()]), (X,), putting(table, "c", torch.ones(3))


@row("")
def tensor_replaced_in_a_list_by_a_parameter():
    values: list[Any] = [torch.ones(3)]
    parameter = nn.Parameter(torch.ones(3), False)
    back = values[0]
    return (
        (lambda x: (x * values[0], isinstance(values[0], nn.Parameter))),
        (X,),
        calling(lambda: values.__setitem__(0, parameter), lambda: values.__setitem__(0, back)),
    )


@row("")
def data_of_a_tensor_replaced():
    w = torch.ones(3)
    old = w.data
    return (
        (lambda x: x.sum() * w),
        (X,),
        calling(lambda: setattr(w, "data", torch.ones(4)), lambda: setattr(w, "data", old)),
    )


@row(None)
def data_of_a_tensor_replaced_by_values_alone():
    w = torch.ones(3)
    old = w.data
    return (
        (lambda x: x.sum() * w),
        (X,),
        calling(lambda: setattr(w, "data", torch.full((3,), 2.0)), lambda: setattr(w, "data", old)),
    )


@row(None)
def copies_and_pickles():
    class Plain:
        pass

    m, box, plain = net(), Box(value=2.0), Plain()

    def change(undo: Undo) -> None:
        copy.deepcopy(m), copy.copy(box), copy.copy(plain), pickle.dumps(m), m.state_dict()

    return (lambda x: m(x) * box.value * (2.0 if plain else 3.0)), (X,), change


@row("dtype")
def tensors_swapped():
    a, b = torch.ones(3), torch.ones(3, dtype=torch.float64)
    swap = lambda: torch.utils.swap_tensors(a, b)  # noqa: E731
    return (lambda x: x.sum() * a), (X,), calling(swap, swap)


@row(".shape")
def tensor_resized_in_place():
    w = torch.ones(1, 3)
    return (lambda x: x.sum() * w), (X,), calling(lambda: w.squeeze_(0), lambda: w.unsqueeze_(0))


@row("")
def attribute_of_a_tensor():
    w = torch.ones(3)
    w.scale = 2.0  # type: ignore[attr-defined]
    return (lambda x: x.sum() * w * w.scale), (X,), putting(w, "scale", 5.0)  # type: ignore[attr-defined]


@row("")
def gradient_of_a_parameter():
    w = nn.Parameter(torch.ones(3))
    fn = lambda x: x.sum() * (w if w.grad is None else w.grad)  # noqa: E731
    return fn, (X,), putting(w, "grad", torch.full((3,), 4.0))


@row("")
def optimizer_settings():
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.5)
    group = optimizer.param_groups[0]
    return (lambda x: x * group["lr"]), (X,), putting(group, "lr", 0.25)


@row("")
def generator_function_replaced():
    box = Box(steps=lambda: iter([1.0, 2.0]))
    return (lambda x: [x * v for v in box.steps()]), (X,), putting(box, "steps", lambda: iter([5.0]))


@row("")
def body_of_a_generator():
    def steps() -> Any:
        yield 1.0
        yield 2.0

    def other() -> Any:
        yield 7.0

    return (lambda x: [x * v for v in steps()]), (X,), putting(steps, "__code__", other.__code__)


@row("")
def decorated_function():
    def twice(f: Any) -> Any:
        @functools.wraps(f)
        def inner(*args: Any) -> Any:
            return f(*args) * inner.factor  # type: ignore[attr-defined]

        inner.factor = 2.0  # type: ignore[attr-defined]
        return inner

    f = twice(lambda x: x + 1)
    return (lambda x: f(x)), (X,), putting(f, "factor", 3.0)


@row("")
def base_class_method_called_through_super():
    class Base:
        def scale(self) -> float:
            return 2.0

    class Derived(Base):
        def scale(self) -> float:
            return super().scale() * 2

    box = Derived()
    return (lambda x: x * box.scale()), (X,), putting(Base, "scale", lambda self: 5.0)


@row("")
def mixin_inserted():
    class Base:
        def scale(self) -> float:
            return 2.0

    class Mixin(Base):
        def scale(self) -> float:
            return super().scale() + 1

    class Plain(Base):
        pass

    class Derived(Plain):
        pass

    box = Derived()
    return (lambda x: x * box.scale()), (X,), putting(Derived, "__bases__", (Mixin,))


@row("")
def slots_and_dictionary():
    class Both(Slotted):
        pass

    box = Both(1.0)
    return (lambda x: x * getattr(box, "more", box.value)), (X,), putting(box, "more", 2.0)


@row("")
def user_list_class():
    class Values(list):
        pass

    values = Values([1.0, 2.0])
    return (lambda x: [x * v for v in values]), (X,), putting(Values, "__iter__", lambda self: iter((9.0,)))


@row("")
def user_dictionary_class():
    class Table(dict):
        pass

    table = Table(a=1.0)
    return (lambda x: x * table["a"]), (X,), putting(Table, "__getitem__", lambda self, key: 5.0)


@row("")
def model_output_of_a_library():
    class Output(collections.OrderedDict):
        pass

    out = Output(a=1.0)
    return (lambda x: x * out["a"] + len(out)), (X,), lambda undo: put_item(undo, out, "b", 2.0)


@row("")
def recursion_limit_is_no_part_of_it():
    limit = sys.getrecursionlimit()
    return (
        (lambda x: x * 2),
        (lambda: (X if sys.getrecursionlimit() == limit else X.double(),)),
        calling(lambda: sys.setrecursionlimit(limit + 1), lambda: sys.setrecursionlimit(limit)),
    )


# ------------------------------------------------------------------------------------------- library Python


def _attribute(owner: Any, name: str, value: Any) -> Change:
    return lambda undo: undo.enter_context(pytest.MonkeyPatch.context()).setattr(owner, name, value)


class Documented:
    @property
    def size(self) -> int:
        """Of old."""
        return 1

    @functools.cached_property
    def cached(self) -> int:
        """Of old."""
        return 1

    @functools.lru_cache  # noqa: B019
    def remembered(self) -> int:
        """Of old."""
        return 1

    def method(self) -> int:
        """Of old."""
        return 1

    @classmethod
    def of_class(cls) -> int:
        """Of old."""
        return 1

    method.weight = 2  # type: ignore[attr-defined]


@row("__doc__")
def text_of_a_property():
    return lambda x: (x + 1, Documented.size.__doc__), (X,), _attribute(Documented.size, "__doc__", "new")


@row("__doc__")
def text_of_a_cached_property():
    return lambda x: (x + 1, Documented.cached.__doc__), (X,), _attribute(Documented.cached, "__doc__", "new")


@row("__doc__")
def text_of_a_cached_method():
    cached = Documented.remembered
    return lambda x: (x + 1, Documented.remembered.__doc__), (X,), _attribute(cached, "__doc__", "new")


@row("__doc__")
def text_of_a_method():
    return lambda x: (x + 1, Documented.method.__doc__), (X,), _attribute(Documented.method, "__doc__", "new")


@row("__doc__")
def text_of_a_bound_method():
    bound = Documented()
    return lambda x: (x + 1, bound.method.__doc__), (X,), _attribute(Documented.method, "__doc__", "new")


@row("__name__")
def name_of_a_class_method():
    function = vars(Documented)["of_class"].__func__
    return lambda x: (x + 1, Documented.of_class.__name__), (X,), _attribute(function, "__name__", "new")


@row("weight")
def attribute_of_a_method():
    bound = Documented()
    return lambda x: x * bound.method.weight, (X,), _attribute(Documented.method, "weight", 3)


@row("__doc__")
def documentation_that_inspect_finds():
    return (
        lambda x: (x + 1, inspect.getdoc(Documented.method)),
        (X,),
        _attribute(Documented.method, "__doc__", "new"),
    )


@row("gelu: expected function gelu, found function relu")
def function_of_torch():
    return (lambda x: F.gelu(x)), (X,), putting(F, "gelu", torch.relu)


@row("")
def function_below_a_function_of_torch():
    return (lambda x: F.silu(x, inplace=False)), (X,), putting(torch._C._nn, "silu", lambda x: x - 1)


@row("")
def function_that_a_functional_calls():
    return (lambda x: F.softmax(x)), (X,), putting(F, "_get_softmax_dim", lambda *a: 0)


@row("leaky_relu.__code__")
def code_of_a_functional():
    def fake(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
        return input - 7

    return (lambda x: F.leaky_relu(x)), (X,), putting(F.leaky_relu, "__code__", fake.__code__)


@row("leaky_relu.__defaults__: expected (0.01, False), found (0.5, False)")
def defaults_of_a_functional():
    return (lambda x: F.leaky_relu(x)), (X,), putting(F.leaky_relu, "__defaults__", (0.5, False))


@row("class Tensor")
def method_of_tensors():
    return (lambda x: x.relu()), (X,), putting(torch.Tensor, "relu", lambda self: self * 9)


@row("class Tensor")
def attribute_added_to_tensors():
    return (lambda x: x * getattr(x, "factor", 2.0)), (X,), putting(torch.Tensor, "factor", 3.0)


@row("SMELT_TEST_WORLD", captured=False)
def environment():
    fn = lambda x: x * float(os.environ.get("SMELT_TEST_WORLD", "2"))  # noqa: E731
    return (
        fn,
        (X,),
        lambda undo: undo.enter_context(pytest.MonkeyPatch.context()).setenv("SMELT_TEST_WORLD", "5"),
    )


@row("", captured=False)
def environment_through_getenv():
    fn = lambda x: x * float(os.getenv("SMELT_TEST_WORLD", "2"))  # noqa: E731
    return (
        fn,
        (X,),
        lambda undo: undo.enter_context(pytest.MonkeyPatch.context()).setenv("SMELT_TEST_WORLD", "5"),
    )


def _by(setter: Callable[..., Any], now: tuple[Any, ...], then: tuple[Any, ...]) -> Change:
    def change(undo: Undo) -> None:
        undo.callback(setter, *then)
        setter(*now)

    return change


def _set_zone(name: str) -> None:
    os.environ["TZ"] = name
    time.tzset()


class Named(typing.NamedTuple):
    value: Any


class Date(datetime.datetime):
    """Inherits what datetimes read of the process."""


LONG = 10**5000
AMOUNT = decimal.Decimal("1.2349")
NOON = datetime.datetime(2020, 1, 1, 12)
DATE = Date(2020, 1, 1, 12)

# What functions of C make of a setting of the process: the graph breaks there.
_SETTINGS: dict[str, tuple[Callable[..., Any], Change]] = {
    "text of an array": (
        lambda x: (x + 1, str(numpy.ones(2) / 3), f"{[numpy.ones(2) / 3]}", "%s" % (numpy.ones(2) / 3)),
        _by(lambda n: numpy.set_printoptions(precision=n), (2,), (8,)),
    ),
    "text of an array by its method": (
        lambda x: (x + 1, (numpy.ones(2) / 3).__str__(), numpy.ndarray.__repr__(numpy.ones(2) / 3)),
        _by(lambda n: numpy.set_printoptions(precision=n), (2,), (8,)),
    ),
    "text of an array in an exception": (
        lambda x: (x + 1, str(ValueError(numpy.ones(2) / 3)), str(Named(numpy.ones(2) / 3))),
        _by(lambda n: numpy.set_printoptions(precision=n), (2,), (8,)),
    ),
    "errors of NumPy": (
        lambda x: (x + 1, numpy.geterr()["divide"]),
        _by(lambda how: numpy.seterr(divide=how), ("ignore",), ("warn",)),
    ),
    "local time zone": (
        lambda x: (x + NOON.timestamp() % 86400, str(NOON.astimezone()), NOON.fromtimestamp(0).hour),
        _by(_set_zone, ("America/New_York",), ("UTC",)),
    ),
    "local time zone, of a subclass": (
        lambda x: (x + DATE.timestamp() % 86400, str(DATE.astimezone()), Date.fromtimestamp(0).hour),
        _by(_set_zone, ("America/New_York",), ("UTC",)),
    ),
    "locale": (
        lambda x: (
            x + 1,
            f"{NOON.date():%B}",
            NOON.date().strftime("%A"),
            NOON.strftime("%p"),
            NOON.time().strftime("%H"),
            DATE.strftime("%A"),
        ),
        _by(lambda name: locale.setlocale(locale.LC_TIME, name), ("C.UTF-8",), ("C",)),
    ),
    "home and working directory": (
        lambda x: (x + 1, os.path.expanduser("~"), os.path.expandvars("$HOME"), os.path.abspath("a")),
        lambda undo: undo.enter_context(pytest.MonkeyPatch.context()).setenv("HOME", "/elsewhere"),
    ),
    "Decimals": (
        lambda x: (x + 1, f"{AMOUNT:.2f}", str(AMOUNT * 0), statistics.mean([AMOUNT, AMOUNT])),
        _by(
            lambda how: setattr(decimal.getcontext(), "rounding", how),
            (decimal.ROUND_UP,),
            (decimal.ROUND_DOWN,),
        ),
    ),
    "capitals of Decimals": (
        lambda x: (x + 1, str(decimal.Decimal("1e5"))),
        _by(lambda how: setattr(decimal.getcontext(), "capitals", how), (0,), (1,)),
    ),
    "Decimals of floats": (
        lambda x: (x + 1, decimal.Decimal(0.5)),
        _by(
            lambda how: decimal.getcontext().traps.__setitem__(decimal.FloatOperation, how), (True,), (False,)
        ),
    ),
    "handler of encoding errors": (
        lambda x: (x + 1, "é".encode("ascii", "smelt.test")),
        _by(
            lambda sign: codecs.register_error("smelt.test", lambda error: (sign, error.end)),  # type: ignore[attr-defined]
            ("!",),
            ("?",),
        ),
    ),
    "context": (
        lambda x: (x + 1, contextvars.copy_context().get(VARIABLE, 1)),
        lambda undo: undo.callback(VARIABLE.reset, VARIABLE.set(6.0)),
    ),
    "name of a level": (
        lambda x: (x + 1, logging.getLevelName(35)),
        _by(logging.addLevelName, (35, "HIGH"), (35, "Level 35")),
    ),
}
for _name, (_program, _change) in _SETTINGS.items():
    ROWS[f"setting: {_name}"] = Row(lambda made=(_program, (X,), _change): made, "", False)  # type: ignore[misc]


def _tried(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except ValueError as error:
        return str(error)


DIGITS = "1" * 5000
# What makes texts of integers, or integers of texts: how many digits may be is a setting of the process.
_DIGITS: dict[str, Callable[..., Any]] = {
    "str": lambda x: (x + 1, _tried(str, LONG)),
    "text of a list": lambda x: (x + 1, _tried(str, [LONG])),
    "text of a dictionary": lambda x: (x + 1, _tried(str, {1: LONG})),
    "text of a range": lambda x: (x + 1, _tried(str, range(LONG))),
    "format": lambda x: (x + 1, _tried(lambda: f"{LONG}")),
    "percent": lambda x: (x + 1, _tried(lambda: "%s" % LONG)),  # noqa: UP031
    "percent of bytes": lambda x: (x + 1, _tried(lambda: b"%d" % LONG)),
    "json.dumps": lambda x: (x + 1, _tried(json.dumps, [LONG])),
    "reprlib.repr": lambda x: (x + 1, _tried(reprlib.repr, LONG)),
    "text of a Fraction": lambda x: (x + 1, _tried(str, fractions.Fraction(LONG, 7))),
    "int": lambda x: (x + 1, _tried(int, DIGITS)),
    "int of a bytearray": lambda x: (x + 1, _tried(int, bytearray(DIGITS.encode()))),
    "json.loads": lambda x: (x + 1, _tried(json.loads, DIGITS)),
    "eval": lambda x: (x + 1, _tried(eval, DIGITS)),
}
for _name, _program in _DIGITS.items():
    _change = _by(sys.set_int_max_str_digits, (4300,), (0,))
    ROWS[f"digits: {_name}"] = Row(lambda made=(_program, (X,), _change): made, "", True)  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _any_number_of_digits() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


def test_what_does_not_depend_on_the_time_zone_is_captured() -> None:
    aware = NOON.replace(tzinfo=datetime.UTC)

    def program(x: torch.Tensor) -> Any:
        return x + aware.timestamp() % 86400, aware.astimezone(datetime.UTC).hour, str(NOON)

    compiled = smelt.compile(program, fullgraph=True)
    assert outcome(compiled, (X,)) == outcome(program, (X,))


class Span(datetime.timedelta):
    """A value of a subclass."""


class Amount(decimal.Decimal):
    """A value of a subclass."""


class Ratio(fractions.Fraction):
    """A value of a subclass."""


def _of_a_subclass(make: Callable[..., Any], *values: Any) -> Any:
    box = Box(value=make(*values[0]), other=make(*values[0]))

    def fn(x: Any) -> Any:
        return x + 1, str(box.value), hash(box.value), box.value == box.other

    return lambda: (fn, (X,), putting(box, "value", make(*values[1])))


for _made in (
    (Date, (2020, 1, 1), (2021, 1, 1)),
    (Span, (1,), (2,)),
    (Amount, ("1.0",), ("1.00",)),
    (Ratio, (1, 2), (1, 3)),
):
    ROWS[f"another {_made[0].__name__}"] = Row(_of_a_subclass(*_made), "", True)


def _renamed() -> dict[str, tuple[Callable[..., Any], Change]]:
    """Texts that show a name, and what gives that name to something else."""

    def shown(x: Any) -> Any:
        return x

    class Shown:
        def method(self) -> None: ...

    module, partial, held = types.ModuleType("module"), functools.partial(shown, 1), Box(value=shown)
    return {
        "function": (
            lambda x: (
                x + 1,
                repr(shown),
                f"{shown}",
                str([shown]),
                shown.__repr__(),
                repr(partial),
            ),
            putting(shown, "__qualname__", "other"),
        ),
        "function in a set": (
            lambda x: (x + 1, repr({held.value}), str(KeyError(shown))),
            putting(shown, "__qualname__", "other"),
        ),
        "method": (lambda x: (x + 1, repr(Shown.method)), putting(Shown.method, "__qualname__", "other")),
        "class": (
            lambda x: (x + 1, repr(Shown), str(list[Shown]), str(Shown | None)),
            putting(Shown, "__qualname__", "other"),
        ),
        "module of a class": (lambda x: (x + 1, repr(Shown)), putting(Shown, "__module__", "elsewhere")),
        "module": (lambda x: (x + 1, repr(module)), putting(module, "__name__", "other")),
        "file of a module": (lambda x: (x + 1, f"{module}"), putting(module, "__file__", "elsewhere")),
        "function, by an error": (
            lambda x: (x + 1, _error_of(lambda: shown())),  # type: ignore[call-arg]
            putting(shown, "__qualname__", "other"),
        ),
        "module, by an error": (
            lambda x: (x + 1, _error_of(lambda: module.absent)),
            putting(module, "__name__", "other"),
        ),
    }


def _error_of(fn: Callable[[], Any]) -> str:
    try:
        fn()
    except (AttributeError, TypeError) as error:
        return str(error)
    return ""


for _name, (_program, _change) in _renamed().items():
    ROWS[f"name of a {_name}"] = Row(lambda made=(_program, (X,), _change): made, "", True)  # type: ignore[misc]


@row("")
def what_a_partial_shows():
    box = Box(f=functools.partial(helper, 1.0))
    return (lambda x: (x + 1, repr(box.f))), (X,), putting(box, "f", functools.partial(helper, 2.0))


@row("")
def member_of_an_enumeration_of_torch():
    box = Box(tag=torch.Tag.core)
    return (lambda x: (x + 1, str(box.tag))), (X,), putting(box, "tag", torch.Tag.inplace_view)


@row("dispatch_table", captured=False)
def copies_by_a_registered_function():
    box = Box(value=1)
    change = calling(lambda: copyreg.pickle(Box, lambda b: "box"), lambda: copyreg.dispatch_table.pop(Box))  # type: ignore[arg-type]
    return (lambda x: (x + 1, copy.copy(box) is box)), (X,), change


@row("")
def how_numpy_writes_scalars():
    third = numpy.float64(1) / 3
    change = _by(lambda version: numpy.set_printoptions(legacy=version), ("1.13",), (False,))
    return (lambda x: (x + 1, repr(third), f"{third}", str([third]))), (X,), change


@row("class Box")
def dir_of_a_class():
    return (lambda x: (x + 1, "added" in dir(Box))), (X,), putting(Box, "added", 1)


@row("class Box")
def whether_an_object_is_callable():
    box = Box()
    return (lambda x: (x + 1, callable(box))), (X,), putting(Box, "__call__", lambda self: 1)


@row("smelt_test_world")
def entry_of_sys_modules_by_importlib():
    first, second = types.ModuleType("smelt_test_world"), types.ModuleType("smelt_test_world")
    first.value, second.value = 2.0, 3.0  # type: ignore[attr-defined]
    sys.modules["smelt_test_world"] = first

    def fn(x: Any) -> Any:
        return x * importlib.import_module("smelt_test_world").value

    return fn, (X,), putting(sys.modules, "smelt_test_world", second)


@row("default_factory")
def factory_of_a_copied_dictionary():
    counts = collections.defaultdict(list)
    return (lambda x: (x + 1, counts.copy()["a"])), (X,), putting(counts, "default_factory", tuple)


@row("")
def handlers_of_a_logger():
    logger = logging.getLogger("smelt.test_world.handlers")
    change = _by(lambda how: setattr(logger, "propagate", how), (False,), (True,))
    return (lambda x: (x + 1, logger.hasHandlers())), (X,), change


ZERO = numpy.float64(0)
# Errors of NumPy's, which are told of as the state of each call says; that they are ignored is guarded.
_ERRORS: dict[str, Callable[..., Any]] = {
    "of scalars": lambda x: (x + 1, _told(lambda: 1 / ZERO)),
    "of a function": lambda x: (x + 1, _told(numpy.log, 0.0)),
    "of arrays": lambda x: (x + 1, _told(lambda: numpy.ones(2) / numpy.zeros(2))),
    "of a cast": lambda x: (x + 1, _told(numpy.float32, 1e300)),
    "of integers": lambda x: (x + 1, _told(lambda: numpy.int32(2**31 - 1) + numpy.int32(1))),
    "of linear algebra": lambda x: (x + 1, _told(numpy.linalg.norm, [1e300, 1e300])),
}


def _told(fn: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            return fn(*args), [str(w.message) for w in told]
        except FloatingPointError as error:
            return str(error)


for _name, _program in _ERRORS.items():
    for _then, _now in ("ignore", "raise"), ("warn", "raise"), ("raise", "warn"):
        ROWS[f"errors {_name}: {_then}, {_now}"] = Row(
            lambda made=(_program, _then, _now): _with_errors(*made),
            "",
            False,  # type: ignore[misc]
        )


def _with_errors(program: Callable[..., Any], then: str, now: str) -> Any:
    numpy.seterr(all=then)  # type: ignore[call-overload]
    return program, (X,), _by(lambda how: numpy.seterr(all=how), (now,), (then,))


@pytest.fixture(autouse=True)
def _errors_as_before() -> Iterator[None]:
    with numpy.errstate():
        yield


@row("")
def errors_of_numpy_that_are_ignored():
    def fn(x: Any) -> Any:
        return x + 1, 1 / ZERO

    return _with_errors(fn, "ignore", "raise")


@row("", captured=False)
def errors_of_numpy_by_arrays_from_outside():
    ones, zeros = numpy.ones(2), numpy.zeros(2)

    def fn(x: Any) -> Any:
        return x + 1, ones / zeros, numpy.log(x.numpy() * 0), numpy.stack([ones, zeros]).mean()

    return _with_errors(fn, "ignore", "raise")


@row(None)
def errors_of_numpy_that_the_function_ignores():
    def fn(x: Any) -> Any:
        with numpy.errstate(divide="ignore"):
            return x + 1, 1 / ZERO

    return _with_errors(fn, "warn", "raise")


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)
UNSET: contextvars.ContextVar[float] = contextvars.ContextVar("UNSET")


def _setting(variable: contextvars.ContextVar[Any], value: Any) -> Change:
    def change(undo: Undo) -> None:
        undo.callback(variable.reset, variable.set(value))

    return change


@row("")
def context_variable():
    return (lambda x: x * VARIABLE.get()), (X,), _setting(VARIABLE, 6.0)


@row("")
def context_variable_that_was_not_set():
    return (lambda x: x * UNSET.get(3.0)), (X,), _setting(UNSET, 6.0)


# ------------------------------------------------------------------------------------------- tensors as arguments


def _argument(
    name: str, says: str | None, first: Callable[[], Any], second: Callable[[], Any], fn: Any
) -> None:
    def make() -> Any:
        holder = {"make": first}
        return fn, (lambda: tuple(holder["make"]())), putting(holder, "make", second)

    ROWS[name] = Row(make, says, True)


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(shape, **options)


def shapes(x: Any, *more: Any) -> Any:
    return x * 2, tuple(x.shape), x.stride(), x.dtype, x.requires_grad, type(x) is nn.Parameter


_argument("shape of an argument", ".shape", lambda: [ones(2, 3)], lambda: [ones(3, 3)], shapes)
_argument(
    "stride of an argument",
    ".stride",
    lambda: [ones(3, 3)],
    lambda: [torch.arange(9.0).reshape(3, 3).t()],
    shapes,
)
_argument("dtype of an argument", ".dtype", lambda: [ones(3)], lambda: [ones(3).double()], shapes)
_argument(
    "device of an argument", ".device: expected cpu, found meta", lambda: [ones(3)], lambda: [ones(3, device="meta")],
    lambda x: x.shape[0] * 2,
)  # fmt: skip
_argument(
    "requires_grad of an argument",
    ".requires_grad",
    lambda: [ones(3)],
    lambda: [ones(3, requires_grad=True)],
    shapes,
)
_argument("a parameter for a tensor", "", lambda: [ones(3)], lambda: [nn.Parameter(ones(3), False)], shapes)
_argument(
    "a number for a tensor", "expected Tensor, found int", lambda: [ones(3)], lambda: [3], lambda x: x * 2
)
_argument("dimensions of an argument", ".shape", lambda: [ones(3)], lambda: [ones(1, 3)], shapes)
_argument(
    "a conjugate view", ".conj_neg", lambda: [ones(3) * 1j], lambda: [(ones(3) * 1j).conj()], lambda x: x * 2
)
_argument(
    "a sparse tensor", ".layout", lambda: [ones(3, 3)], lambda: [ones(3, 3).to_sparse()], lambda x: x.shape[0]
)
_argument(
    "the same tensor twice", "L['x'] and L['y']: expected two objects, found one",
    lambda: [ones(3), ones(3)], lambda: [t := ones(3), t], lambda x, y: (x * 2, x is y),
)  # fmt: skip
_argument(
    "arguments that overlap, one written", "L['x'] and L['y']: expected no shared memory, found that they share it",
    lambda: [ones(3), ones(3)], lambda: [(t := ones(4))[:3], t[1:]], lambda x, y: (x.add_(1), x + y)[1],
)  # fmt: skip
_argument(
    "arguments that overlap, none written", None,
    lambda: [ones(3), ones(3)], lambda: [(t := ones(4))[:3], t[1:]], lambda x, y: x + y,
)  # fmt: skip
_argument("more arguments", "length", lambda: [ones(3)], lambda: [ones(3), ones(3)], lambda *a: sum(a))


# ------------------------------------------------------------------------------------------- state of torch


@contextlib.contextmanager
def _set_to(get: Callable[[], Any], set: Callable[[Any], Any], value: Any) -> Iterator[None]:
    old = get()
    set(value)
    try:
        yield
    finally:
        set(old)


def everything(x: Any) -> Any:
    return x @ x.t(), torch.ones(2), torch.tensor(1.0), torch.is_grad_enabled(), torch.full((1,), 2.0)


STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "grad mode": (torch.enable_grad, "grad_mode=False, found grad_mode=True"),
    "inference mode": (torch.inference_mode, "inference_mode="),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "autocast_cpu="),
    "default dtype": (
        lambda: _set_to(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        "default_dtype=torch.float32, found default_dtype=torch.float64",
    ),
    "number of threads": (
        lambda: _set_to(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1), "num_threads=",
    ),
    "deterministic algorithms": (
        lambda: _set_to(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
        "deterministic_algorithms=",
    ),
    "attention kernels": (
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "sdp_flash=",
    ),
    "precision of products": (
        lambda: _set_to(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
        "mkldnn_matmul_precision=",
    ),
    "oneDNN": (lambda: torch.backends.mkldnn.flags(enabled=False), "mkldnn="),
    "default device": (lambda: torch.device("meta"), "torch_function_modes="),
    "torch function disabled": (torch._C.DisableTorchFunctionSubclass, "torch_function_state="),
}  # fmt: skip


def _state(manager: Callable[[], Any]) -> Any:
    return lambda: (everything, (X,), entering(manager))


for _name, (_manager, _says) in STATES.items():
    ROWS[f"state: {_name}"] = Row(_state(_manager), _says, True)


@row("autocast_cpu_dtype=")
def dtype_of_autocast():
    return (
        everything,
        (X,),
        lambda undo: undo.enter_context(
            _set_to(
                lambda: torch.get_autocast_dtype("cpu"),
                lambda d: torch.set_autocast_dtype("cpu", d),
                torch.float16,
            )
        ),
    )


@row("", captured=False)
def default_device_for_the_process():
    def change(undo: Undo) -> None:
        torch.set_default_device("meta")
        undo.callback(torch.set_default_device, None)

    return (lambda x: (x * 2, torch.ones(2).device)), (X,), change


# ------------------------------------------------------------------------------------------- the test


def value_of(x: Any) -> Any:
    """What a result is, comparably: tensors by type, metadata and content."""
    if isinstance(x, torch.Tensor):
        content = None if x.is_meta else x.detach().float().tolist()
        return type(x), x.dtype, x.device, x.requires_grad, x.stride(), repr(content)
    if isinstance(x, (tuple, list)):
        return type(x), [value_of(v) for v in x]
    return type(x), repr(x)


def outcome(fn: Callable[..., Any], args: Any) -> Any:
    try:
        return value_of(fn(*(args() if callable(args) else args)))
    except Exception as error:
        return type(error), str(error)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    for leftover in ("double",):
        if leftover in vars(Inline):
            delattr(Inline, leftover)
    sys.modules.pop("smelt_test_world", None)


@pytest.mark.parametrize("name", ROWS)
def test_a_change_of_the_world(name: str) -> None:
    row = ROWS[name]
    with torch.no_grad():
        fn, args, change = row.make()
        compiled = smelt.compile(
            fn, backend="aot_eager", options={"verify_stages": True, "recompile_limit": 30}
        )
        for _ in range(2):
            assert outcome(compiled, args) == outcome(fn, args)
        assert not row.captured or not reasons(compiled), reasons(compiled)[0]
        before, failures = len(entries(compiled)), []
        with contextlib.ExitStack() as undo:
            change(undo)
            with events.subscribed(
                lambda e: failures.append(str(e.data["failure"])) if e.kind == "recompile" else None
            ):
                got = outcome(compiled, args)
            assert got == outcome(fn, args)
            assert outcome(compiled, args) == outcome(fn, args)
        assert outcome(compiled, args) == outcome(fn, args)
    assert failure_of(compiled) is None, failure_of(compiled)
    if row.says is None:
        assert len(entries(compiled)) == before and not failures, failures
    elif row.captured:
        assert failures and row.says in failures[0], (row.says, failures)
