"""The bytecode of resume functions: code objects that start in the middle of another.

`resume_code` puts a prologue before the original's instructions, which restores the stack and jumps to an instruction. Each
local, cell and free variable becomes a plain local (that of a cell holds the cell object, which is all that the
interpreter's instructions need), so that one function serves all calls. Instruction `i` of the original is instruction
`prologue + i` of the result. Formats: Objects/locations.md and Objects/exception_handling_notes.txt (InternalDocs) of
CPython.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.bytecode import (
    CACHE_SIZES,
    FUTURE,
    PY312,
    PY313,
    SUSPENDABLE,
    Code,
    jump_target,
    raw_instructions,
)
from smelt.capture.graph_breaks.code_positions import Position, location_table, positions

_OP = dis.opmap
_SLOT_OPERATIONS = frozenset((*dis.haslocal, *dis.hasfree))
_AWAITABLE = 0x100  # a generator that may be awaited
_OPTIMIZED_NEWLOCALS = 0x3
_ENTRY_ONLY = ("MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR")  # frame setup, which the prologue does


@dataclass(slots=True)
class Instruction:
    """An instruction; `target`: the index of the instruction to which it jumps, else -1."""

    op: int
    arg: int
    position: Position
    target: int = -1


# The values that the prologue pushes, bottom of the stack first.
@dataclass(frozen=True)
class Value:
    """The value of a parameter, by its index."""

    parameter: int


@dataclass(frozen=True)
class Null:
    """A NULL."""


@dataclass(frozen=True)
class Handling:
    """Start handling the exception in this parameter; the exception handled before is pushed."""

    parameter: int


@dataclass(frozen=True)
class Offset:
    """The offset of an instruction of the original, which RERAISE restores."""

    instruction: int


Push = Value | Null | Handling | Offset


@dataclass(frozen=True)
class Exit:
    """An early exit: at `instruction` of the original the function returns `make_exit(number, locals())`."""

    instruction: int
    number: int


def resume_code(
    user_code: types.CodeType,
    code: Code,
    target: int,
    slots: Sequence[int],
    pushes: Sequence[Push],
    extra: Sequence[str],
    exits: Sequence[Exit] = (),
    make_exit: Callable[[int, dict[str, object]], object] | None = None,
) -> tuple[types.CodeType, int, tuple[int, ...]]:
    """A code object that resumes at instruction `target` of `user_code`, the length of its prologue, and the new slots.

    Args:
        slots: the original's slots that the first parameters fill, in order.
        pushes: the stack at `target`.
        extra: the names of the parameters after those, for the stack.
        exits: early exits; `make_exit` computes the result there.
    """
    new_slots, names, free = _new_slots(code, slots, extra)
    consts = list(user_code.co_consts)
    body = _body(user_code, code, new_slots)
    for exit in exits:
        trampoline = _exit_instructions(exit, body[exit.instruction].position, consts, make_exit)
        body[exit.instruction] = Instruction(_OP["JUMP_FORWARD"], 0, trampoline[0].position, len(body))
        body += trampoline
    position = (
        body[target].position if target < len(code.lines) else (user_code.co_firstlineno, None, None, None)
    )
    prologue, indices = _prologue(user_code, pushes, target, position, consts, bool(free))
    start = len(prologue)
    for instruction in (*prologue, *body):
        if instruction.target >= 0:
            instruction.target += start
    raw, offsets, lines = _encode([*prologue, *body], user_code.co_firstlineno)
    for constant, at in indices:
        consts[constant] = offsets[start + at] // 2
    new_code = user_code.replace(
        co_code=raw,
        co_consts=tuple(consts),
        co_varnames=tuple(names),
        co_nlocals=len(names),
        co_cellvars=(),
        co_freevars=free,
        co_argcount=len(slots) + len(extra),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=user_code.co_flags & (SUSPENDABLE | _AWAITABLE | FUTURE) | _OPTIMIZED_NEWLOCALS,
        co_stacksize=user_code.co_stacksize + (3 if not exits else 8),
        co_linetable=lines,
        co_exceptiontable=_exception_table(code, offsets, start),
    )
    return new_code, start, tuple(new_slots)


def _new_slots(
    code: Code, slots: Sequence[int], extra: Sequence[str]
) -> tuple[list[int], list[str], tuple[str, ...]]:
    """The new slot of each of the original's slots, the names of the locals, and the free variables: `__class__`, for
    `super`.

    The order of the new slots: parameters for locals, parameters for the stack, other locals, `__class__`."""
    free = tuple(n for n in code.free_names if n == "__class__")
    fixed = {i for i, n in enumerate(code.local_names) if free and n == "__class__"}
    order = [*slots, *(i for i in range(code.nlocals) if i not in slots and i not in fixed)]
    count = len(slots)
    new_slots = [0] * code.nlocals
    for new, old in enumerate(order):
        new_slots[old] = new if new < count else new + len(extra)
    for old in fixed:
        new_slots[old] = len(order) + len(extra)
    names = [code.local_names[i] for i in order]
    return new_slots, _distinct([*names[:count], *extra, *names[count:]]), free


def _distinct(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        number = seen[name] = seen.get(name, -1) + 1
        out.append(f"{name}_{number}" if number else name)
    return out


def _body(user_code: types.CodeType, code: Code, new_slots: Sequence[int]) -> list[Instruction]:
    raw, index = raw_instructions(user_code)
    where = positions(user_code, code.offsets)
    entry = code.names.index("RESUME")
    body = []
    for at, (op, arg, _, after) in enumerate(raw):
        name, target = code.names[at], -1
        if at < entry and name in _ENTRY_ONLY:  # not the MAKE_CELL of a comprehension, which 3.12 has inlined
            op, arg = _OP["NOP"], 0
        elif op in _SLOT_OPERATIONS:
            arg = new_slots[arg]
        else:
            offset = jump_target(op, arg, after)
            target = -1 if offset is None else index[offset]
        body.append(Instruction(op, arg, where[at], target))
    return body


def _prologue(
    user_code: types.CodeType,
    pushes: Sequence[Push],
    target: int,
    position: Position,
    consts: list[object],
    free: bool,
) -> tuple[list[Instruction], list[tuple[int, int]]]:
    """The prologue's instructions, and (index of a constant, instruction whose offset it becomes)."""
    out: list[tuple[str, int]] = [("COPY_FREE_VARS", 1)] if free else []
    if user_code.co_flags & SUSPENDABLE:
        out += [("RETURN_GENERATOR", 0), ("POP_TOP", 0)]
    out.append(("RESUME", 0))
    if not user_code.co_flags & SUSPENDABLE:
        out += [*_function(len(consts)), *_call(0), ("POP_TOP", 0)]
        consts.append(_native.release_arguments)
    indices = []
    for push in pushes:
        if isinstance(push, Value):
            out += [("LOAD_FAST", push.parameter), ("DELETE_FAST", push.parameter)]
        elif isinstance(push, Null):
            out.append(("PUSH_NULL", 0))
        elif isinstance(push, Handling):
            out += [("LOAD_FAST", push.parameter), ("DELETE_FAST", push.parameter)]
            out += [("PUSH_EXC_INFO", 0), ("POP_TOP", 0)]
        else:
            indices.append((len(consts), push.instruction))
            out.append(("LOAD_CONST", len(consts)))
            consts.append(None)
    prologue = [Instruction(_OP[name], arg, position) for name, arg in out]
    prologue.append(Instruction(_OP["JUMP_FORWARD"], 0, position, target))
    return prologue, indices


