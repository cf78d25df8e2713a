"""Lifetimes: entries do not keep objects alive that the program drops, and accept no call without them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect

MADE: list[weakref.ref[Any]] = []  # what must be gone after the call


def noted(x: Any) -> Any:
    MADE.append(weakref.ref(x))
    return x


def a_class() -> Any:
    @noted
    class Base:
        def __init__(self) -> None:
            self.v = 3

        @property
        def p(self) -> int:
            return self.v

    @noted
    class A(Base):
        k = 2

        def f(self, x: Any) -> Any:
            return x * self.k * super().p

    return A


def a_function_with_attributes() -> Any:
    @noted
    def f(x: Any) -> Any:
        return x * 2

    f.by = 3
    return f


def a_wrapper() -> Any:
    inner = a_function_with_attributes()

    @noted
    @functools.wraps(inner)
    def outer(x: Any) -> Any:
        return inner(x) + 1

    return outer


def an_enum() -> Any:
    @noted
    class E(enum.Enum):
        A = 1

    return E


def a_dataclass() -> Any:
    @noted
    @dataclasses.dataclass
    class D:
        a: int = 1

    return D


def a_module_class() -> Any:
    @noted
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x * self.w

    return M


def an_exception() -> Any:
    @noted
    class E(ValueError):
        pass

    return E


def caught(error: Any, x: Any) -> Any:
    try:
        raise error(2)
    except error as e:
        return x * e.args[0]


# What is made, and what the program does with it.
PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "class": (a_class, lambda a, x: x * a.k),
    "class instantiated": (a_class, lambda a, x: a().f(x)),
    "class returned": (a_class, lambda a, x: (x * 2, a)),
    "class as a key": (a_class, lambda a, x: x * {a: 2}[a]),
    "instance": (lambda: noted(a_class()()), lambda a, x: a.f(x) * type(a).k),
    "instance in a tuple": (lambda: (noted(a_class()()),), lambda a, x: a[0].f(x)),
    "bound method": (lambda: noted(a_class()()).f, lambda f, x: f(x)),
    "function with attributes": (a_function_with_attributes, lambda f, x: f(x) * f.by),
    "function returned": (a_function_with_attributes, lambda f, x: (x * 2, f)),
    "wrapper": (a_wrapper, lambda f, x: f(x)),
    "partial": (lambda: noted(functools.partial(a_function_with_attributes())), lambda f, x: f(x)),
    "cached function": (lambda: noted(functools.lru_cache(lambda k: k + 1)), lambda f, x: x * f.__wrapped__(1)),
    "function of C": (lambda: noted(pytest.importorskip("_testcapi").create_cfunction()), lambda f, x: (x * 2, f)),
    "enum": (an_enum, lambda e, x: x * e.A.value),
    "enum member": (lambda: noted(an_enum().A), lambda e, x: (x * e.value, e)),
    "dataclass": (a_dataclass, lambda d, x: x * d(2).a),
    "class of a module": (a_module_class, lambda m, x: m()(x)),
    "module": (lambda: noted(a_module_class()()), lambda m, x: m(x)),
    "exception": (an_exception, caught),
    "Python module": (lambda: noted(types.ModuleType("made")), lambda m, x: (x * 2, m.__name__)[0]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    MADE.clear()
    yield
    MADE.clear()


def alive() -> list[Any]:
    gc.collect()
    return [x for x in (r() for r in MADE) if x is not None]


@pytest.mark.parametrize("name", PROGRAMS)
def test_objects_that_crossed_a_break_are_released(name: str) -> None:
    make, use = PROGRAMS[name]
    make = smelt.disable(make)
    compiled = smelt.compile(lambda x: use(make(), x), backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(3)) is not None
        assert MADE and alive() == []
    assert any(record.entries for _, record in inspect.records(compiled)[1:])


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_argument_is_released_after_the_call(name: str) -> None:
    make, use = PROGRAMS[name]
    compiled = smelt.compile(types.FunctionType(use.__code__, globals(), "use"), backend="eager")
    for _ in range(2):
        assert compiled(make(), torch.ones(3)) is not None
        assert MADE and alive() == []
    assert inspect.entries(compiled)


def test_an_entry_accepts_calls_while_its_objects_live() -> None:
    compiled = smelt.compile(lambda a, x: a().f(x), backend="eager")
    kept = a_class()
    for _ in range(3):
        assert compiled(kept, torch.ones(3)).tolist() == [6.0, 6.0, 6.0]
    assert len(inspect.entries(compiled)) == 1
    kept.k = 5
    assert compiled(kept, torch.ones(3)).tolist() == [15.0, 15.0, 15.0]


def test_an_entry_whose_class_is_dead_reports_that() -> None:
    compiled = smelt.compile(lambda a, x: x * a.k, backend="eager")
    for _ in range(2):
        compiled(a_class(), torch.ones(3))
        gc.collect()
    reason = inspect.entries(compiled)[1].reason
    assert reason is not None and reason.expected == "an object that is gone"
    assert "<gone>" in inspect.entries(compiled)[0].guards
