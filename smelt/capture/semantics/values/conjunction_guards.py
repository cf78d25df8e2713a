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
_JUMPS_IF_TRUE = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE"})
_JUMPS_IF_FALSE = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE"})
_JUMPS_IF_NONE = frozenset({"POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE"})
_JUMPS_IF_NOT_NONE = frozenset({"POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"})
_NO_OPS = frozenset({"NOT_TAKEN", "NOP", "CACHE"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_COMPARED_TYPES = frozenset({int, Int})
Pair = tuple[object, object]
Comparison = tuple[
    Pair, Callable[..., object], int
]  # a pair, a function in EQUALITY, the instruction after it


def skip_to_difference(vm: VM, frame: Frame, compare: Callable[..., object]) -> bool:
    """Whether the numbers about to be compared differ, or a later pair of the conjunction that leads to the same
    instruction. If so, advances the frame past the comparison of the first pair that differs."""
    symbols, target = vm.trace.numbers.symbols, _target_if_different(frame, frame.pc, compare)
    first = frame.stack[-2], frame.stack[-1]
    if symbols is None or target is None or not _are_numbers(first):
        return False
    comparisons: list[Comparison] = [(first, compare, frame.pc)]
    while (following := _next_comparison(frame, comparisons[-1], target)) is not None:
        comparisons.append(following)
    # capture stops at one of these instructions
    stops = frame.ticks < frame.stop <= frame.ticks + comparisons[-1][2] - frame.pc
    if len(comparisons) < 2 or stops or symbols.all_equal([pair for pair, _, _ in comparisons]) is not False:
        return False
    compare, at = next(
        (fn, at) for (a, b), fn, at in comparisons if symbols.symbol(a).value != symbols.symbol(b).value
    )
    frame.ticks += at - frame.pc
    frame.pc = at
    frame.stack[-2:] = (compare is operator.ne,)
    return True


def _are_numbers(pair: Pair) -> bool:
    return all(type(n) in _COMPARED_TYPES for n in pair)


def _consumer(frame: Frame, at: int) -> int:
    """The instruction that consumes the comparison before instruction `at`."""
    return at + (frame.code.names[at] == "TO_BOOL")


def _jumps_if_different(frame: Frame, at: int, compare: Callable[..., object]) -> bool | None:
    """Whether the program jumps if the compared numbers differ; None if no jump follows the comparison."""
    name = frame.code.names[_consumer(frame, at)]
    if name not in _JUMPS_IF_TRUE and name not in _JUMPS_IF_FALSE:
        return None
    return (compare is operator.ne) is (name in _JUMPS_IF_TRUE)


def _target_if_different(frame: Frame, at: int, compare: Callable[..., object]) -> int | None:
    """The instruction that follows if the numbers differ."""
    jumps, at = _jumps_if_different(frame, at, compare), _consumer(frame, at)
    return None if jumps is None else _skip_none_tests(frame, frame.instructions[at][1] if jumps else at + 1)


def _skip_none_tests(frame: Frame, at: int) -> int:
    """The first instruction from `at` on that is not a jump, or a test of a local variable for None."""
    names, instructions = frame.code.names, frame.instructions
    while True:
        if names[at] in _NO_OPS:
            at += 1
        elif names[at] == "JUMP_FORWARD":
            at = instructions[at][1]
        elif names[at] == "LOAD_FAST" and names[at + 1] in _JUMPS_IF_NONE | _JUMPS_IF_NOT_NONE:
            value = frame.locals[instructions[at][1]]
            if value is NULL:
                return at
            jumps = (value is None) is (names[at + 1] in _JUMPS_IF_NONE)
            at = instructions[at + 1][1] if jumps else at + 2
        else:
            return at


def _next_comparison(frame: Frame, last: Comparison, target: int) -> Comparison | None:
    """The next comparison if the last pair is equal; None if the program does more than read local variables before it, or
    continues elsewhere than at `target` if the pair differs."""
    _, compare, at = last
    if not _jumps_if_different(frame, at, compare):
        return None
    stack: list[object] = []
    at = _consumer(frame, at) + 1
    while True:
        name, arg = frame.code.names[at], frame.instructions[at][1]
        at += 1
        if name in _CONSTANTS:
            stack.append(arg)
        elif name == "LOAD_FAST" and frame.locals[arg] is not NULL:
            stack.append(frame.locals[arg])
        elif name == "BINARY_SUBSCR" and len(stack) > 1 and _is_item(*stack[-2:]):
            stack[-2:] = (stack[-2][stack[-1]],)  # type: ignore[index]
        elif name in _JUMPS_IF_NONE and stack and stack[-1] is not None:
            stack.pop()
        elif name == "COMPARE_OP" and arg in EQUALITY and len(stack) == 2:
            pair = stack[0], stack[1]
            if _are_numbers(pair) and _target_if_different(frame, at, arg) == target:
                return (pair, arg, at)
            return None
        elif name not in _NO_OPS:
            return None


def _is_item(obj: object, key: object) -> bool:
    return type(obj) is tuple and type(key) is int and -len(obj) <= key < len(obj)
