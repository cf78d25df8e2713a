"""Functions of Python that code of C calls at a graph break: they are compiled, each on its own.

A function of C whose callback cannot be captured is called for real, with the callback as a callable that has its frames
compiled. `CALLING` says which of its arguments a function of C only calls, and never gives to anyone.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import cast

from smelt.capture.base.value_kinds import FunctionType, MethodType
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import ROWS, Constant, Step
from smelt.capture.graph_breaks.resume_points import Placeholder

COMPILED = Constant(None, "compiled_function")  # stands for `Resumes.given`

# the place among the positional arguments, or -1, and the name of the keyword, or ""
CALLING: dict[object, tuple[int, str]] = {
    sorted: (-1, "key"),
    min: (-1, "key"),
    max: (-1, "key"),
    map: (0, ""),
    filter: (0, ""),
    functools.reduce: (0, ""),
    itertools.accumulate: (1, "func"),
    itertools.dropwhile: (0, ""),
    itertools.filterfalse: (0, ""),
    itertools.groupby: (1, "key"),
    itertools.starmap: (0, ""),
    itertools.takewhile: (0, ""),
    re.sub: (1, "repl"),
    re.subn: (1, "repl"),
}
_METHODS: dict[tuple[type, str], tuple[int, str]] = {
    (list, "sort"): (-1, "key"),
    (re.Pattern, "sub"): (0, "repl"),
    (re.Pattern, "subn"): (0, "repl"),
}


def step_with_compiled(frame: Frame) -> Step | None:
    """The step of the instruction at which `frame` stands, with what it calls compiled; None where it calls nothing that can
    be."""
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    if name == "CALL":
        return _call(ROWS[name](frame, arg), frame.kwnames)
    if name == "CALL_KW":
        return _call(ROWS[name](frame, arg), cast("tuple[str, ...]", frame.stack[-1]))
    return _for_iter(frame, arg) if name == "FOR_ITER" else None


def _call(step: Step, names: tuple[str, ...]) -> Step | None:
    _, fn, *arguments = step.operands
    given = _calls(fn)
    if given is None:
        return None
    place, keyword = given
    first, count = 2, len(arguments) - len(names)
    chosen = [i for i in range(len(arguments)) if (i == place if i < count else names[i - count] == keyword)]
    chosen = [i for i in chosen if type(arguments[i]) in (FunctionType, MethodType)]
    if not chosen:
        return None
    operands, text = list(step.operands), step.text
    for i in reversed(chosen):
        operands[first + i : first + i + 1] = [COMPILED, operands[first + i]]
        text = _replaced(text, first + i)
    return Step(tuple(operands), step.successors, text)


def _calls(fn: object) -> tuple[int, str] | None:
    try:
        found = CALLING.get(fn)
    except TypeError:  # unhashable
        return None
    owner = getattr(fn, "__self__", None)
    return found or _METHODS.get((type(owner), str(getattr(fn, "__name__", ""))))


def _replaced(text: str, number: int) -> str:
    """`text`, with a call in place of the field of this number."""
    parts = text.split("{}")
    return "{}".join(parts[: number + 1]) + "{}({})" + "{}".join(parts[number + 1 :])


def _for_iter(frame: Frame, arg: int) -> Step | None:
    """An iterator with a `__next__` in Python."""
    iterator = frame.stack[-1]
    if type(getattr(type(iterator), "__next__", None)) is not FunctionType:
        return None
    step = ROWS["FOR_ITER"](frame, arg)
    value = cast(Placeholder, step.operands[0])
    text = "try:\n    {} = {}(type({}).__next__)({})\nexcept StopIteration:\n    {} = exhausted"
    return Step((value, COMPILED, iterator, iterator, value, value), step.successors, text, step.conditions)
