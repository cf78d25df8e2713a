"""A loop that a compiled frame carries out as it is, in one step: the original bytecode from the loop's head on, as a
function that gives back how the loop was left and what its variables are then.

`loop_step` is the step of a break at a jump back to a loop's head. Where the loop's code jumps out of it, the function
returns a `LoopExit`; where the program returns from inside of the loop, it returns that value.
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
from smelt.capture.graph_breaks.break_instructions import Constant, Step, Successor
from smelt.capture.graph_breaks.live_locals import handler_at, successors
from smelt.capture.graph_breaks.resume_bytecode import Exit, Null, Value
from smelt.capture.graph_breaks.resume_functions import Originals, continuation, resume_function
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.capture.reconstruction.frame_globals import provide
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason

# Jumps to a loop's head, and whether they are taken, given what is on top of the stack.
LOOPING = {
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
    """How a loop was left: through which of its exits, and what was in its variables."""

    number: int
    variables: dict[str, object]


def _refuse(why: str) -> Unsupported:
    return Unsupported(Reason(UNSUPPORTED_OPCODE, f"a loop as a step of its own, {why}"))


@dataclass(frozen=True)
class _Loop:
    """A loop of a code object: its instructions, and those outside that it jumps to, each with the stack's depth there."""

    head: int
    body: frozenset[int]
    exits: tuple[tuple[int, int], ...]


def _loop_at(code: Code, source: types.CodeType, head: int, depth: int) -> _Loop:
    """The loop that begins at `head`, where the stack is `depth` deep."""
    before: dict[int, list[int]] = {}
    for at in range(len(code.names)):
        handler = handler_at(code, at)
        for after in (*_ways(code, at), *([handler[0]] if handler else [])):
            before.setdefault(after, []).append(at)
    body, left = {head}, [at for at in before.get(head, ()) if at >= head]
    while left:
        at = left.pop()
        if at not in body:
            body.add(at)
            left += before.get(at, ())
    return _Loop(head, frozenset(body), tuple(sorted(_exits(code, source, head, body, depth).items())))


def _exits(code: Code, source: types.CodeType, head: int, body: set[int], depth: int) -> dict[int, int]:
    raw, _ = raw_instructions(source)
    depths, left, found = {head: depth}, [head], {}
    while left:
        at = left.pop()
        op, arg, *_ = raw[at]
        for after in _ways(code, at):
            jumps = op in dis.hasjrel and after != at + 1
            effect = dis.stack_effect(op, arg if op in _HAVE_ARGUMENT else None, jump=jumps)
            deep = depths[at] + (ENDED_ITERATOR - 1 if jumps and code.names[at] == "FOR_ITER" else effect)
            if after not in body:
                found[after] = deep
            elif after not in depths:
                depths[after] = deep
                left.append(after)
    if any(deep > depth for deep in found.values()):
        raise _refuse("which leaves values on the stack")
    return found


def _ways(code: Code, at: int) -> list[int]:
    """`successors`, with what follows the END_FOR to which a loop jumps when its iterator has ended."""
    if code.names[at] == "FOR_ITER":
        return [at + 1, code.instructions[at][1] + LOOP_END]
    return successors(code, at)


