"""`sys._getframe` and `inspect.currentframe` in a function that a compiled one calls: lines and locals are the user's."""

import inspect
import linecache
import os
import sys

import pytest
import torch

import smelt
from smelt.report.inspect import entries, reasons

kept = None


def keep():
    global kept
    kept = sys._getframe(1)


def own_frame():
    return sys._getframe()


def goes_on(x):
    keep()
    if x.dim():
        pass


def line_after_the_return(x):
    goes_on(x)
    return x + 1, kept.f_lineno


def line_that_moves(x):
    keep()
    first = kept.f_lineno
    return x + 1, first, kept.f_lineno


def line_in_a_handler(x):
    try:
        keep()
        raise ValueError
    except ValueError:
        return x + 1, kept.f_lineno


def line_in_a_generator(x):
    def rows():
        keep()
        yield 1
        yield 2

    lines = []
    for _ in rows():
        lines.append(kept.f_lineno)  # noqa: PERF401
    return x + 1, lines


def caller_of_a_frame_that_is_returned(x):
    frame = own_frame()
    return x + 1, frame.f_lineno, frame.f_back.f_lineno


def names_here():
    return sorted(inspect.currentframe().f_back.f_locals)


def names_by_variable():
    frame = inspect.currentframe()
    outer = frame.f_back
    return sorted(outer.f_locals)


def locals_of_the_caller(x):
    y = x + 1
    names = names_here()
    return y, names, names_by_variable()


def keep_behind_a_break():
    global kept
    os.getpid()
    kept = sys._getframe(1)


def line_of_a_frame_kept_behind_a_break(x):
    keep_behind_a_break()
    return x + 1, kept.f_lineno


def names_behind_a_break():
    os.getpid()
    return sorted(sys._getframe(1).f_locals)


def locals_behind_a_break(x):
    y = x + 1
    names = names_behind_a_break()
    return y, names


@pytest.mark.parametrize(
    "fn",
    [
        line_after_the_return,
        line_that_moves,
        line_in_a_handler,
        line_in_a_generator,
        caller_of_a_frame_that_is_returned,
        locals_of_the_caller,
        line_of_a_frame_kept_behind_a_break,
        locals_behind_a_break,
    ],
)
def test_retained_frames_and_read_locals(fn):
    compiled = smelt.compile(fn, backend="eager")
    expected = fn(torch.ones(2))
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == expected[1:]


def direct():
    return sys._getframe(1).f_lineno


def by_back():
    return inspect.currentframe().f_back.f_lineno


def by_variable():
    frame = sys._getframe(1)
    name = frame.f_code.co_name
    return name, frame.f_lineno


def by_a_walk():
    frame = sys._getframe(1)
    lines = []
    while frame is not None and len(lines) < 2:
        lines.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return lines


def own_locals():
    answer = 42
    return dict(sys._getframe().f_locals), answer


@pytest.mark.parametrize("ask", [direct, by_back, by_variable, by_a_walk, own_locals])
def test_inspected_frame_breaks_the_graph(ask):
    def inner(x):
        found = ask()
        return x * 2, found

    def fn(x):
        y, found = inner(x + 1)
        return y + 1, found

    def call(run):
        return run(torch.ones(2))

    compiled = smelt.compile(fn, backend="eager")
    expected = call(fn)
    for _ in range(2):
        assert call(compiled)[1] == expected[1]
    assert len(entries(compiled)) == 1
    assert len(reasons(compiled)) == 1
