"""Loops and expressions that run eagerly at a graph break: the original bytecode from there on, as a function.

`uncaptured_loop` is the break instruction at a jump back to a loop's head, `uncaptured_expression` that at a call whose
result, a temporary, must end in the same expression (`temporaries.py`). Where the loop's code jumps out of it, the
function returns a `LoopExit` with the exit's number and the variables; where the program returns from inside of the loop,
the function returns that value.
"""

from __future__ import annotations

import copy
import dis
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt._native import isinstance
from smelt.capture.base.bytecode import ENDED_ITERATOR, LOOP_END, SUSPENDABLE, Code, raw_instructions
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import (
    BreakInstruction,
    Constant,
    Successor,
    leave_frames,
)
from smelt.capture.graph_breaks.live_locals import handler_at, successors
from smelt.capture.graph_breaks.resume_bytecode import Exit, Null, Value
from smelt.capture.graph_breaks.resume_functions import OriginalCode, frame_continuation, make_resume_function
from smelt.capture.graph_breaks.resume_points import FrameContinuation, Placeholder
from smelt.capture.reconstruction.frame_globals import provide
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

# Jumps to a loop's head -> whether the jump is taken, as an expression over the top of the stack ("": always).
LOOP_JUMPS = {
    "JUMP_BACKWARD": "",
    "POP_JUMP_BACKWARD_IF_TRUE": "{}",
    "POP_JUMP_BACKWARD_IF_FALSE": "not {}",
    "POP_JUMP_BACKWARD_IF_NONE": "{} is None",
    "POP_JUMP_BACKWARD_IF_NOT_NONE": "{} is not None",
}
_STORES = frozenset(("STORE_FAST",))
_HAVE_ARGUMENT = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))
_UNBINDS = frozenset(("DELETE_FAST", "LOAD_FAST_AND_CLEAR"))


@dataclass(frozen=True)
class LoopExit:
    """The exit through which a loop was left, and the values of its variables there."""

    number: int
    variables: dict[str, object]


def _refuse(why: str) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OPCODE, f"a loop that runs eagerly, {why}"))


@dataclass(frozen=True)
class _Loop:
    """A loop of a code object. `body`: its instructions; `exits`: (instruction outside of it, stack depth there)."""

    head: int
    body: frozenset[int]
    exits: tuple[tuple[int, int], ...]


def _loop_at(code: Code, user_code: types.CodeType, head: int, depth: int) -> _Loop:
    """The loop that begins at `head`, with a stack depth of `depth` there."""
    predecessors: dict[int, list[int]] = {}
    for at in range(len(code.names)):
        handler = handler_at(code, at)
        for after in (*_successors(code, at), *([handler[0]] if handler else [])):
            predecessors.setdefault(after, []).append(at)
    body, pending = {head}, [at for at in predecessors.get(head, ()) if at >= head]
    while pending:
        at = pending.pop()
        if at not in body:
            body.add(at)
            pending += predecessors.get(at, ())
    return _Loop(head, frozenset(body), tuple(sorted(_exits(code, user_code, head, body, depth).items())))


def _exits(code: Code, user_code: types.CodeType, head: int, body: set[int], depth: int) -> dict[int, int]:
    raw, _ = raw_instructions(user_code)
    depths, pending, exits = {head: depth}, [head], {}
    while pending:
        at = pending.pop()
        op, arg, *_ = raw[at]
        for after in _successors(code, at):
            jumps = op in dis.hasjrel and after != at + 1
            effect = dis.stack_effect(op, arg if op in _HAVE_ARGUMENT else None, jump=jumps)
            deep = depths[at] + (ENDED_ITERATOR - 1 if jumps and code.names[at] == "FOR_ITER" else effect)
            if after not in body:
                exits[after] = deep
            elif after not in depths:
                depths[after] = deep
                pending.append(after)
    if any(deep > depth for deep in exits.values()):
        raise _refuse("which leaves values on the stack")
    return exits


def _successors(code: Code, at: int) -> list[int]:
    """`successors`, where FOR_ITER at the end of its iterator jumps past END_FOR."""
    if code.names[at] == "FOR_ITER":
        return [at + 1, code.instructions[at][1] + LOOP_END]
    return successors(code, at)


def uncaptured_loop(
    originals: OriginalCode, decode: Callable[[types.CodeType], Code], frame: Frame
) -> BreakInstruction:
    """The break instruction for the loop of the backward jump at which `frame` stands.

    Raises Unsupported for a loop that cannot become a function."""
    name = frame.code.names[frame.pc]
    condition, head = LOOP_JUMPS[name], frame.instructions[frame.pc][1]
    user_code, code = originals.of(frame)
    stack = frame.stack[:-1] if condition else list(frame.stack)
    loop = _loop_at(code, user_code, head - frame.prologue, len(stack))
    return _as_function(originals, decode, frame, loop, stack, condition, 1)


