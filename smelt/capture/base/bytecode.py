"""Bytecode as the VM reads it: a list of (handler, argument) pairs per code object, with jumps as list indices.

Everything that differs between CPython versions in *how an argument is encoded* is in `ARGUMENTS` and `_PARTS`; what
differs in meaning is in the handler tables of `opcodes`. Caches and EXTENDED_ARG never reach the VM.
"""

from __future__ import annotations
import __future__

import dis
import inspect
import opcode
import operator
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from smelt.graph.ir import Line

# The bits of `co_flags` for `__future__` statements. Those of the oldest ones are also bits of other flags.
FUTURE = sum(
    {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names} - {0, 0x10, 0x1000}
)
SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE  # of `co_flags`
PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)
# How many instructions FOR_ITER jumps over at the end of a loop: END_FOR, POP_TOP. 3.14 goes on at POP_ITER, which takes the
# iterator from the stack.
LOOP_END = 1 if PY314 else 2 if PY313 else 1 if PY312 else 0
ENDED_ITERATOR = 1 if PY314 else 0  # how many iterators are on the stack there
EXIT_DEPTH = 5 if PY314 else 4  # of WITH_EXCEPT_START: how deep in the stack what it calls is

Handler = Callable[[Any, Any, Any], Any]
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
BINARY_OPERATORS = (
    operator.add, operator.and_, operator.floordiv, operator.lshift, operator.matmul, operator.mul, operator.mod,
    operator.or_, operator.pow, operator.rshift, operator.sub, operator.truediv, operator.xor,
    operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imul, operator.imod,
    operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor,
)  # fmt: skip


_COMPARE_SHIFT = 5 if PY313 else 4 if PY312 else 0


def _cache_sizes() -> list[int]:
    """How many units of inline cache follow the instruction with each number."""
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
    return [entries.get(dis.opname[op], 0) for op in range(256)] if PY313 else list(entries)


CACHE_SIZES = _cache_sizes()


def _two_slots(first: str, second: str) -> Callable[[int], list[tuple[str, int]]]:
    return lambda arg: [(first, arg >> 4), (second, arg & 15)]


_AS_BOOL = 16  # of COMPARE_OP: the result is made a bool

