"""What the standard library keeps of the program: registries, caches of generic types, traces, weak references."""

from __future__ import annotations

import codecs
import collections
import copyreg
import sys
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

import smelt
from tests.harness.catalogue import program, tensor

Alias = typing.TypeVar("Alias")
Aliases = typing.Tuple[Alias, ...]  # noqa: UP006


class Extended:
    """Registered and unregistered by the tests."""


@typing.runtime_checkable
class Closing(typing.Protocol):
    def close(self) -> None: ...


class Closer:
    def close(self) -> None: ...


def calls(number: int = 3) -> list[tuple[torch.Tensor]]:
    return [(tensor(3),) for _ in range(number)]


@program(graphs=1)
def extensions_of_pickle_are_registered_once():
    def fn(x):
        copyreg.add_extension(__name__, "Extended", 0xE0)
        code = copyreg._extension_registry[__name__, "Extended"]
        copyreg.remove_extension(__name__, "Extended", 0xE0)
        return x * code

    return fn, calls(), lambda: sorted(copyreg._extension_registry)


@program(graphs=1)
def a_protocol_that_a_class_of_the_user_follows():
    def fn(x):
        return x + isinstance(Closer(), Closing), issubclass(Closer, Closing), isinstance(3, Closing)

    return fn, calls(), lambda: "__slotnames__" in vars(Closing)


@program(graphs=1)
def generic_types_that_typing_keeps():
    def fn(x):
        optional = typing.Optional[int]  # noqa: UP007, UP045
        return x + 1, typing.List[int], typing.Tuple[Alias, ...], optional, typing.Union  # noqa: UP006

    def same():
        made = fn(torch.ones(1))
        return made[1] is typing.List[int], made[2] is Aliases, made[4] is typing.Union  # noqa: UP006

    return fn, calls(), same


@program(graphs=1)
def a_type_variable_of_each_call():
    def fn(x):
        made = typing.TypeVar("made")
        return x + 1, made.__name__, made.__module__, typing.List[made].__parameters__ == (made,)  # noqa: UP006

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def a_weak_reference_to_a_function_made_inside():
    def fn(x):
        def inner():
            return 3

        y = x * inner()
        reference = weakref.ref(inner)
        alive = reference() is inner
        del inner
        return y + alive, reference() is None

    return fn, calls()


@program(graphs=0, breaks=["input-output"], eager=["input-output"])
def lines_that_a_tracer_counts():
    lines: list[int] = []

    def traced(run: Callable[[Any], Any], x: Any) -> Any:
        def trace(frame, event, arg):
            if event == "line" and frame.f_code.co_name == run.__name__:
                lines.append(frame.f_lineno - run.__code__.co_firstlineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return run(x)
        finally:
            sys.settrace(before)

    def body(x):
        if x is None:
            return 1
        return 2

    def fn(x):
        return traced(body, x)

    return fn, calls(), lines


@program(graphs=1, later=1)
def generic_types_that_are_given():
    def fn(x, kind):
        return x + 1, kind, (kind, 3)

    given = [typing.List[int], typing.Tuple[int, int], Alias, typing.List[int]]  # noqa: UP006
    return fn, [(tensor(3), kind) for kind in given]


@program(graphs=1, breaks=["graph-break-requested"])
def generic_types_behind_a_break():
    def fn(x, kind):
        smelt.graph_break()
        return x + 1, kind, (kind, 3)

    given = [typing.List[int], typing.Tuple[int, int], typing.List[int]]  # noqa: UP006
    return fn, [(tensor(3), kind) for kind in given]


@program(graphs=1)
def a_circle_of_contexts():
    def fn(x):
        first, second = ValueError("first"), KeyError("second")
        first.__context__, second.__context__ = second, first
        try:
            try:
                raise first
            finally:
                raise TypeError("third")
        except TypeError as e:
            return x + 1, str(e), type(e.__context__).__name__

    return fn, calls()


@program(graphs=1)
def an_exception_thrown_into_what_handles_another():
    def inner():
        yield 1

    def outer():
        try:
            raise KeyError("a")
        except KeyError:
            yield from inner()

    def fn(x):
        running = outer()
        next(running)
        try:
            running.throw(ValueError)
        except ValueError as e:
            return x + 1, repr(e.__context__)

    return fn, calls()


@program(graphs=1, breaks=["unsupported-object"])
def builtins_that_a_module_replaces():
    scope: dict[str, Any] = {"__builtins__": {"len": lambda x: 7}}
    exec("def count(x): return len(x)", scope)
    count = scope["count"]

    def fn(x):
        return x + count([1, 2])

    return fn, calls()


@program(graphs=0)
def warnings_that_the_program_keeps():
    def fn(n):
        with warnings.catch_warnings(record=True) as kept:
            warnings.simplefilter("always")
            warnings.warn("hello", DeprecationWarning, stacklevel=1)
            count = len(kept)
        return count + n

    return fn, [(1,), (1,), (1,)]


@program(graphs=1)
def a_view_of_a_mapping_that_is_no_dictionary():
    chained = collections.ChainMap({"x": 1}, {"y": 2})

    def fn(x):
        view = types.MappingProxyType(chained)
        return x + 1, view, type(view.copy()).__name__

    return fn, calls()


@program(graphs=1)
def a_class_that_is_made_wrongly():
    class Meta(type):
        def __new__(cls, name, bases, namespace):
            return super().__new__(cls, name=name, bases=bases, dict=namespace)

    def fn(x):
        try:
            Meta("made", (), {})
        except TypeError as e:
            return x + 1, str(e)

    return fn, calls()


@program(graphs=1, breaks=["unsupported-call"] * 4)
def codecs_that_are_registered_and_removed():
    registered = []

    def fn(x):
        def search(name):
            return codecs.lookup("ascii") if name == "own" else None

        codecs.register(search)
        registered.append(search)
        text = codecs.encode("a", "own"), "b".encode("own")
        codecs.unregister(search)
        try:
            codecs.lookup("own")
        except LookupError as e:
            return x + 1, text, str(e)
        return x

    return fn, calls(), lambda: len(registered)


@program(graphs=1, breaks=["unsupported-call"] * 3)
def a_handler_of_encoding_errors():
    def fn(x):
        codecs.register_error("own", lambda error: ("?", error.end))
        return (
            x + 1,
            codecs.encode("\xe4b", "ascii", "own"),
            codecs.lookup_error("own")(UnicodeEncodeError("ascii", "\xe4", 0, 1, "")),
        )

    return fn, calls()
