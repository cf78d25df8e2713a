"""Conjunctions of comparisons of symbolic numbers, `a == b and c == d` or `a != b or c != d`.

If not all pairs are equal and the program continues at the same instruction whichever pair differs first, one guard requires
that any pair differs. For example, a model that resizes its position embeddings unless their number and both image sizes
match has one entry for all images that need resizing, including those that match in number only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from smelt.capture.base.value_kinds import NULL
from smelt.capture.base.vm_frames import Frame
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.sym_numbers import Int

EQUALITY = frozenset({operator.eq, operator.ne})
_TRUE = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE"})
_FALSE = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE"})
_NONE = frozenset({"POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE"})
_NOT_NONE = frozenset({"POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"})
_NOTHING = frozenset({"NOT_TAKEN", "NOP", "CACHE"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_COMPARED = frozenset({int, Int})
Pair = tuple[object, object]
Comparison = tuple[
    Pair, Callable[..., object], int
]  # a pair, a function in EQUALITY, the instruction after it


def skip_to_difference(vm: VM, frame: Frame, compare: Callable[..., object]) -> bool:
    """Whether the numbers about to be compared differ, or a later pair of the conjunction that leads to the same
    instruction. If so, advances the frame past the comparison of the first pair that differs."""
    symbols, goal = vm.trace.numbers.symbols, _goal(frame, frame.pc, compare)
    first = frame.stack[-2], frame.stack[-1]
    if symbols is None or goal is None or not _are_numbers(first):
        return False
    found: list[Comparison] = [(first, compare, frame.pc)]
    while (made := _next(frame, found[-1], goal)) is not None:
        found.append(made)
    stops = (
        frame.ticks < frame.stop <= frame.ticks + found[-1][2] - frame.pc
    )  # capture stops at one of these instructions
    if len(found) < 2 or stops or symbols.all_equal([pair for pair, _, _ in found]) is not False:
        return False
    compare, at = next(
        (how, at) for (a, b), how, at in found if symbols.symbol(a).value != symbols.symbol(b).value
    )
    frame.ticks += at - frame.pc
    frame.pc = at
    frame.stack[-2:] = (compare is operator.ne,)
    return True


def _are_numbers(pair: Pair) -> bool:
    return all(type(n) in _COMPARED for n in pair)


def _jump(frame: Frame, at: int) -> int:
    """The instruction that consumes the comparison before instruction `at`."""
    return at + (frame.code.names[at] == "TO_BOOL")


def _leaves(frame: Frame, at: int, compare: Callable[..., object]) -> bool | None:
    """Whether the program jumps if the compared numbers differ; None if no jump follows the comparison."""
    name = frame.code.names[_jump(frame, at)]
    if name not in _TRUE and name not in _FALSE:
        return None
    return (compare is operator.ne) is (name in _TRUE)


def _goal(frame: Frame, at: int, compare: Callable[..., object]) -> int | None:
    """The instruction that follows if the numbers differ."""
    leaves, at = _leaves(frame, at, compare), _jump(frame, at)
    return None if leaves is None else _led_to(frame, frame.instructions[at][1] if leaves else at + 1)


def _led_to(frame: Frame, at: int) -> int:
    """The first instruction from `at` on that is not a jump, or a test of a local variable for None."""
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


def _next(frame: Frame, last: Comparison, goal: int) -> Comparison | None:
    """The next comparison if the last pair is equal; None if the program does more than read local variables before it, or
    continues elsewhere than at `goal` if the pair differs."""
    _, compare, at = last
    if not _leaves(frame, at, compare):
        return None
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
        elif name == "COMPARE_OP" and arg in EQUALITY and len(stack) == 2:
            pair = stack[0], stack[1]
            return (pair, arg, at) if _are_numbers(pair) and _goal(frame, at, arg) == goal else None
        elif name not in _NOTHING:
            return None


def _is_item(obj: object, key: object) -> bool:
    return type(obj) is tuple and type(key) is int and -len(obj) <= key < len(obj)