# What an instruction of 3.13 or 3.14 is short for, given its argument. The VM, and what is made of instructions, knows the
# parts. A reference may be borrowed only where the compiler of Python has seen that it may.
_PARTS: dict[str, Callable[[int], list[tuple[str, int]]]] = {
    "LOAD_FAST_LOAD_FAST": _two_slots("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": _two_slots("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": _two_slots("STORE_FAST", "STORE_FAST"),
    "LOAD_FAST_BORROW": lambda arg: [("LOAD_FAST", arg)],
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": _two_slots("LOAD_FAST", "LOAD_FAST"),
    "COMPARE_OP": lambda arg: (
        [("COMPARE_OP", arg & ~_AS_BOOL), ("TO_BOOL", 0)] if arg & _AS_BOOL else [("COMPARE_OP", arg)]
    ),
}


_SUBSCRIPT = 26  # of BINARY_OP


def _names(raw: list[tuple[int, int, int, int]]) -> list[str]:
    """What the instructions are called; `a[b]` is one of its own also where it is a BINARY_OP."""
    names = [dis.opname[op] for op, *_ in raw]
    if PY314:
        for at, (_, arg, *_) in enumerate(raw):
            if arg == _SUBSCRIPT and names[at] == "BINARY_OP":
                names[at] = "BINARY_SUBSCR"
    return names


def _name(code: types.CodeType, arg: int) -> object:
    return code.co_names[arg]


def _const(code: types.CodeType, arg: int) -> object:
    return code.co_consts[arg]


ARGUMENTS: dict[str, Callable[[types.CodeType, int], Any]] = {
    "LOAD_CONST": _const,
    "RETURN_CONST": _const,
    "KW_NAMES": _const,
    "LOAD_SMALL_INT": lambda code, arg: arg,
    "LOAD_COMMON_CONSTANT": lambda code, arg: opcode._common_constants[arg],  # type: ignore[attr-defined]
    "LOAD_SPECIAL": lambda code, arg: opcode._special_method_names[arg],  # type: ignore[attr-defined]
    "CALL_FUNCTION_EX": lambda code, arg: True if PY314 else arg & 1,  # whether there is a place for keywords
    "LOAD_GLOBAL": lambda code, arg: (code.co_names[arg >> 1], arg & 1),
    "COMPARE_OP": lambda code, arg: COMPARISONS[arg >> _COMPARE_SHIFT],
    "BINARY_OP": lambda code, arg: BINARY_OPERATORS[arg],
    "LOAD_ATTR": lambda code, arg: (code.co_names[arg >> 1], arg & 1) if PY312 else (code.co_names[arg], 0),
    "LOAD_SUPER_ATTR": lambda code, arg: (code.co_names[arg >> 2], arg & 1, arg & 2),
    **dict.fromkeys(
        (
            "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "STORE_GLOBAL",
            "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS",
        ),
        _name,
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Original:
    """What a resume function's code was made of: instruction `i` of `source` is instruction `prologue + i` there, slot `s`
    is slot `places[s]`."""

    source: types.CodeType
    prologue: int
    places: tuple[int, ...]


# id of a resume function's code -> (weak reference, original)
_originals: dict[int, tuple[Any, Original]] = {}


def note_original(code: types.CodeType, original: Original) -> None:
    """From now on `code` is known as a resume function's."""
    key = id(code)
    _originals[key] = (weakref.ref(code, lambda _: _originals.pop(key, None)), original)


def original_of(code: types.CodeType) -> Original | None:
    """What a resume function's code was made of; None for other code."""
    found = _originals.get(id(code))
    return None if found is None else found[1]


def is_resume(code: types.CodeType) -> bool:
    """Whether `code` is a resume function's."""
    return id(code) in _originals


@dataclass(slots=True, eq=False)
class Code:
    """A decoded code object. Does not keep the code object itself alive."""

    filename: str
    qualname: str
    local_names: tuple[str, ...]  # of all locals, cells and free variables, by index
    free_names: tuple[str, ...]
    instructions: list[tuple[Handler, Any]]
    names: list[str]  # opcode of each instruction
    lines: list[int]
    offsets: list[int]  # in bytes
    # exception table: start, end, target, stack depth, whether the index of the instruction is pushed
    handlers: tuple[tuple[int, int, int, int, bool], ...]
    nlocals: int  # locals, cells and free variables
    nfree: int
    argcount: int
    posonly: int
    kwonly: int
    flags: int
    parameters: dict[str, int]  # name -> slot, positional and keyword-only
    line_objects: dict[int, Line]
    original: Original | None = None  # of a resume function
    live: list[frozenset[int]] | None = (
        None  # see `capture/graph_breaks/live_locals.py`; made when a graph break asks for it
    )

    def line(self, pc: int) -> Line:
        """Source line of the instruction at index `pc`."""
        number = self.lines[pc]
        found = self.line_objects.get(number)
        if found is None:
            found = self.line_objects[number] = Line(self.filename, number, self.qualname)
        return found


def raw_instructions(code: types.CodeType) -> tuple[list[tuple[int, int, int, int]], dict[int, int]]:
    """(opcode, argument, offset, offset of the next) without caches, and byte offset -> index. An instruction that is short
    for several stands as those, all at its offset, which leads to the first of them."""
    raw = code.co_code
    out: list[tuple[int, int, int, int]] = []
    index: dict[int, int] = {}
    offset = extended = 0
    while offset < len(raw):
        op, arg = raw[offset], raw[offset + 1] | extended
        index[offset] = len(out)
        start, offset = offset, offset + 2
        if op == dis.EXTENDED_ARG:
            extended = arg << 8
            continue
        extended = 0
        offset += 2 * CACHE_SIZES[op]
        parts = _PARTS.get(dis.opname[op]) if PY313 else None
        if parts is None:
            out.append((op, arg, start, offset))
        else:
            out += [(dis.opmap[name], part, start, offset) for name, part in parts(arg)]
    index[len(raw)] = len(out)
    return out, index


def is_jump(op: int) -> bool:
    """Whether the instruction leads somewhere else. That of `async for` has the way to the loop for tools only."""
    return op in _RELATIVE and op != _END_ASYNC_FOR


def leads_to(op: int, arg: int, after: int) -> int | None:
    """The offset to which the argument of an instruction leads, which ends at `after`; None where it leads nowhere."""
    if op not in _RELATIVE:
        return None
    return after - 2 * arg if op in _BACKWARD else after + 2 * arg


_RELATIVE = frozenset(dis.hasjrel)
_END_ASYNC_FOR = dis.opmap["END_ASYNC_FOR"]
_BACKWARD = frozenset(op for op in _RELATIVE if "BACKWARD" in dis.opname[op] or op == _END_ASYNC_FOR)


def lines_of(code: types.CodeType, offsets: list[int]) -> list[int]:
    """The lines of the instructions at these offsets; the first one of the code where there is none."""
    by_unit: dict[int, int] = {}
    for start, end, line in code.co_lines():
        for offset in range(start, end, 2):
            by_unit[offset] = line if line is not None else code.co_firstlineno
    return [by_unit.get(o, code.co_firstlineno) for o in offsets]


def decode(code: types.CodeType, table: dict[str, Handler], unknown: Callable[[str], Handler]) -> Code:
    """The instructions of `code`, with their handlers from `table`, by name of the opcode; `unknown` makes the others.

    Jumps have indices of instructions as arguments, names and constants stand in place of their indices."""
    raw, index = raw_instructions(code)
    names = _names(raw)
    instructions = []
    for name, (op, arg, _, after) in zip(names, raw):
        value: object = arg
        if is_jump(op):
            value = index[cast(int, leads_to(op, arg, after))]
        elif name in ARGUMENTS:
            value = ARGUMENTS[name](code, arg)
        instructions.append((table.get(name) or unknown(name), value))
    entries = dis._parse_exception_table(code) if code.co_exceptiontable else ()  # type: ignore[attr-defined]
    offsets = [start for _, _, start, _ in raw]
    varnames = code.co_varnames
    nlocals = len(varnames) + sum(c not in varnames for c in code.co_cellvars) + len(code.co_freevars)
    return Code(
        filename=code.co_filename,
        qualname=code.co_qualname,
        local_names=tuple(code._varname_from_oparg(i) for i in range(nlocals)),  # type: ignore[attr-defined]
        free_names=code.co_freevars,
        instructions=instructions,
        names=names,
        lines=lines_of(code, offsets),
        offsets=offsets,
        handlers=tuple((index[e.start], index[e.end], index[e.target], e.depth, e.lasti) for e in entries),
        nlocals=nlocals,
        nfree=len(code.co_freevars),
        argcount=code.co_argcount,
        posonly=code.co_posonlyargcount,
        kwonly=code.co_kwonlyargcount,
        flags=code.co_flags,
        parameters={n: i for i, n in enumerate(varnames[: code.co_argcount + code.co_kwonlyargcount])},
        line_objects={},
        original=_originals[id(code)][1] if id(code) in _originals else None,
    )