def _exit_instructions(
    exit: Exit, position: Position, consts: list[object], make_exit: object
) -> list[Instruction]:
    """`return make_exit(exit.number, locals())`, whatever is on the stack."""
    first = len(consts)
    consts += (make_exit, exit.number, locals)
    out = [*_function(first), ("LOAD_CONST", first + 1), *_function(first + 2), *_call(0), *_call(2)]
    return [Instruction(_OP[name], arg, position) for name, arg in (*out, ("RETURN_VALUE", 0))]


def _function(constant: int) -> list[tuple[str, int]]:
    """A constant that is going to be called (`values.unbound_callable`)."""
    load, null = ("LOAD_CONST", constant), ("PUSH_NULL", 0)
    return [load, null] if PY313 else [null, load]


def _call(count: int) -> list[tuple[str, int]]:
    return [*([] if PY312 else [("PRECALL", count)]), ("CALL", count)]


# ----------------------------------------------------------------------------------------------------- encoding


def _encode(instructions: Sequence[Instruction], first_line: int) -> tuple[bytes, list[int], bytes]:
    """The bytes, the offset of each instruction's first prefix and of the end, and the line table."""
    sizes = [_size(i.op, i.arg) for i in instructions]
    while True:
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + size)
        for at, i in enumerate(instructions):
            if i.target >= 0:
                i.arg = abs(offsets[i.target] - offsets[at + 1]) // 2
        grown = [max(size, _size(i.op, i.arg)) for size, i in zip(sizes, instructions)]
        if grown == sizes:
            break
        sizes = grown
    raw = b"".join(map(_instruction_bytes, instructions, sizes))
    runs = [(size // 2, i.position) for i, size in zip(instructions, sizes)]
    return raw, offsets, location_table(runs, first_line)


def _size(op: int, arg: int) -> int:
    prefixes = (arg > 0xFF) + (arg > 0xFFFF) + (arg > 0xFFFFFF)
    return 2 * (1 + prefixes + CACHE_SIZES[op])


def _instruction_bytes(i: Instruction, size: int) -> bytes:
    caches = CACHE_SIZES[i.op]
    out = bytearray()
    for prefix in range(size // 2 - 1 - caches, 0, -1):
        out += bytes((dis.EXTENDED_ARG, i.arg >> (8 * prefix) & 0xFF))
    return bytes(out) + bytes((i.op, i.arg & 0xFF)) + bytes(2 * caches)


def _exception_table(code: Code, offsets: Sequence[int], start: int) -> bytes:
    out = bytearray()
    for begin, end, target, depth, push_at in code.handlers:
        first = len(out)
        at, stop, to = (offsets[start + i] // 2 for i in (begin, end, target))
        for value in (at, stop - at, to, depth << 1 | push_at):
            _add_big_endian(out, value)
        out[first] |= 0x80
    return bytes(out)


def _add_big_endian(out: bytearray, value: int) -> None:
    shift = max(0, (value.bit_length() - 1) // 6 * 6)
    while shift:
        out.append(0x40 | value >> shift & 63)
        shift -= 6
    out.append(value & 63)