def uncaptured_expression(
    originals: OriginalCode, decode: Callable[[types.CodeType], Code], frame: Frame, depth: int
) -> BreakInstruction:
    """The break instruction for the call at which `frame` stands, with what follows until the stack is lower than `depth`,
    its depth with the result of the call: the rest of a statement that drops this result.

    Raises Unsupported where the statement may hold the result, or cannot become a function."""
    user_code, code = originals.of(frame)
    head = expression_start(originals, frame).point.at
    loop = _expression_at(code, user_code, head, len(frame.stack), depth)
    return _as_function(originals, decode, frame, loop, list(frame.stack), "", 2)


def expression_start(originals: OriginalCode, frame: Frame) -> FrameContinuation:
    """The continuation of `frame` at the call at which it stands, with the names of its keyword arguments."""
    at = frame.pc
    while frame.code.names[at - 1] in ("PRECALL", "KW_NAMES"):
        at -= 1
    return frame_continuation(originals, frame, at, list(frame.stack))


def _expression_at(code: Code, user_code: types.CodeType, head: int, entered: int, depth: int) -> _Loop:
    """The instructions from `head` on, where the stack has `entered` values, until it has fewer than `depth`."""
    raw, _ = raw_instructions(user_code)
    states, pending, exits = {head: (entered, False)}, [head], {}  # depth, whether the result was dropped
    opened = False
    while pending:
        at = pending.pop()
        (deep, dropped), name = states[at], code.names[at]
        if name not in _IN_EXPRESSIONS and not name.startswith(("LOAD_", "BUILD_", "POP_JUMP_", "JUMP_")):
            raise _refuse(f"with {name}")
        op, arg, *_ = raw[at]
        for after in successors(code, at):
            jumps = op in dis.hasjrel and after != at + 1
            now = deep + dis.stack_effect(op, arg if op in _HAVE_ARGUMENT else None, jump=jumps)
            state = now, dropped or (opened and name in _DROPS and now <= depth)
            ends = dropped and deep == depth and name in _ENDS
            if (now < depth and not ends) or states.get(after, state) != state:
                raise _refuse("which holds a temporary")
            if now < depth:
                exits[after] = now
            elif after not in states:
                states[after] = state
                pending.append(after)
        opened = opened or name.startswith("CALL")
    if len(exits) != 1:
        raise _refuse("with several ends")
    return _Loop(head, frozenset(states), tuple(exits.items()))


_ENDS = frozenset(("POP_TOP", "STORE_FAST"))  # which take one value
_DROPS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))  # the result of a call may not hold its function
_IN_EXPRESSIONS = _DROPS | frozenset((
    "NOP", "CACHE", "PRECALL", "KW_NAMES", "PUSH_NULL", "NOT_TAKEN", "RESUME", "POP_TOP", "STORE_FAST", "MAKE_FUNCTION",
    "SET_FUNCTION_ATTRIBUTE", "GET_ITER", "BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP",
    "IS_OP", "UNARY_NOT", "UNARY_NEGATIVE", "UNARY_INVERT", "TO_BOOL", "FORMAT_VALUE", "FORMAT_SIMPLE",
    "FORMAT_WITH_SPEC", "CONVERT_VALUE", "LIST_EXTEND", "LIST_TO_TUPLE", "DICT_MERGE",
))  # fmt: skip


