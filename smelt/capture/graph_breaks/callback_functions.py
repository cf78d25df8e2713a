"""Python callbacks of C functions at a graph break: each callback is compiled on its own.

A C function whose callback cannot be captured runs eagerly, with a compiled callback. `CALLBACK_ARGUMENTS` has the argument
that a C function only calls and never passes on or stores.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import cast

from smelt.capture.base.value_kinds import FunctionType, MethodType
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import BREAK_INSTRUCTIONS, BreakInstruction, Constant
from smelt.capture.graph_breaks.resume_points import Placeholder

# the placeholder of `ResumeFunctions.compiled_callback`
COMPILED_CALLBACK = Constant(None, "compiled_callback")

# function -> (index of the positional argument or -1, name of the keyword or "")
CALLBACK_ARGUMENTS: dict[object, tuple[int, str]] = {
    sorted: (-1, "key"), min: (-1, "key"), max: (-1, "key"), map: (0, ""), filter: (0, ""),
    functools.reduce: (0, ""), itertools.accumulate: (1, "func"), itertools.dropwhile: (0, ""),
    itertools.filterfalse: (0, ""), itertools.groupby: (1, "key"), itertools.starmap: (0, ""),
    itertools.takewhile: (0, ""), re.sub: (1, "repl"), re.subn: (1, "repl"),
}  # fmt: skip
_METHODS: dict[tuple[type, str], tuple[int, str]] = {
    (list, "sort"): (-1, "key"),
    (re.Pattern, "sub"): (0, "repl"),
    (re.Pattern, "subn"): (0, "repl"),
}


def instruction_with_compiled_callbacks(frame: Frame) -> BreakInstruction | None:
    """The instruction at which `frame` stands, with compiled callbacks; None where it calls no Python function."""
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    if name == "CALL":
        return _call(BREAK_INSTRUCTIONS[name](frame, arg), frame.kwnames)
    if name == "CALL_KW":
        return _call(BREAK_INSTRUCTIONS[name](frame, arg), cast("tuple[str, ...]", frame.stack[-1]))
    return _for_iter(frame, arg) if name == "FOR_ITER" else None


def _call(step: BreakInstruction, names: tuple[str, ...]) -> BreakInstruction | None:
    _, fn, *arguments = step.operands
    argument = _callback_argument(fn)
    if argument is None:
        return None
    index, keyword = argument
    first, count = 2, len(arguments) - len(names)
    chosen = [i for i in range(len(arguments)) if (i == index if i < count else names[i - count] == keyword)]
    chosen = [i for i in chosen if type(arguments[i]) in (FunctionType, MethodType)]
    if not chosen:
        return None
    operands, text = list(step.operands), step.text
    for i in reversed(chosen):
        operands[first + i : first + i + 1] = [COMPILED_CALLBACK, operands[first + i]]
        text = _with_call_at(text, first + i)
    return BreakInstruction(tuple(operands), step.successors, text)


def _callback_argument(fn: object) -> tuple[int, str] | None:
    try:
        found = CALLBACK_ARGUMENTS.get(fn)
    except TypeError:  # unhashable
        return None
    owner = getattr(fn, "__self__", None)
    return found or _METHODS.get((type(owner), str(getattr(fn, "__name__", ""))))


def _with_call_at(text: str, number: int) -> str:
    """`text` with the call `{}({})` instead of field `number`."""
    parts = text.split("{}")
    return "{}".join(parts[: number + 1]) + "{}({})" + "{}".join(parts[number + 1 :])


def _for_iter(frame: Frame, arg: int) -> BreakInstruction | None:
    """FOR_ITER over an iterator with a `__next__` in Python."""
    iterator = frame.stack[-1]
    if type(getattr(type(iterator), "__next__", None)) is not FunctionType:
        return None
    step = BREAK_INSTRUCTIONS["FOR_ITER"](frame, arg)
    value = cast(Placeholder, step.operands[0])
    text = "try:\n    {} = {}(type({}).__next__)({})\nexcept StopIteration:\n    {} = exhausted"
    return BreakInstruction(
        (value, COMPILED_CALLBACK, iterator, iterator, value, value), step.successors, text, step.conditions
    )
