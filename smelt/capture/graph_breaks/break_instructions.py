"""Break instructions: the Python source of each instruction that a compiled frame can run eagerly at a graph break.

A `BreakInstruction` has the statement, its operands, and its successors. The functions that statements call are at the end.
"""

from __future__ import annotations

import builtins
import collections
import gc
import inspect
import operator
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.bytecode import (
    BINARY_OPERATORS,
    COMPARISONS,
    ENDED_ITERATOR,
    EXIT_DEPTH,
    LOOP_END,
    PY312,
)
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.type_lookup import fully_qualified_name, type_find
from smelt.capture.base.value_kinds import NULL, Sentinel, callee_and_args, unbound_callable
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.capture.proxies.text_proxy import Unreadable
from smelt.capture.reconstruction.frame_globals import provide
from smelt.reasons import UNSUPPORTED_OPCODE


@dataclass(frozen=True)
class Successor:
    """A successor of the instruction: the frame continues at instruction `at`, with `stack`. `frame` has the locals after
    the instruction; None: they are unchanged."""

    at: int
    stack: list[object]
    frame: Frame | None = None


@dataclass(frozen=True)
class BreakInstruction:
    """An instruction as Python source: `text.format(*expressions of operands)` is a statement of one or more lines. With
    several successors, `conditions` are the expressions that select the second, third, ... of them."""

    operands: tuple[object, ...]
    successors: tuple[Successor, ...]
    text: str = ""
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Constant:
    """An operand whose value is known when the compiled frame is written."""

    value: object
    name: str


# (frame, argument of the decoded instruction) -> its source
BreakRule = Callable[[Frame, Any], BreakInstruction]
BREAK_INSTRUCTIONS: dict[str, BreakRule] = {}


def break_instruction(*names: str) -> Callable[[BreakRule], BreakRule]:
    """Register the decorated rule for the instructions with these names."""

    def add(rule: BreakRule) -> BreakRule:
        BREAK_INSTRUCTIONS.update(dict.fromkeys(names, rule))
        return rule

    return add


def _next(frame: Frame, pops: int, *pushed: object) -> tuple[Successor, ...]:
    """The successor that is the next instruction, with `pushed` instead of the topmost `pops` values."""
    stack = frame.stack
    return (Successor(frame.pc + 1, [*stack[: len(stack) - pops], *pushed]),)


def _expression(
    frame: Frame, template: str, operands: Sequence[object], pops: int, name: str = "result"
) -> BreakInstruction:
    result = Placeholder(name)
    return BreakInstruction((result, *operands), _next(frame, pops, result), "{} = " + template)


def _statement(frame: Frame, template: str, operands: Sequence[object], pops: int) -> BreakInstruction:
    return BreakInstruction(tuple(operands), _next(frame, pops), template)


def at_positions(
    template: str | Callable[..., str], *at: int, pops: int | None = None, result: str | None = "result"
) -> BreakRule:
    """The rule of an instruction whose operands are the values at the positions `at` of the stack: an expression, whose
    value is pushed, or, if `result` is None, a statement. It pops its operands unless `pops` has another number. The
    template may depend on the argument of the instruction."""
    count = len(at) if pops is None else pops

    def rule(frame: Frame, arg: object) -> BreakInstruction:
        text, operands = (
            template if isinstance(template, str) else template(arg),
            [frame.stack[i] for i in at],
        )
        if result is None:
            return _statement(frame, text, operands, count)
        return _expression(frame, text, operands, count, result)

    return rule


# ------------------------------------------------------------------------------------------------------- calls


# Builtins and library functions that inspect the frame that calls them, trace its instructions from now on, or observe
# references, memory and lifetime of the objects that it holds, with the number of arguments with which they do (None: any).
# A resume function holds only live values.
_FRAME_READERS: dict[object, int | None] = {
    globals: 0, locals: 0, vars: 0, dir: 0, super: 0, eval: None, exec: None, sys._getframe: None,
    sys._current_frames: None, inspect.currentframe: None, inspect.stack: None, collections.namedtuple: None,
    traceback.print_stack: None, traceback.format_stack: None, traceback.extract_stack: None, type: 3,
    traceback.walk_stack: None, sys.settrace: None, sys.setprofile: None, sys.call_tracing: None,
    threading.settrace: None, threading.setprofile: None,
    sys.getrefcount: None, sys.getsizeof: None, gc.is_tracked: None,
    weakref.ref: None, weakref.WeakMethod: None, weakref.proxy: None, weakref.finalize: None,
}  # fmt: skip