def _as_function(
    originals: OriginalCode,
    decode: Callable[[types.CodeType], Code],
    frame: Frame,
    loop: _Loop,
    stack: list[object],
    condition: str,
    hidden: int,
) -> BreakInstruction:
    """The break instruction that runs a loop, or an expression, as a function.

    Args:
        stack: the stack at its head.
        condition: see `LOOP_JUMPS`.
        hidden: the frames that tracebacks leave out: `run_loop`, and the function where the line of the break is enough.
    """
    user_code, code = originals.of(frame)
    start = frame_continuation(originals, frame, loop.head + frame.prologue, stack)
    if user_code.co_flags & (SUSPENDABLE | inspect.CO_ASYNC_GENERATOR):
        raise _refuse("in a generator")
    if frame.handled is not None or not all(isinstance(p, (Value, Null)) for p in start.point.layout):
        raise _refuse("while an exception is handled")
    changed = _changed_slots(originals, code, user_code, loop, start.point.slots)
    exits = [Exit(at, number) for number, (at, _) in enumerate(loop.exits, 1)]
    function = make_resume_function(decode, start.point, exits, LoopExit)
    variables = {slot: Placeholder(_hint(code.local_names[slot])) for slot in changed}
    after = copy.copy(frame)
    after.locals, after.kwnames = list(frame.locals), ()
    for slot, variable in variables.items():
        after.locals[frame.slots[slot]] = variable
    number, result = Placeholder("exit"), Placeholder("result")
    outcomes = [(0, Successor(frame.pc + 1, stack))] if condition else []
    outcomes += [
        (i, Successor(at + frame.prologue, stack[:depth], after))
        for i, (at, depth) in enumerate(loop.exits, 1)
    ]
    outcomes += [(-1, Successor(at + frame.prologue, [result], after)) for at in _returns(code, loop)]
    if not outcomes:
        raise _refuse("which has no end")
    targets = ", ".join(["{}"] * (2 + len(variables)))
    values = [
        number,
        result,
        *variables.values(),
        Constant(function, "loop"),
        *([frame.stack[-1]] if condition else []),
    ]
    names = tuple(_name_in(function.__code__, slot, decode) for slot in changed)
    arguments = ", ".join((str(hidden), *["{}"] * len(start.values)))
    text = (
        f"{targets} = run_loop({{}}, {condition or True}, {names!r}, {arguments})\n"
        "if {} == -2:\n    try:\n        raise {}\n    finally:\n        {} = None"
    )
    conditions = tuple(f"{{}} == {i}" for i, _ in outcomes[1:])
    operands = (*values, *start.values, number, result, result, *[number] * len(conditions))
    return BreakInstruction(operands, tuple(successor for _, successor in outcomes), text, conditions)


def _hint(name: str) -> str:
    return name if name.isidentifier() else "variable"


def _returns(code: Code, loop: _Loop) -> list[int]:
    """An instruction that returns the value on the stack, if the loop may return one; else none."""
    handlers = [
        target
        for start, end, target, _, _ in code.handlers
        if target not in loop.body and any(start <= at < end for at in loop.body)
    ]
    if not handlers and not any(code.names[at].startswith("RETURN_") for at in _reachable(code, loop)):
        return []
    if "RETURN_VALUE" not in code.names:
        raise _refuse("which returns a constant")
    return [code.names.index("RETURN_VALUE")]


def _reachable(code: Code, loop: _Loop) -> set[int]:
    """The instructions that may run in the loop's function: its body, and what follows it without an exit."""
    exits = {at for at, _ in loop.exits}
    found, pending = set(loop.body), list(loop.body)
    while pending:
        for after in _successors(code, pending.pop()):
            if after not in found and after not in exits:
                found.add(after)
                pending.append(after)
    return found


def _changed_slots(
    originals: OriginalCode, code: Code, user_code: types.CodeType, loop: _Loop, bound: Sequence[int]
) -> list[int]:
    """The variables that the loop stores and that are live after it. Raises Unsupported if one may be unbound there."""
    live = originals.live(user_code, code)
    needed = frozenset().union(*(live[at] for at, _ in loop.exits)) if loop.exits else frozenset()
    stored, unbound = (
        {code.instructions[at][1] for at in loop.body if code.names[at] in names}
        for names in (_STORES, _UNBINDS)
    )
    if needed & unbound or needed & stored & live[loop.head] - set(bound):
        raise _refuse("after which a variable may be unbound")
    return sorted(needed & stored)


def _name_in(function_code: types.CodeType, slot: int, decode: Callable[[types.CodeType], Code]) -> str:
    original = decode(function_code).original
    assert original is not None
    return function_code.co_varnames[original.slots[slot]]


def run_loop(
    function: Callable[..., object], entered: object, names: Sequence[str], hidden: int, *values: object
) -> tuple[object, ...]:
    """Run the function of a loop or expression.

    Args:
        entered: whether the loop is entered.
        names: of the variables that are returned.
        hidden: see `_as_function`.

    Returns the outcome (0: not `entered`; from 1 on: the exit's number; -1: the program returned; -2: it raised), the
    program's result or its error, and the variables."""
    nothing = [None] * len(names)
    if not entered:
        return (0, None, *nothing)
    try:
        result = function(*values)
    except BaseException as error:
        leave_frames(error, hidden)
        return (-2, error, *nothing)
    if type(result) is LoopExit:
        return (result.number, None, *map(result.variables.get, names))
    return (-1, result, *nothing)


provide(run_loop=run_loop)
