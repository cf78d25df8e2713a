"""Temporaries of a break instruction: objects whose end has an effect, and that the same expression drops.

`open(path, "a").write(text)` closes the file at its end, and `handles.pop()` ends what it returns. So the break continues to
the instruction that takes the temporary from the stack, and the compiled frame forgets it there.
"""

from __future__ import annotations

import copy
import itertools
import os
import pathlib
import types

from smelt._native import isinstance
from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import BREAK_INSTRUCTIONS, BreakInstruction, Successor
from smelt.capture.graph_breaks.live_locals import handler_at
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.errors import Unsupported

_IGNORED = frozenset(("NOP", "CACHE", "PRECALL", "RESUME", "NOT_TAKEN"))
_READS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))  # the result may hold the object
_STEPS = _READS | frozenset((
    "LOAD_GLOBAL", "GET_ITER", "CALL", "CALL_KW", "BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP", "CONVERT_VALUE",
    "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING", "BUILD_LIST", "BUILD_TUPLE", "BUILD_MAP",
    "BUILD_SLICE", "BINARY_SLICE", "STORE_ATTR", "STORE_SUBSCR",
))  # fmt: skip


def opens(instruction: BreakInstruction) -> bool:
    """Whether `instruction` opens a file, or a progress bar, which its iterator holds."""
    for called in instruction.operands[:2]:  # the result and the function
        function = called.__func__ if type(called) is types.MethodType else called
        owner = function if isinstance(function, (type, types.FunctionType)) else type(function)
        if any(function is opener for opener in _OPENERS) or _module(owner).startswith("tqdm."):
            return True
    return False


def _module(owner: type | types.FunctionType) -> str:
    """The module of `owner`; runs no code of a metaclass."""
    return str(type.__getattribute__(owner, "__module__") if isinstance(owner, type) else owner.__module__)


_OPENERS = (open, os.fdopen, pathlib.Path.open)


def with_temporaries(frame: Frame, instruction: BreakInstruction) -> BreakInstruction:
    """`instruction`, at which `frame` stands, with those that follow up to the one that takes its result from the stack, if
    no value besides the last result is then left of them; else `instruction` alone."""
    if len(instruction.successors) != 1 or instruction.conditions:
        return instruction
    steps, here = [instruction], copy.copy(frame)  # it clears its lists when it ends
    here.pc, here.stack = instruction.successors[0].at, list(instruction.successors[0].stack)
    here.locals, here.kwnames = list(frame.locals), ()
    depth = len(here.stack)
    temporaries = {id(v): v for v in here.stack if type(v) is Placeholder}
    while any(id(v) in temporaries for v in here.stack):
        if handler_at(here.code, here.pc) != handler_at(frame.code, frame.pc) or not _step(
            here, steps, temporaries
        ):
            return instruction
    if len(here.stack) > depth or not temporaries:
        return instruction
    forgotten = " = ".join(["{}"] * len(temporaries)) + " = None"
    return BreakInstruction(
        (*itertools.chain.from_iterable(step.operands for step in steps), *temporaries.values()),
        (Successor(here.pc, list(here.stack)),),
        "\n".join((*(step.text for step in steps), forgotten)),
    )


def _step(frame: Frame, steps: list[BreakInstruction], temporaries: dict[int, Placeholder]) -> bool:
    """Advance `frame` by one instruction, which is added to `steps` unless it is only a load; False if it cannot be."""
    name, arg = frame.code.names[frame.pc], frame.instructions[frame.pc][1]
    if name == "POP_TOP":
        frame.stack.pop()
    elif name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST"):
        value = arg if name == "LOAD_CONST" else frame.locals[arg]
        if value is NULL:
            return False
        frame.stack.append(value)
    elif name == "LOAD_DEREF":
        value = Placeholder("value")
        steps.append(BreakInstruction((value, frame.locals[arg]), (), "{} = {}.cell_contents"))
        frame.stack.append(value)
    elif name == "PUSH_NULL":
        frame.stack.append(NULL)
    elif name == "KW_NAMES":
        frame.kwnames = arg
    elif name in _STEPS:
        try:
            step = BREAK_INSTRUCTIONS[name](frame, arg)
        except Unsupported:
            return False
        (after,) = step.successors
        holder = frame.stack[-1]
        frame.pc, frame.stack, frame.kwnames = after.at, after.stack, ()
        steps.append(step)
        if name in _READS and id(holder) in temporaries:
            temporaries.update((id(v), v) for v in step.operands if type(v) is Placeholder)
        return True
    elif name not in _IGNORED:
        return False
    frame.pc += 1
    return True
