"""`a == b and c == d` of symbolic numbers: where not all of it holds, a program that goes on at one place does not depend on
which comparison fails first.

Later calls are required to fail any of them: a model that resizes its positions unless the number of them and both sides
of the picture fit has one entry for all pictures that do not, also for those that fit in number alone.
"""

from __future__ import annotations

import operator

from smelt.capture.base.frames import Frame
from smelt.capture.base.values import NULL
from smelt.capture.machine.vm import VM
from smelt.trace.symbols import Int

_FALSE = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE"})
_NONE = frozenset({"POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE"})
_NOT_NONE = frozenset({"POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"})
_NOTHING = frozenset({"NOT_TAKEN", "NOP", "CACHE"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_COMPARED = frozenset({int, Int})
Pair = tuple[object, object]


def falls_short(vm: VM, frame: Frame) -> bool:
    """Whether a comparison for equality that is to be made now, or one that the program joins with it by `and`, does not
    hold. Then the frame is where the first of these has been made, which gave False."""
    symbols, goal = vm.trace.numbers.symbols, _goal(frame, frame.pc)
    first = frame.stack[-2], frame.stack[-1]
    if symbols is None or goal is None or not _are_numbers(first):
        return False
    pairs, at = [(first, frame.pc)], frame.pc
    while (found := _next(frame, at, goal)) is not None:
        pairs.append(found)
        at = found[1]
    stops = frame.ticks < frame.stop <= frame.ticks + at - frame.pc  # capture, at one of these instructions
    if len(pairs) < 2 or stops or symbols.all_equal([pair for pair, _ in pairs]) is not False:
        return False
    at = next(at for pair, at in pairs if symbols.symbol(pair[0]).value != symbols.symbol(pair[1]).value)
    frame.ticks += at - frame.pc
    frame.pc = at
    frame.stack[-2:] = (False,)
    return True


def _are_numbers(pair: Pair) -> bool:
    return all(type(n) in _COMPARED for n in pair)


def _jump(frame: Frame, at: int) -> int:
    """The instruction that looks at a comparison behind which this one stands."""
    return at + (frame.code.names[at] == "TO_BOOL")


def _goal(frame: Frame, at: int) -> int | None:
    """Where the program goes if the comparison before this instruction does not hold; None where it does something else."""
    at = _jump(frame, at)
    return _led_to(frame, frame.instructions[at][1]) if frame.code.names[at] in _FALSE else None


def _led_to(frame: Frame, at: int) -> int:
    """The instruction that is carried out behind this one's questions whether a local variable is None."""
    names, instructions = frame.code.names, frame.instructions
    while True:
        if names[at] in _NOTHING:
            at += 1
        elif names[at] == "JUMP_FORWARD":
            at = instructions[at][1]
        elif names[at] == "LOAD_FAST" and names[at + 1] in _NONE | _NOT_NONE:
            value = frame.locals[instructions[at][1]]
            if value is NULL:
                return at
            jumps = (value is None) is (names[at + 1] in _NONE)
            at = instructions[at + 1][1] if jumps else at + 2
        else:
            return at


def _next(frame: Frame, at: int, goal: int) -> tuple[Pair, int] | None:
    """What is compared next, where the comparison before `at` holds, and the instruction behind that; None where the
    program does more than look up local variables for it, or goes elsewhere than to `goal` if it does not hold."""
    stack: list[object] = []
    at = _jump(frame, at) + 1
    while True:
        name, arg = frame.code.names[at], frame.instructions[at][1]
        at += 1
        if name in _CONSTANTS:
            stack.append(arg)
        elif name == "LOAD_FAST" and frame.locals[arg] is not NULL:
            stack.append(frame.locals[arg])
        elif name == "BINARY_SUBSCR" and len(stack) > 1 and _is_item(*stack[-2:]):
            stack[-2:] = (stack[-2][stack[-1]],)  # type: ignore[index]
        elif name in _NONE and stack and stack[-1] is not None:
            stack.pop()
        elif name == "COMPARE_OP" and arg is operator.eq and len(stack) == 2:
            pair = stack[0], stack[1]
            return (pair, at) if _are_numbers(pair) and _goal(frame, at) == goal else None
        elif name not in _NOTHING:
            return None


def _is_item(obj: object, key: object) -> bool:
    return type(obj) is tuple and type(key) is int and -len(obj) <= key < len(obj)