def _check_frame(fn: object, count: int) -> None:
    """Raise Unsupported for a call that would inspect the compiled frame instead of the user's."""
    try:
        reads = fn in _FRAME_READERS and _FRAME_READERS[fn] in (None, count)
    except (TypeError, Unreadable):  # unhashable, or a bound method of C that changes
        return
    if reads:
        raise unsupported(
            f"{getattr(fn, '__name__', fn)} inspects the frame that calls it, or the objects that the frame holds"
        )


@break_instruction("CALL")
def _call(frame: Frame, arg: int) -> BreakInstruction:
    fn, arguments = callee_and_args(frame.stack, len(frame.stack) - arg - 2)
    return _call_of(frame, fn, arguments, frame.kwnames, arg + 2)


@break_instruction("CALL_KW")
def _call_kw(frame: Frame, arg: int) -> BreakInstruction:
    fn, (*arguments, names) = callee_and_args(frame.stack, len(frame.stack) - arg - 3)
    return _call_of(frame, fn, arguments, cast("tuple[str, ...]", names), arg + 3)


def _call_of(
    frame: Frame, fn: object, arguments: Sequence[object], names: Sequence[str], pops: int
) -> BreakInstruction:
    _check_frame(fn, len(arguments))
    keywords = ["{}"] * (len(arguments) - len(names)) + [f"{_keyword(n)}={{}}" for n in names]
    return _expression(frame, f"{{}}({', '.join(keywords)})", (fn, *arguments), pops)


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise unsupported(f"a keyword argument named {name!r}", UNSUPPORTED_OPCODE)
    return name


@break_instruction("CALL_FUNCTION_EX")
def _call_function_ex(frame: Frame, arg: bool) -> BreakInstruction:
    count = 3 + arg
    fn, arguments = callee_and_args(frame.stack, len(frame.stack) - count)
    has_keywords = arg and arguments[-1] is not NULL
    if arg and not has_keywords:
        del arguments[-1]
    operands = (fn, *arguments)
    _check_frame(operands[0], len(operands[1]) if isinstance(operands[1], (tuple, list)) else 0)
    return _expression(frame, "{}(*{}, **{})" if has_keywords else "{}(*{})", operands, count)


@break_instruction("WITH_EXCEPT_START")
def _with_except_start(frame: Frame, arg: int) -> BreakInstruction:
    error, leave = frame.stack[-1], frame.stack[-EXIT_DEPTH]
    return _expression(frame, "{}(type({}), {}, {}.__traceback__)", (leave, error, error, error), 0)


@break_instruction("BEFORE_WITH")
def _before_with(frame: Frame, arg: int) -> BreakInstruction:
    leave, entered = Placeholder("leave"), Placeholder("entered")
    return BreakInstruction(
        (leave, entered, frame.stack[-1]), _next(frame, 1, leave, entered), "{}, {} = enter_context({})"
    )


@break_instruction("LOAD_SPECIAL")
def _load_special(frame: Frame, arg: str) -> BreakInstruction:
    result = Placeholder(arg.strip("_"))
    text = f"{{}} = special_method({{}}, {arg!r})"
    return BreakInstruction((result, frame.stack[-1]), _next(frame, 1, *unbound_callable(result)), text)


@break_instruction("IMPORT_NAME")
def _import_name(frame: Frame, arg: str) -> BreakInstruction:
    level, names = frame.stack[-2:]
    text = f"__import__({arg!r}, {{}}, None, {{}}, {{}})"
    return _expression(frame, text, (Constant(frame.globals, "scope"), names, level), 2, "module")


# --------------------------------------------------------------------------------------------------- operators

