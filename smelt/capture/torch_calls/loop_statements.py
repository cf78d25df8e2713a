"""Loop statements in bytecode: which tests decide whether a loop goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from smelt.capture.base.bytecode import LOOP_END, Code
from smelt.capture.graph_breaks.live_locals import successors

_GOES_ON = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "NOP", "NOT_TAKEN"))
_POPS = frozenset(("POP_TOP", "POP_ITER"))
_RETURNS = frozenset(("RETURN_VALUE", "RETURN_CONST"))
_MAX_ENTRY = 60  # instructions of a further condition before a loop


@dataclass(frozen=True)
class Test:
    """An instruction that decides whether the loop goes on, at `stays`, and whether it does if its operand is true.
    `is_last`: a step ends there. `iterates`: it takes the next item of the loop's iterator."""

    at: int
    stays: int
    if_true: bool
    is_last: bool = False
    iterates: bool = False


@dataclass(frozen=True)
class LoopStatement:
    """A loop: the tests before it that it begins with, in order, and those in it, by instruction. `iterates`: it is a `for`
    loop."""

    entry: tuple[Test, ...]
    tests: dict[int, Test]
    iterates: bool


def statement_at(code: Code, jump: int, stays: int, leaves: int) -> LoopStatement | None:
    """The loop that goes on at `stays` and ends at `leaves`, if `jump` is one of its tests or decides whether it begins."""
    around = [loop for loop in _loops_of(code) if jump in loop.body]
    if around:
        loop = min(around, key=lambda loop: len(loop.body))
        return _statement(code, loop, (), stays, leaves)
    return _entered(code, (), stays, leaves)


def range_loop(code: Code, head: int) -> LoopStatement | None:
    """The `for` loop that begins with the FOR_ITER at `head`, which ends a step."""
    loop = next((loop for loop in _loops_of(code) if loop.head == head), None)
    if loop is None:
        return None
    return _statement(code, loop, (), head + 1, exhausted(code, head), popped=1)


def exhausted(code: Code, head: int) -> int:
    """The instruction after the `for` loop with this FOR_ITER, whose iterator has ended."""
    return cast(int, code.instructions[head][1]) + LOOP_END


def _entered(code: Code, entry: tuple[Test, ...], stays: int, leaves: int) -> LoopStatement | None:
    """The loop that begins at `stays`, or after further tests there that else jump to `leaves`."""
    first = _past_jumps(code, stays)
    for loop in _loops_of(code):
        if _past_jumps(code, loop.head) == first:
            return _statement(code, loop, entry, stays, leaves)
    for at in range(first, min(first + _MAX_ENTRY, len(code.names))):
        for test, end in _ways(code, at):
            if _is_same_end(code, end, leaves):
                return _entered(code, (*entry, test), test.stays, leaves)
        if code.names[at] in _RETURNS or len(successors(code, at)) != 1 or successors(code, at) != [at + 1]:
            break
    return None


def _statement(
    code: Code, loop: NaturalLoop, entry: tuple[Test, ...], stays: int, leaves: int, popped: int = 0
) -> LoopStatement | None:
    """The loop as a statement. `popped`: whether its iterator is no longer on the stack at `leaves`."""
    if stays not in loop.body or leaves in loop.body:
        return None
    first = _past_jumps(code, stays)
    iterates = code.names[loop.head] == "FOR_ITER"
    tests = {}
    for at in loop.body:
        for test, end in _ways(code, at):
            if test.stays in loop.body and end not in loop.body and _is_same_end(code, end, leaves, -popped):
                is_last = _past_jumps(code, test.stays) == first
                tests[test.at] = Test(test.at, test.stays, test.if_true, is_last)
    if iterates:
        if not _is_same_end(code, exhausted(code, loop.head), leaves, 1 - popped):
            return None
        is_last = _past_jumps(code, loop.head + 1) == first
        tests[loop.head] = Test(loop.head, loop.head + 1, True, is_last, iterates=True)
    if not any(test.is_last for test in tests.values()):
        return None
    return LoopStatement(entry, tests, iterates)


def _ways(code: Code, at: int) -> list[tuple[Test, int]]:
    """The conditional jump at an instruction as a test that stays on either side, each with the other side."""
    name = code.names[at]
    if "POP_JUMP" not in name or name.endswith("NONE"):
        return []
    following, jumped = successors(code, at)
    test = at - 1 if code.names[at - 1] == "TO_BOOL" else at
    jumps_if_true = name.endswith("TRUE")
    return [
        (Test(test, following, not jumps_if_true), jumped),
        (Test(test, jumped, jumps_if_true), following),
    ]


def _is_same_end(code: Code, a: int, b: int, popped: int = 0) -> bool:
    """Whether the frame continues equally at two instructions, the first of which has popped `popped` items before: they are
    one instruction, or both return by equal ones."""
    (a, first), (b, second) = _past_pops(code, a), _past_pops(code, b)
    if a == b:
        return first + popped == second
    one, other = _tail(code, a, first + popped), _tail(code, b, second)
    return one is not None and one == other


def _tail(code: Code, at: int, popped: int) -> tuple[int, list[tuple[str, object]]] | None:
    """The items below its result that the frame pops, and its other instructions, from `at` to its return; None if it
    jumps."""
    found: list[tuple[str, object]] = []
    while len(found) < _MAX_ENTRY:
        name, arg = code.names[at], code.instructions[at][1]
        found.append((name, arg))
        if found[-2:] == [("SWAP", 2), ("POP_TOP", arg)]:
            del found[-2:]
            popped += 1
        if name in _RETURNS:
            return popped, found
        if successors(code, at) != [at + 1]:
            return None
        at = _past_jumps(code, at + 1)
    return None


def _past_pops(code: Code, at: int) -> tuple[int, int]:
    """The first instruction that is no jump and pops no item, and how many were popped."""
    count, at = 0, _past_jumps(code, at)
    while code.names[at] in _POPS:
        count, at = count + 1, _past_jumps(code, at + 1)
    return at, count


@dataclass(frozen=True)
class NaturalLoop:
    """A natural loop: its first instruction, and all of its instructions."""

    head: int
    body: frozenset[int]


def _loops_of(code: Code) -> Sequence[NaturalLoop]:
    """`_loops`, computed once."""
    if code.loops is None:
        code.loops = _loops(code)
    return cast("Sequence[NaturalLoop]", code.loops)


def _loops(code: Code) -> list[NaturalLoop]:
    """The natural loops of the control flow graph without exception handlers."""
    before: dict[int, list[int]] = {}
    for at in range(len(code.names)):
        for following in successors(code, at):
            before.setdefault(following, []).append(at)
    loops = []
    for head, sources in before.items():
        pending = [at for at in sources if at >= head and "BACKWARD" in code.names[at]]
        body = {head} if pending else set[int]()
        while pending:
            at = pending.pop()
            if at not in body:
                body.add(at)
                pending += before.get(at, ())
        if body:
            loops.append(NaturalLoop(head, frozenset(body)))
    return loops


def _past_jumps(code: Code, at: int) -> int:
    seen: set[int] = set()
    while code.names[at] in _GOES_ON and at not in seen:
        seen.add(at)
        at = successors(code, at)[0]
    return at