def loop_step(originals: Originals, decode: Callable[[types.CodeType], Code], frame: Frame) -> Step:
    """The step of the break at the jump back at which `frame` stands.

    Raises Unsupported for a loop that it cannot cut out."""
    name = frame.code.names[frame.pc]
    taken, head = LOOPING[name], frame.instructions[frame.pc][1]
    source, code = originals.of(frame)
    stack = frame.stack[:-1] if taken else list(frame.stack)
    start = continuation(originals, frame, head, stack)
    if source.co_flags & (SUSPENDABLE | inspect.CO_ASYNC_GENERATOR):
        raise _refuse("in a generator")
    if frame.handled is not None or not all(isinstance(p, (Value, Null)) for p in start.point.layout):
        raise _refuse("while an exception is handled")
    loop = _loop_at(code, source, head - frame.prologue, len(stack))
    changed = _changed_slots(originals, code, source, loop, start.point.slots)
    exits = [Exit(at, number) for number, (at, _) in enumerate(loop.exits, 1)]
    function = resume_function(decode, start.point, exits, LoopExit)
    variables = {slot: Placeholder(_hint(code.local_names[slot])) for slot in changed}
    after = copy.copy(frame)
    after.locals = list(frame.locals)
    for slot, variable in variables.items():
        after.locals[frame.places[slot]] = variable
    number, result = Placeholder("exit"), Placeholder("result")
    ways = [(0, Successor(frame.pc + 1, stack))] if taken else []
    ways += [
        (i, Successor(at + frame.prologue, stack[:depth], after))
        for i, (at, depth) in enumerate(loop.exits, 1)
    ]
    ways += [(-1, Successor(at + frame.prologue, [result], after)) for at in _returns(code, loop)]
    if not ways:
        raise _refuse("which has no end")
    outcome = ", ".join(["{}"] * (2 + len(variables)))
    values = [
        number,
        result,
        *variables.values(),
        Constant(function, "loop"),
        *([frame.stack[-1]] if taken else []),
    ]
    names = tuple(_names(function.__code__, slot, decode) for slot in changed)
    text = f"{outcome} = run_loop({{}}, {taken or True}, {names!r}, {', '.join(['{}'] * len(start.values))})"
    conditions = tuple(f"{{}} == {i}" for i, _ in ways[1:])
    operands = (*values, *start.values, *[number] * len(conditions))
    return Step(operands, tuple(way for _, way in ways), text, conditions)


def _hint(name: str) -> str:
    return name if name.isidentifier() else "variable"


def _returns(code: Code, loop: _Loop) -> list[int]:
    """An instruction that returns the value on the stack, if the loop may return one; as the last way out."""
    handlers = [
        target
        for start, end, target, _, _ in code.handlers
        if target not in loop.body and any(start <= at < end for at in loop.body)
    ]
    if not handlers and not any(code.names[at].startswith("RETURN_") for at in _reached(code, loop)):
        return []
    if "RETURN_VALUE" not in code.names:
        raise _refuse("which returns a constant")
    return [code.names.index("RETURN_VALUE")]


def _reached(code: Code, loop: _Loop) -> set[int]:
    """What may run in the loop's function: its body, and what follows it without an exit."""
    exits = {at for at, _ in loop.exits}
    found, left = set(loop.body), list(loop.body)
    while left:
        for after in _ways(code, left.pop()):
            if after not in found and after not in exits:
                found.add(after)
                left.append(after)
    return found


def _changed_slots(
    originals: Originals, code: Code, source: types.CodeType, loop: _Loop, bound: Sequence[int]
) -> list[int]:
    """The variables that are needed behind the loop and stored in it. Raises Unsupported if one may have no value there."""
    live = originals.live(source, code)
    needed = frozenset().union(*(live[at] for at, _ in loop.exits)) if loop.exits else frozenset()
    stored, unbound = (
        {code.instructions[at][1] for at in loop.body if code.names[at] in names}
        for names in (_STORES, _UNBINDS)
    )
    if needed & unbound or needed & stored & live[loop.head] - set(bound):
        raise _refuse("behind which a variable may have no value")
    return sorted(needed & stored)


def _names(made: types.CodeType, slot: int, decode: Callable[[types.CodeType], Code]) -> str:
    original = decode(made).original
    assert original is not None
    return made.co_varnames[original.places[slot]]


def run_loop(
    function: Callable[..., object], entered: object, names: Sequence[str], *values: object
) -> tuple[object, ...]:
    """Runs a loop's function: which way it was left (0: not `entered`, 1 and on: its exits, -1: the program returned), what
    the program returned, and the variables of these names."""
    if not entered:
        return (0, None, *[None] * len(names))
    result = function(*values)
    if type(result) is LoopExit:
        return (result.number, None, *map(result.variables.get, names))
    return (-1, result, *[None] * len(names))


provide(run_loop=run_loop)
