"""Constants from outside that are equal and yet not the same: ranges, NaN, other objects; the compiled function's own
parts; where classes live that are made inside."""

from __future__ import annotations

import collections
import enum
import typing

import torch

from tests.harness.catalogue import Changing, program, tensor

NAN, OTHER_NAN = float("nan"), float("nan")
WORD, OTHER_WORD = "".join(["a b"]), "".join(["a", " b"])
NUMBER, OTHER_NUMBER = int("12345"), int("12345")
PAIR, OTHER_PAIR = tuple([1, 2]), tuple([1, 2])


def given(*values):
    return [(tensor(3), *(value if type(value) is list else [value])) for value in values]


@program(graphs=1, later=3)
def ranges_of_equal_numbers():
    def fn(x, r):
        return x * 2, list(r), r.start, r.stop, r.step

    return fn, given(range(0), range(2, 2), range(0, 3, 2), range(0, 4, 2), range(0))


@program(graphs=1, later=1)
def ranges_in_a_tuple():
    def fn(x, pair):
        return x * 2, repr(pair), pair[0].stop

    return fn, given((range(0, 3, 2), 1), (range(0, 4, 2), 1), (range(0, 3, 2), 1))


@program(graphs=1, later=2)
def containers_find_nan_by_identity():
    def fn(x, a, b):
        found = a in (b,), a in [b], (a,) == (b,), [a] == [b], [b].count(a), {a: 1}.get(b), a in {b}
        return x * 2, found, a == b

    return fn, given([NAN, NAN], [NAN, OTHER_NAN], [OTHER_NAN, OTHER_NAN])


@program(graphs=1)
def any_nan_will_do_where_nobody_asks_which():
    def fn(x, a):
        return x * a, a == a

    return fn, given(NAN, OTHER_NAN, float("nan"))


@program(graphs=1, later=2)
def equal_constants_need_not_be_the_same():
    def fn(x, a, b):
        return x * 2, a is b, a == b

    return fn, given([WORD, WORD], [WORD, OTHER_WORD], [WORD, WORD], [NUMBER, NUMBER])


@program(graphs=1, later=1)
def a_constant_that_a_closure_knows():
    def fn(x, number, pair):
        return x * 2, number is NUMBER, pair is PAIR

    return fn, given([NUMBER, PAIR], [OTHER_NUMBER, OTHER_PAIR], [NUMBER, PAIR])


@program(graphs=1)
def which_none_or_small_number_it_is_is_known():
    def fn(x, a, b):
        return x * 2, a is None, b is 7  # noqa: F632

    return fn, given([None, 7], [None, int("7")], [None, 7])


# ------------------------------------------------------------------------------- the compiled function's own


@program(graphs=1, later=1)
def other_defaults():
    def fn(x, factor=2, *, offset=1):
        return x * factor + offset

    def change():
        fn.__defaults__ = (5,)
        fn.__kwdefaults__ = {"offset": 3}

    return fn, Changing(given(*[[]] * 4), {2: change})


@program(graphs=1)
def no_defaults():
    def fn(x, factor=2):
        return x * factor

    return fn, Changing(given(*[[]] * 3), {1: lambda: setattr(fn, "__defaults__", None)})


@program(graphs=1, later=1)
def defaults_where_there_were_none():
    def fn(x, factor):
        return x * factor

    return fn, Changing([*given(2), *given([], [])], {1: lambda: setattr(fn, "__defaults__", (7,))})


@program(graphs=1, later=1)
def a_tensor_as_a_default():
    def fn(x, other=torch.ones(3)):  # noqa: B008
        return x + other

    return fn, Changing(given([], [], []), {1: lambda: setattr(fn, "__defaults__", (torch.ones(1),))})


@program(graphs=1)
def other_code():
    def fn(x):
        return x * 2

    def other(x, *more):
        return x * 7, more

    return fn, Changing(given(*[[]] * 3), {1: lambda: setattr(fn, "__code__", other.__code__)})


@program(graphs=1)
def other_code_of_a_method():
    class Scale:
        def __call__(self, x):
            return x * 2

        def method(self, x):
            return x * 3

    def other(self, x):
        return x * 7

    return Scale().method, Changing(
        given(*[[]] * 3), {1: lambda: setattr(Scale.method, "__code__", other.__code__)}
    )


def test_what_is_set_on_the_compiled_function_is_set_on_the_function():
    import smelt

    def fn(x, factor=2):
        return x * factor

    compiled = smelt.compile(fn)
    x = torch.ones(1)
    assert compiled(x).item() == 2
    compiled.__defaults__ = (5,)
    assert compiled(x).item() == fn(x).item() == 5
    assert compiled.__defaults__ == (5,)
    compiled.__code__ = (lambda x, factor: x - factor).__code__
    assert compiled(x).item() == fn(x).item() == -4


@program(graphs=1)
def what_is_made_inside_lives_in_the_users_module():
    def fn(x):
        made = (
            collections.namedtuple("Pair", "a b"),
            typing.NamedTuple("Named", [("a", int)]),
            typing.TypedDict("Typed", {"a": int}),
            enum.Enum("Colour", "RED GREEN"),
            typing.NewType("New", int),
        )
        return x * 2, [m.__module__ for m in made], typing.TypeVar("T").__module__

    return fn, given(*[[]] * 3)
