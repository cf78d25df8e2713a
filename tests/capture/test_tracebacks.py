"""Tracebacks and stacks show the user's frames, as in eager: files, lines, columns and names.

Exceptions are raised in interpreted code, in calls of a compiled frame at a break, and after a break.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.driver.cache_entries import reasons_of

Program = Callable[[torch.Tensor], Any]
PROGRAMS: list[Program] = []


def program(fn: Program) -> Program:
    PROGRAMS.append(fn)
    return fn


def refused(x: object) -> None:
    open("/nonexistent/file")  # noqa: SIM115


def calls_refused(x: object) -> int:
    refused(
        x,
    )
    return 1


def report(fn: Callable[[], object]) -> str:
    try:
        fn()
    except Exception:
        return traceback.format_exc()
    return ""


@smelt.disable
def stack() -> list[tuple[str, str, int | None]]:
    """The frames of this file, outermost first, without its own."""
    frames = traceback.extract_stack(sys._getframe(1))
    return [(f.filename, f.name, f.lineno) for f in frames if f.filename == __file__]


@smelt.disable
def caller() -> tuple[str, str]:
    code = sys._getframe(1).f_code
    return code.co_name, code.co_qualname


def through(x: torch.Tensor) -> object:
    return [stack(), 2]


class Box:
    def method(self, x: torch.Tensor) -> object:
        found = through(x)
        return found, caller()


@program
def raised_in_what_is_interpreted(x):
    def fails():
        if x is not None:
            raise ValueError("in a call")  # noqa: E701

    return report(fails), x + 1


@program
def raised_by_native_code(x):
    return report(lambda: int("1" + "a")), x + 1


@program
def raised_by_an_import(x):
    def runs():
        from json import nothing

        return nothing

    return report(runs), x + 1


@program
def raised_at_a_break(x):
    def runs():
        return calls_refused(x) + 1

    return report(runs), x + 1


@program
def raised_after_a_break(x):
    def runs():
        smelt.graph_break()
        return {}[3]

    return report(runs), x + 1


@program
def raised_again(x):
    def runs():
        try:
            calls_refused(x)
        except OSError:
            raise

    return report(runs), x + 1


@program
def raised_from_another(x):
    def runs():
        try:
            {}["missing"]
        except KeyError as e:
            smelt.graph_break()
            raise ValueError("changed") from e

    return report(runs), x + 1


@program
def a_group(x):
    def runs():
        raise ExceptionGroup("all", [ValueError(1), TypeError(2)])

    return report(runs), x + 1


@program
def the_stack_of_a_callee(x):
    first = stack()
    second = Box().method(x + 1)
    return first, second, stack()


@program
def names_of_the_frame(x):
    y = x + 1
    found = caller()
    return found, y


@program
def in_a_loop(x):
    found = []
    for i in range(3):
        found.append(through(x + i))
    return found


@program
def the_traceback_of_a_handled_exception(x):
    try:
        int("a")
    except ValueError as e:
        found = e.__traceback__
        return found.tb_lineno, found.tb_frame.f_code.co_name, found.tb_next is None, x + 1


@program
def frames_that_ask_for_their_variables(x):
    def fails():
        return int("a" if x is not None else "b")

    try:
        y = fails()
    except ValueError as e:
        smelt.graph_break()
        at, found = e.__traceback__, []
        while at is not None:
            found.append((at.tb_frame.f_code.co_name, type(at.tb_frame.f_locals).__name__))
            at = at.tb_next
        return found, x + 1
    return y


def plain(result: object) -> object:
    return [plain(v) for v in result] if isinstance(result, (tuple, list)) else str(result)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_frames_in_tracebacks(fn: Program) -> None:
    compiled = smelt.compile(fn, backend="eager")
    for _ in range(2):
        shown = [call(torch.ones(2)) for call in (fn, compiled)]
        assert plain(shown[1]) == plain(shown[0])


@pytest.mark.parametrize("fn", [calls_refused, Box.method], ids=lambda fn: fn.__name__)
def test_exceptions_that_leave_the_function(fn: Callable[..., object]) -> None:
    shown = []
    for call in (fn, smelt.compile(fn, backend="eager")):
        with pytest.raises((OSError, TypeError)) as caught:
            call(*([None] * len(inspect.signature(fn).parameters)), *([1] if fn is Box.method else []))
        shown.append("".join(traceback.format_tb(caught.value.__traceback__)[1:]))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", ["<lambda>", "two words", "1", "class", ""])
def test_name_that_is_not_an_identifier(name: str) -> None:
    def outer(x: torch.Tensor) -> object:
        try:
            return inner(x + 1)
        except KeyError:
            return 3

    def inner(x: torch.Tensor) -> object:
        smelt.graph_break()
        return x * 2, caller()

    def renamed(fn: types.FunctionType) -> types.FunctionType:
        fn.__code__ = fn.__code__.replace(co_name=name, co_qualname=name)
        return fn

    inner = renamed(inner)
    want = renamed(outer)(torch.ones(2))
    compiled = smelt.compile(outer, backend="eager")
    assert plain(compiled(torch.ones(2))) == plain(want)
    assert not reasons_of(compiled)


def test_a_call_while_the_caller_handles_an_exception() -> None:
    def fn(x: torch.Tensor) -> object:
        try:
            {}["a"]
        except KeyError:
            return x + 1, str(sys.exception())

    compiled = smelt.compile(fn, backend="eager")
    for attempt in range(3):
        try:
            if attempt != 1:
                raise OSError
            found = compiled(torch.ones(2))
        except OSError:
            found = compiled(torch.ones(2))  # a retry
        assert plain(found) == plain(fn(torch.ones(2)))
    assert not [r for r in reasons_of(compiled) if r.kind.id == "internal-error"]


@pytest.mark.parametrize("left", range(2, 40, 3))  # asking takes a frame more than the call
def test_a_first_call_near_the_recursion_limit(left: int) -> None:
    def runs_at(depth: int, call: Callable[[int], int]) -> int:
        return call(1) if depth == 0 else runs_at(depth - 1, call)

    def one_more(x: int) -> int:
        return x + 1

    depth = 0
    with pytest.raises(RecursionError):
        while True:
            runs_at(depth, one_more)
            depth += 1
    compiled = smelt.compile(one_more, backend="eager")
    assert runs_at(depth - left, compiled) == 2


@smelt.disable
def fails() -> None:
    raise ValueError("not captured")


def test_traceback_through_a_finally_block_after_a_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        try:
            y = x + 1
            fails()
        finally:
            x = x * 2
        return y

    def lines(fn: Program) -> list[tuple[str, int | None]]:
        with pytest.raises(ValueError, match="not captured") as caught:
            fn(torch.ones(2))
        frames = traceback.extract_tb(caught.value.__traceback__)
        return [(f.name, f.lineno) for f in frames if f.filename == __file__ and f.name != "lines"]

    compiled = smelt.compile(fn)
    for _ in range(3):
        assert lines(compiled) == lines(fn)