_SYMBOLS = {
    operator.add: "+", operator.and_: "&", operator.floordiv: "//", operator.lshift: "<<", operator.matmul: "@",
    operator.mul: "*", operator.mod: "%", operator.or_: "|", operator.pow: "**", operator.rshift: ">>", operator.sub: "-",
    operator.truediv: "/", operator.xor: "^", operator.lt: "<", operator.le: "<=", operator.eq: "==", operator.ne: "!=",
    operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_INPLACE = dict(zip(BINARY_OPERATORS[13:], BINARY_OPERATORS[:13], strict=True))
assert _SYMBOLS.keys() == {*BINARY_OPERATORS[:13], *COMPARISONS}


@break_instruction("BINARY_OP", "COMPARE_OP")
def _binary(frame: Frame, arg: Callable[..., object]) -> BreakInstruction:
    left, right = frame.stack[-2:]
    if arg not in _INPLACE:
        return _expression(frame, f"{{}} {_SYMBOLS[arg]} {{}}", (left, right), 2)
    result = Placeholder("result")
    text = f"{{}} = {{}}\n{{}} {_SYMBOLS[_INPLACE[arg]]}= {{}}"
    return BreakInstruction((result, left, result, right), _next(frame, 2, result), text)


_CONVERSIONS = ("{}", "str({})", "repr({})", "ascii({})")

BREAK_INSTRUCTIONS.update(
    UNARY_NOT=at_positions("not {}", -1),
    UNARY_NEGATIVE=at_positions("-{}", -1),
    UNARY_POSITIVE=at_positions("+{}", -1),
    UNARY_INVERT=at_positions("~{}", -1),
    IS_OP=at_positions(lambda arg: "{} is not {}" if arg else "{} is {}", -2, -1),
    CONTAINS_OP=at_positions(lambda arg: "{} not in {}" if arg else "{} in {}", -2, -1),
    GET_ITER=at_positions("iter({})", -1),
    GET_YIELD_FROM_ITER=at_positions("iter({})", -1),
    GET_LEN=at_positions("len({})", -1, pops=0),
    LIST_TO_TUPLE=at_positions("tuple({})", -1),
    CONVERT_VALUE=at_positions(_CONVERSIONS.__getitem__, -1, result="text"),
    FORMAT_SIMPLE=at_positions("format({})", -1, result="text"),
    FORMAT_WITH_SPEC=at_positions("format({}, {})", -2, -1, result="text"),
)


@break_instruction("TO_BOOL")
def _to_bool(frame: Frame, arg: int) -> BreakInstruction:
    """TO_BOOL together with the conditional jump after it, if there is one."""
    at = frame.pc + 1
    condition = _CONDITIONS.get(frame.code.names[at])
    if condition is None:
        return _expression(frame, "bool({})", frame.stack[-1:], 1)
    below = frame.stack[:-1]
    successors = Successor(at + 1, below), Successor(frame.instructions[at][1], list(below))
    return BreakInstruction((frame.stack[-1],), successors, conditions=(condition,))


_CONDITIONS = {"POP_JUMP_IF_TRUE": "{}", "POP_JUMP_IF_FALSE": "not {}"}


@break_instruction("FORMAT_VALUE")
def _format_value(frame: Frame, arg: int) -> BreakInstruction:
    count = 2 if arg & 4 else 1
    value, *spec = frame.stack[-count:]
    text = f"format({_CONVERSIONS[arg & 3]}{', {}' if spec else ''})"
    return _expression(frame, text, (value, *spec), count, "text")


# ------------------------------------------------------------------------------------------ attributes and items


def _attribute(name: str) -> str:
    return f"{{}}.{name}" if name.isidentifier() else f"getattr({{}}, {name!r})"


@break_instruction("LOAD_ATTR")
def _load_attr(frame: Frame, arg: tuple[str, bool]) -> BreakInstruction:
    name, is_method = arg
    result = Placeholder(name)
    pushed = unbound_callable(result) if is_method else (result,)
    return BreakInstruction((result, frame.stack[-1]), _next(frame, 1, *pushed), "{} = " + _attribute(name))


BREAK_INSTRUCTIONS.update(
    LOAD_METHOD=lambda frame, arg: _load_attr(frame, (arg, True)),
    IMPORT_FROM=at_positions(_attribute, -1, pops=0),
    STORE_ATTR=at_positions(lambda name: f"{_attribute(name)} = {{}}", -1, -2, result=None),
    DELETE_ATTR=at_positions(lambda name: f"del {_attribute(name)}", -1, result=None),
    BINARY_SUBSCR=at_positions("{}[{}]", -2, -1, result="item"),
    BINARY_SLICE=at_positions("{}[{}:{}]", -3, -2, -1, result="item"),
    STORE_SUBSCR=at_positions("{}[{}] = {}", -2, -1, -3, result=None),
    STORE_SLICE=at_positions("{}[{}:{}] = {}", -3, -2, -1, -4, result=None),
    DELETE_SUBSCR=at_positions("del {}[{}]", -2, -1, result=None),
)


@break_instruction("LOAD_GLOBAL")
def _load_global(frame: Frame, arg: tuple[str, bool]) -> BreakInstruction:
    name, push_null = arg
    result = Placeholder(name)
    pushed = unbound_callable(result) if push_null else (result,)
    return BreakInstruction(
        (result, Constant(frame.globals, "scope")),
        _next(frame, 0, *pushed),
        f"{{}} = read_global({{}}, {name!r})",
    )


# -------------------------------------------------------------------------------------- iteration and unpacking


@break_instruction("FOR_ITER")
def _for_iter(frame: Frame, arg: int) -> BreakInstruction:
    stack, value = frame.stack, Placeholder("item")
    successors = (
        Successor(frame.pc + 1, [*stack, value]),
        Successor(arg + LOOP_END, stack[: len(stack) - 1 + ENDED_ITERATOR]),
    )
    return BreakInstruction(
        (value, stack[-1], value), successors, "{} = next({}, exhausted)", ("{} is exhausted",)
    )


@break_instruction("SEND")
def _send(frame: Frame, arg: int) -> BreakInstruction:
    """Send to the iterator of a `yield from` or `await`; at its end, END_SEND of 3.12 pops it."""
    *below, target, sent = frame.stack
    value, ended = Placeholder("sent"), Placeholder("ended")
    successors = (
        Successor(frame.pc + 1, [*below, target, value]),
        Successor(arg, [*below, *([target] if PY312 else []), value]),
    )
    return BreakInstruction((value, ended, target, sent, ended), successors, "{}, {} = send({}, {})", ("{}",))


@break_instruction("UNPACK_SEQUENCE")
def _unpack_sequence(frame: Frame, arg: int) -> BreakInstruction:
    items = [Placeholder(f"item{i}") for i in range(arg)]
    targets = ", ".join(["{}"] * arg)
    return BreakInstruction(
        (*items, frame.stack[-1]), _next(frame, 1, *reversed(items)), f"[{targets}] = {{}}"
    )


@break_instruction("UNPACK_EX")
def _unpack_ex(frame: Frame, arg: int) -> BreakInstruction:
    before, after = arg & 0xFF, arg >> 8
    items = [Placeholder(f"item{i}") for i in range(before + 1 + after)]
    targets = ["{}"] * len(items)
    targets[before] = "*{}"
    return BreakInstruction(
        (*items, frame.stack[-1]), _next(frame, 1, *reversed(items)), f"[{', '.join(targets)}] = {{}}"
    )


def _container_update(template: str) -> BreakRule:
    """The rule of a statement about a container, which stays on the stack, and a value."""

    def step(frame: Frame, arg: int) -> BreakInstruction:
        value, target = frame.stack[-1], frame.stack[-1 - arg]
        return _statement(frame, template, (target, value), 1)

    return step


BREAK_INSTRUCTIONS.update(
    LIST_EXTEND=_container_update("list.extend({}, [*{}])"),  # errors of `*` differ from those of `extend`
    SET_UPDATE=_container_update("set.update({}, {})"),
    SET_ADD=_container_update("set.add({}, {})"),
    DICT_UPDATE=_container_update("dict.update({}, {})"),
    DICT_MERGE=_container_update("merge_keywords({}, {})"),
)


@break_instruction("MAP_ADD")
def _map_add(frame: Frame, arg: int) -> BreakInstruction:
    key, value = frame.stack[-2:]
    return _statement(frame, "{}[{}] = {}", (frame.stack[-2 - arg], key, value), 2)


def _display(opening: str, closing: str) -> BreakRule:
    """The rule of an instruction that builds a container of the topmost values."""

    def rule(frame: Frame, arg: int) -> BreakInstruction:
        items = frame.stack[len(frame.stack) - arg :]
        return _expression(frame, opening + ", ".join(["{}"] * arg) + closing, items, arg)

    return rule


BREAK_INSTRUCTIONS.update(
    BUILD_SLICE=_display("slice(", ")"),
    BUILD_SET=_display("{{", "}}"),
    BUILD_LIST=_display("[", "]"),
    BUILD_TUPLE=_display("(*[", "],)"),
    BUILD_STRING=_display("''.join([", "])"),
)


@break_instruction("BUILD_MAP")
def _build_map(frame: Frame, arg: int) -> BreakInstruction:
    items = frame.stack[len(frame.stack) - 2 * arg :]
    return _expression(frame, "{{" + ", ".join(["{}: {}"] * arg) + "}}", items, 2 * arg)


# ------------------------------------------------------------------------------------------------------- jumps


def _jump_if(condition: str, pops: int = 1) -> BreakRule:
    """The rule of a conditional jump; `pops`: whether it pops the condition where it jumps."""

    def rule(frame: Frame, arg: int) -> BreakInstruction:
        jumped = Successor(arg, frame.stack[: len(frame.stack) - pops])
        return BreakInstruction((frame.stack[-1],), (*_next(frame, 1), jumped), conditions=(condition,))

    return rule


for _direction in ("", "FORWARD_", "BACKWARD_"):
    BREAK_INSTRUCTIONS[f"POP_JUMP_{_direction}IF_TRUE"] = _jump_if("{}")
    BREAK_INSTRUCTIONS[f"POP_JUMP_{_direction}IF_FALSE"] = _jump_if("not {}")
BREAK_INSTRUCTIONS["JUMP_IF_TRUE_OR_POP"] = _jump_if("{}", pops=0)
BREAK_INSTRUCTIONS["JUMP_IF_FALSE_OR_POP"] = _jump_if("not {}", pops=0)


# ----------------------------------------------------------------------- functions that compiled frames call


def enter_context(manager: object) -> tuple[object, object]:
    """The two values that BEFORE_WITH pushes: the bound `__exit__` and the result of `__enter__`."""
    cls: Any = type(manager)
    try:
        enter, leave = cls.__enter__, cls.__exit__
    except AttributeError:
        raise TypeError(f"{cls.__name__!r} object does not support the context manager protocol") from None
    bound = leave.__get__(manager, cls)
    return bound, enter.__get__(manager, cls)()


def not_a_manager_text(cls: type, missed: str) -> str:
    """The error text of a `with` statement of 3.14 for an object whose class lacks the special method `missed`."""
    of_async = missed.startswith("__a")
    kinds = "asynchronous context manager", "context manager"
    this, other = kinds if of_async else reversed(kinds)
    text = (
        f"'{fully_qualified_name(cls)}' object does not support the {this} protocol (missed {missed} method)"
    )
    others = ("__enter__", "__exit__") if of_async else ("__aenter__", "__aexit__")
    if not all(hasattr(type(type_find(cls, name)), "__get__") for name in others):
        return text
    statement = "with" if of_async else "async with"
    return f"{text} but it supports the {other} protocol. Did you mean to use {statement!r}?"


def special_method(owner: object, name: str) -> object:
    """The bound special method that a `with` statement of 3.14 calls. Raises its TypeError."""
    cls = type(owner)
    found = getattr(cls, name, None)
    if found is None:
        raise TypeError(not_a_manager_text(cls, name))
    return found.__get__(owner, cls)


def raise_without_context(error: BaseException) -> NoReturn:
    """Raise `error` with its context unchanged."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def leave_frames(error: BaseException, count: int) -> None:
    """Remove the `count` outermost frames from the traceback of `error`: a frame inside of them handles it."""
    for _ in range(count):
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next


def read_global(scope: dict[str, object], name: str) -> object:
    """The global or builtin `name`."""
    if name in scope:
        return scope[name]
    found = scope.get("__builtins__", builtins)
    found = found if isinstance(found, dict) else vars(found)
    if name not in found:
        raise NameError(f"name {name!r} is not defined", name=name)
    return found[name]


def merge_keywords(target: dict[str, object], more: Mapping[str, object]) -> None:
    """Merge keyword arguments as `f(**target, **more)` does. Raises TypeError for a duplicate name."""
    for key in more:
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
        target[key] = more[key]


provide(
    tail=_native.tail_call, send=_native.send, exhausted=Sentinel("exhausted"), enter_context=enter_context,
    special_method=special_method, raise_without_context=raise_without_context, leave_frames=leave_frames,
    read_global=read_global, merge_keywords=merge_keywords,
)  # fmt: skip
