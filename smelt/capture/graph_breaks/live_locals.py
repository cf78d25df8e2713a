"""Liveness of locals at each instruction: the locals that a resume function takes.

Backward dataflow over the decoded code: an instruction that reads a slot makes it live before, one that stores into it
kills it. Any access reads a cell. Each instruction of a protected range may jump to its handler.
"""

from __future__ import annotations

import types

from smelt.capture.base.bytecode import Code

_READS = frozenset(
    {
        "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF",
        "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    }
)  # fmt: skip
_USES = _READS | {"STORE_FAST", "MAKE_CELL"}
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS"})
_JUMPS_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_READS_ALL = frozenset({"locals", "vars", "eval", "exec", "dir"})  # names whose call may read any local


def successors(code: Code, at: int) -> list[int]:
    """The instructions that may run next, without exception handlers."""
    name, arg = code.names[at], code.instructions[at][1]
    if name in _ENDS:
        return []
    if name in _JUMPS_ALWAYS:
        return [arg]
    if "JUMP" in name or name in ("FOR_ITER", "SEND"):
        return [at + 1, arg]
    return [at + 1]


def handler_at(code: Code, at: int) -> tuple[int, int, bool] | None:
    """(target, stack depth, whether the instruction's index is pushed) of the handler of an exception at `at`."""
    for start, end, target, depth, push_at in code.handlers:
        if start <= at < end:
            return target, depth, push_at
    return None


def live_slots(code: Code, user_code: types.CodeType) -> list[frozenset[int]]:
    """For each instruction, the slots (locals, cells and free variables) that are live before it."""
    count = len(code.names)
    if _READS_ALL.intersection(user_code.co_names):
        return [frozenset(range(code.nlocals))] * count
    always = frozenset(_implicit(code, user_code))
    live: list[frozenset[int]] = [always] * count
    following = [_following(code, at) for at in range(count)]
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            now = _before(code, at, always.union(*(live[n] for n in following[at] if n < count)))
            if now != live[at]:
                live[at], changed = now, True
    return live


def used_slots(code: Code, user_code: types.CodeType) -> frozenset[int]:
    """The slots that some instruction reads, stores or deletes."""
    if _READS_ALL.intersection(user_code.co_names):
        return frozenset(range(code.nlocals))
    used = (arg for name, (_, arg) in zip(code.names, code.instructions) if name in _USES)
    return frozenset((*used, *_implicit(code, user_code)))


def _following(code: Code, at: int) -> list[int]:
    handler = None if code.names[at] == "STORE_FAST" else handler_at(code, at)
    return successors(code, at) + ([handler[0]] if handler else [])


def _before(code: Code, at: int, after: frozenset[int]) -> frozenset[int]:
    name, arg = code.names[at], code.instructions[at][1]
    if name == "STORE_FAST":
        return after - {arg}
    return after | {arg} if name in _READS else after


def _implicit(code: Code, user_code: types.CodeType) -> list[int]:
    """The slots that `super()` reads implicitly: the first argument and the class cell."""
    if "__class__" not in user_code.co_freevars:
        return []
    return [0, *(i for i, name in enumerate(code.local_names) if name == "__class__")]
