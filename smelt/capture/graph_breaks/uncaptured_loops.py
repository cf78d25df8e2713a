"""Loops that run eagerly at a graph break: the original bytecode from the loop's head on, as a function.

`uncaptured_loop` is the break instruction at a jump back to a loop's head. Where the loop's code jumps out of it, the
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
from smelt.capture.graph_breaks.break_instructions import BreakInstruction, Constant, Successor
from smelt.capture.graph_breaks.live_locals import handler_at, successors
from smelt.capture.graph_breaks.resume_bytecode import Exit, Null, Value
from smelt.capture.graph_breaks.resume_functions import OriginalCode, frame_continuation, make_resume_function
from smelt.capture.graph_breaks.resume_points import Placeholder
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
    start = frame_continuation(originals, frame, head, stack)
    if user_code.co_flags & (SUSPENDABLE | inspect.CO_ASYNC_GENERATOR):
        raise _refuse("in a generator")
    if frame.handled is not None or not all(isinstance(p, (Value, Null)) for p in start.point.layout):
        raise _refuse("while an exception is handled")
    loop = _loop_at(code, user_code, head - frame.prologue, len(stack))
    changed = _changed_slots(originals, code, user_code, loop, start.point.slots)
    exits = [Exit(at, number) for number, (at, _) in enumerate(loop.exits, 1)]
    function = make_resume_function(decode, start.point, exits, LoopExit)
    variables = {slot: Placeholder(_hint(code.local_names[slot])) for slot in changed}
    after = copy.copy(frame)
    after.locals = list(frame.locals)
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
    text = (
        f"{targets} = run_loop({{}}, {condition or True}, {names!r}, {', '.join(['{}'] * len(start.values))})"
    )
    conditions = tuple(f"{{}} == {i}" for i, _ in outcomes[1:])
    operands = (*values, *start.values, *[number] * len(conditions))
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
    function: Callable[..., object], entered: object, names: Sequence[str], *values: object
) -> tuple[object, ...]:
    """Run a loop's function. Returns the outcome (0: not `entered`; from 1 on: the exit's number; -1: the program returned),
    the program's result, and the variables of these names."""
    if not entered:
        return (0, None, *[None] * len(names))
    result = function(*values)
    if type(result) is LoopExit:
        return (result.number, None, *map(result.variables.get, names))
    return (-1, result, *[None] * len(names))


provide(run_loop=run_loop)
