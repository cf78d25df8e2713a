"""What CPython 3.13 does otherwise than 3.12 did, and syntax that older versions cannot parse (hence programs as text)."""

# ruff: noqa: C400, C416, F821, F841  (the constructs are the point)

import collections
import copy
import dataclasses
import functools
import pathlib
import sys
import warnings

import pytest
import torch

import smelt
from tests.harness.captured import check_replay

pytestmark = pytest.mark.skipif(sys.version_info < (3, 13), reason="Python 3.13")


def define(source):
    scope = {"torch": torch, "__name__": __name__}
    exec(source, scope)
    return scope["f"]


# PEP 667: `locals()` of a function is a new dictionary at each call.


def locals_are_snapshots(x):
    n = 1
    first = locals()
    n = 2
    second = locals()
    first["n"] = 7
    return first["n"], second["n"], n, first is second, x + n


def locals_in_a_comprehension(x):
    n = 3
    inside = [sorted(locals()) for i in range(1)]
    return inside, sorted(locals()), x + n


def locals_in_a_class_body(x):
    class C:
        a = 1
        names = [name for name in locals() if name.startswith("a")]
        locals()["b"] = 2

    return C.names, C.b, x + C.b


# PEP 696 and the attributes of classes and functions.


def what_classes_know_of_themselves(x):
    class C:
        def __init__(self):
            self.a = x
            self.b = 1

        def more(self):
            self.c = 2

    return sorted(C.__static_attributes__), C.__firstlineno__ > 0, C().a + 1


def docstrings_are_stripped(x):
    def inner():
        """First line.

        Indented.
            More.
        """

    return inner.__doc__, x + len(inner.__doc__)


# Generators and iterators.


def close_gives_a_value(x):
    def numbers():
        try:
            yield x + 1
        except GeneratorExit:
            return x * 2

    made, unused, ended = numbers(), numbers(), numbers()
    first = next(made)
    list(ended)
    return first, made.close(), made.close(), unused.close(), ended.close()


def close_of_a_delegating_generator(x):
    log = []

    def inner():
        try:
            yield x
        except GeneratorExit:
            return log.append("inner")

    def outer():
        try:
            yield from inner()
        except GeneratorExit:
            return "outer"

    made = outer()
    next(made)
    return made.close(), log, x + 1


def comprehensions_take_iterators_twice(x):
    class Numbers:
        def __init__(self):
            self.asked = 0

        def __iter__(self):
            self.asked += 1
            return self

        def __next__(self):
            raise StopIteration

    inlined, generated = Numbers(), Numbers()
    return [i for i in inlined], list(i for i in generated), inlined.asked, generated.asked, x + 1


# The library.


@dataclasses.dataclass
class Point:
    x: object
    n: int = 1


class Replaced:
    def __init__(self, a):
        self.a = a

    def __replace__(self, /, **changes):
        return Replaced(**{"a": self.a, **changes})


def replaced_copies(x):
    Pair = collections.namedtuple("Pair", "a b")
    point = copy.replace(Point(x), n=3)
    pair = copy.replace(Pair(x, 1), b=2)
    own = copy.replace(Replaced(1), a=x)
    try:
        copy.replace([1], n=2)
    except TypeError as error:
        message = str(error)
    return point.x + point.n, pair.a * pair.b, own.a, message


def texts_of_data_classes(x):
    return repr(Point(1, 2)), str(Point([Point(2)])), x + 1


def texts_of_a_chain_map(x):
    return repr(collections.ChainMap({"a": 1}, {"b": 2})), x + 1


class Dispatching:
    @functools.singledispatchmethod
    def apply(self, value):
        return "object"

    @apply.register
    def _(self, value: int):
        return value * 2

    @apply.register
    def _(self, value: torch.Tensor):
        return value + 1

    @functools.singledispatchmethod
    @classmethod
    def of_class(cls, value):
        return cls.__name__

    @of_class.register
    @classmethod
    def _(cls, value: int):
        return cls.__name__, value


def methods_by_class(x):
    d = Dispatching()
    return d.apply(x), d.apply(3), d.apply("a"), Dispatching.of_class(1), d.of_class("a"), d.apply(x)


def paths(x):
    p = pathlib.PurePosixPath("/a/b") / "c.txt"
    return p, p.name, p.suffix, p.parent, p.parts, p.with_suffix(".py"), str(p.relative_to("/a")), x + 1


def deprecated_functions(x):
    def old(value):
        return value + 1

    return warnings.deprecated("no more")(old).__deprecated__, x + 1


PROGRAMS = (
    locals_are_snapshots, locals_in_a_comprehension, locals_in_a_class_body, what_classes_know_of_themselves,
    docstrings_are_stripped, close_gives_a_value, close_of_a_delegating_generator, comprehensions_take_iterators_twice,
    replaced_copies, texts_of_data_classes, texts_of_a_chain_map, methods_by_class, paths,
    deprecated_functions,
)  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_program(fn):
    check_replay(fn, torch.randn(3))


if sys.version_info >= (3, 13):

    @warnings.deprecated("an old function")
    def old_function(x):
        return x + 1

    @warnings.deprecated("an old class")
    class OldClass:
        def __init__(self, x):
            self.x = x


def test_what_is_deprecated_warns_of_the_line_that_uses_it():
    def fn(x):
        y = old_function(x)
        return OldClass(y).x

    def warned(fn):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = fn(torch.ones(2)).tolist()
        return result, [(str(w.message), w.category, w.filename, w.lineno) for w in caught]

    compiled = smelt.compile(fn, fullgraph=True)
    for _ in range(3):
        assert warned(compiled) == warned(fn)


NEW_SYNTAX = {
    "defaults of type parameters": """
def f(x):
    def g[T = int, *Ts = *tuple[int, str], **P = [int]](a: T) -> T: return a
    class C[T: object = Undefined]:
        def same(self, x: T) -> T: return x
    given = [p.has_default() for p in g.__type_params__], g.__type_params__[0].__default__
    return g(x) + 1, C().same(x), given, C.__type_params__[0].has_default()
""",
    "an alias with defaults": """
def f(x):
    type Pair[A, B = A] = tuple[A, B]
    return x + 1, Pair.__type_params__[1].has_default()
""",
    "a nested class scope": """
def f(x):
    class C[T]:
        k = [n for n in (1, 2)]
        def g[U](self, a: U) -> tuple[T, U]: return a + sum(C.k)
    return C().g(x)
""",
}


@pytest.mark.parametrize("name", NEW_SYNTAX)
def test_new_syntax(name):
    check_replay(define(NEW_SYNTAX[name]), torch.randn(3))
