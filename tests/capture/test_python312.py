"""Constructs whose bytecode is new in CPython 3.12, and syntax that 3.11 cannot parse (hence programs as text)."""

# ruff: noqa: C416, F821, UP008  (the constructs are the point)

import sys

import pytest
import torch

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import entries
from tests.harness.captured import capture, check_replay

SINCE_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")


def define(source):
    scope = {"torch": torch, "__name__": __name__}
    exec(source, scope)
    return scope["f"]


# Comprehensions are inlined from 3.12 on: their variables are locals of the function, hidden while they run.


def variable_of_the_same_name(x):
    i = 10
    lists = [i for i in range(3)], [[i * j for j in range(i)] for i in range(4)]
    return lists, {i: x + i for i in (1, 2)}, {i for i in (1, 2)}, i


def restored_after_an_error(x):
    i = 7
    try:
        [1 // i for i in (1, 0)]
    except ZeroDivisionError:
        x = x + 1
    return x + i


def unbound_outside(x):
    [q for q in range(3)]
    try:
        return q
    except NameError as error:
        return x + 1, str(error)


def deleted(x):
    i = 5
    result = [i for i in range(2)]
    del i
    try:
        return i
    except UnboundLocalError as error:
        return x + 1, str(error), result


def cells_of_their_own(x):
    i = 7
    inner = [lambda: x + i for i in range(3)]
    outer = lambda: i
    return [f() for f in inner], outer(), i


def shared_cell(x):
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    return [step() + count for _ in range(3)], count, x + 1


def assigned_inside(x):
    sums = [(last := x + i) for i in range(3)]
    return sums, last


def in_a_class_body(x):
    class C:
        n = 3
        k = 9
        numbers = [k for k in range(n)]
        tensors = [x + k for k in range(2)]

    return C.numbers, C.tensors, C.k


COMPREHENSIONS = (
    variable_of_the_same_name, restored_after_an_error, unbound_outside, deleted, cells_of_their_own, shared_cell,
    assigned_inside, in_a_class_body,
)  # fmt: skip


@pytest.mark.parametrize("fn", COMPREHENSIONS, ids=lambda f: f.__name__)
def test_comprehension(fn):
    check_replay(fn, torch.randn(3))


def test_handlers_that_cpython_adds_are_not_the_programs():
    """From 3.12 on to generators, `yield from` and inlined comprehensions: no call reruns for them if its graph raises."""

    def rows(x):
        yield from x

    compiled = smelt.compile(lambda x: sum([row.sum().item() for row in rows(x.sin())]))
    compiled(torch.ones(2, 3))
    assert "rerun_eagerly" not in entries(compiled)[0].source


# `super().name` is one instruction; a slice of a subscript needs no slice object.


class Base:
    k = 3

    def scaled(self, x):
        return x * self.k

    @property
    def prop(self):
        return 5

    @classmethod
    def made(cls, x):
        return x - cls.k

    def __getitem__(self, key):
        return key

    def __setitem__(self, key, value):
        self.last = key, value


class Derived(Base):
    k = 4

    def scaled(self, x):
        return super().scaled(x) + 1

    @property
    def prop(self):
        return super().prop + 1

    @classmethod
    def made(cls, x):
        return super().made(x) * 2

    def two_arguments(self, x):
        return super(Derived, self).scaled(x)

    def in_a_closure(self, x):
        return (lambda: super(Derived, self).scaled(x))(), [super(Derived, self).prop for _ in range(2)]

    def no_such(self):
        try:
            return super().nothing
        except AttributeError as error:
            return str(error)


def test_super():
    def f(x):
        d = Derived()
        method = super(Derived, d).scaled
        return (
            d.scaled(x), d.prop, d.made(x), Derived.made(x), d.two_arguments(x), d.in_a_closure(x), d.no_such(), method(x)
        )  # fmt: skip

    check_replay(f, torch.randn(3))


def test_slices():
    def f(x):
        numbers, own, y = list(range(10)), Base(), x.clone()
        numbers[1:3] = [0]
        del numbers[1:2]
        own[3:4] = 5
        y[1:2] = 0
        y[:1] += 5
        return numbers, numbers[:-1], own[1:2], own.last, y[1:], "text"[1:3]

    check_replay(f, torch.randn(3))


NEW_SYNTAX = {
    "generic function": "def f[T](x: T) -> T: return x + 1",
    "generic function inside": """
def f(x):
    def g[T: int, *Ts, **P, U: (int, str)](a: T) -> U: return a
    return g(x) + 1, [p.__name__ for p in g.__type_params__]
""",
    "generic class": """
def f(x):
    class C[T]:
        def double(self, x: T) -> T: return x * 2
    return C().double(x), len(C.__type_params__)
""",
    "type alias": """
def f(x):
    type Numbers[T] = list[T] | Undefined
    return x + 1, Numbers.__name__
""",
    "nested quotes": """
def f(x):
    d = {"a": 1}
    return x + 1, f"{d["a"]!r:>{3}} {'\\n'.join(["b"])}"
""",
    "super in a comprehension": """
class A:
    def g(self, x): return x + 1
class B(A):
    def g(self, x): return [super().g(x) for _ in range(2)]
def f(x):
    return B().g(x)
""",
    "own names in a class comprehension": """
def f(x):
    class C:
        k = 2
        r = [k for k in range(3)]
        own = lambda: [__class__ for _ in range(1)]
    return C.r, C.k, C.own()[0].__name__, x + 1
""",
}


@SINCE_312
@pytest.mark.parametrize("name", NEW_SYNTAX)
def test_new_syntax(name):
    check_replay(define(NEW_SYNTAX[name]), torch.randn(3))


@SINCE_312
def test_a_generic_function_does_not_leave():
    f = define("def f(x):\n    def g[T](a): return a\n    return g, x")
    with pytest.raises(Unsupported, match="TypeVar"):
        capture(f, torch.ones(1))
