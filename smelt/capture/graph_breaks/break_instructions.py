"""Instructions as source: one row for each that a compiled frame can carry out for real, at a graph break.

A `Step` is the statement, its operands, and its successors: where the frame can go on. What statements call is at the end.
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
from smelt.capture.base.type_lookup import type_find, whole_name
from smelt.capture.base.value_kinds import NULL, Sentinel, called, to_be_called
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.capture.reconstruction.frame_globals import provide
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, UNSUPPORTED_OPCODE, Reason


@dataclass(frozen=True)
class Successor:
    """Where the frame can go on after the instruction: at instruction `at`, with `stack`. `frame` has the locals that it has
    then; None: those that it has now."""

    at: int
    stack: list[object]
    frame: Frame | None = None


@dataclass(frozen=True)
class Step:
    """An instruction as source. `text.format(*expressions of operands)` is a statement (of several lines, perhaps);
    where there are several successors, `conditions` are expressions that say whether to take the second, third, ..."""

    operands: tuple[object, ...]
    successors: tuple[Successor, ...]
    text: str = ""
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Constant:
    """An operand that is known when the compiled frame is written."""

    value: object
    name: str


Row = Callable[[Frame, Any], Step]  # what the second argument is depends on the instruction
ROWS: dict[str, Row] = {}


def row(*names: str) -> Callable[[Row], Row]:
    """Adds the decorated function as the row of the instructions with these names."""

    def add(made: Row) -> Row:
        ROWS.update(dict.fromkeys(names, made))
        return made

    return add


def _next(frame: Frame, pops: int, *pushed: object) -> tuple[Successor, ...]:
    """On to the next instruction, with `pushed` in place of the topmost `pops` values."""
    stack = frame.stack
    return (Successor(frame.pc + 1, [*stack[: len(stack) - pops], *pushed]),)


def _expression(
    frame: Frame, template: str, operands: Sequence[object], pops: int, name: str = "result"
) -> Step:
    result = Placeholder(name)
    return Step((result, *operands), _next(frame, pops, result), "{} = " + template)


def _statement(frame: Frame, template: str, operands: Sequence[object], pops: int) -> Step:
    return Step(tuple(operands), _next(frame, pops), template)


# ------------------------------------------------------------------------------------------------------- calls


# Builtins and library functions that look at the frame that calls them, have its instructions traced from now on, or tell
# what Python code cannot of the objects that it holds (references, memory, how long they live), with how many arguments they
# do (None: any). A resume function holds only what is still read.
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
    """Raises Unsupported for a call that would take the compiled frame for the user's."""
    try:
        reads = fn in _FRAME_READERS and _FRAME_READERS[fn] in (None, count)
    except TypeError:  # unhashable
        return
    if reads:
        raise Unsupported(
            Reason(
                UNSUPPORTED_CALL,
                f"{getattr(fn, '__name__', fn)} looks at the frame that calls it, or what it holds",
            )
        )


@row("CALL")
def _call(frame: Frame, arg: int) -> Step:
    fn, arguments = called(frame.stack, len(frame.stack) - arg - 2)
    return _call_of(frame, fn, arguments, frame.kwnames, arg + 2)


@row("CALL_KW")
def _call_kw(frame: Frame, arg: int) -> Step:
    fn, (*arguments, names) = called(frame.stack, len(frame.stack) - arg - 3)
    return _call_of(frame, fn, arguments, cast("tuple[str, ...]", names), arg + 3)


def _call_of(frame: Frame, fn: object, arguments: Sequence[object], names: Sequence[str], pops: int) -> Step:
    _check_frame(fn, len(arguments))
    keywords = ["{}"] * (len(arguments) - len(names)) + [f"{_keyword(n)}={{}}" for n in names]
    return _expression(frame, f"{{}}({', '.join(keywords)})", (fn, *arguments), pops)


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"a keyword argument named {name!r}"))
    return name


@row("CALL_FUNCTION_EX")
def _call_function_ex(frame: Frame, arg: bool) -> Step:
    count = 3 + arg
    fn, arguments = called(frame.stack, len(frame.stack) - count)
    has_keywords = arg and arguments[-1] is not NULL
    if arg and not has_keywords:
        del arguments[-1]
    operands = (fn, *arguments)
    _check_frame(operands[0], len(operands[1]) if isinstance(operands[1], (tuple, list)) else 0)
    return _expression(frame, "{}(*{}, **{})" if has_keywords else "{}(*{})", operands, count)


@row("WITH_EXCEPT_START")
def _with_except_start(frame: Frame, arg: int) -> Step:
    error, leave = frame.stack[-1], frame.stack[-EXIT_DEPTH]
    return _expression(frame, "{}(type({}), {}, {}.__traceback__)", (leave, error, error, error), 0)


@row("BEFORE_WITH")
def _before_with(frame: Frame, arg: int) -> Step:
    leave, entered = Placeholder("leave"), Placeholder("entered")
    return Step(
        (leave, entered, frame.stack[-1]), _next(frame, 1, leave, entered), "{}, {} = enter_context({})"
    )


@row("LOAD_SPECIAL")
def _load_special(frame: Frame, arg: str) -> Step:
    result = Placeholder(arg.strip("_"))
    text = f"{{}} = special_method({{}}, {arg!r})"
    return Step((result, frame.stack[-1]), _next(frame, 1, *to_be_called(result)), text)


@row("IMPORT_NAME")
def _import_name(frame: Frame, arg: str) -> Step:
    level, names = frame.stack[-2:]
    text = f"__import__({arg!r}, {{}}, None, {{}}, {{}})"
    return _expression(frame, text, (frame.globals, names, level), 2, "module")


# --------------------------------------------------------------------------------------------------- operators

_SYMBOLS = {
    operator.add: "+", operator.and_: "&", operator.floordiv: "//", operator.lshift: "<<", operator.matmul: "@",
    operator.mul: "*", operator.mod: "%", operator.or_: "|", operator.pow: "**", operator.rshift: ">>", operator.sub: "-",
    operator.truediv: "/", operator.xor: "^", operator.lt: "<", operator.le: "<=", operator.eq: "==", operator.ne: "!=",
    operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_IN_PLACE = dict(zip(BINARY_OPERATORS[13:], BINARY_OPERATORS[:13], strict=True))
assert _SYMBOLS.keys() == {*BINARY_OPERATORS[:13], *COMPARISONS}


@row("BINARY_OP", "COMPARE_OP")
def _binary(frame: Frame, arg: Callable[..., object]) -> Step:
    left, right = frame.stack[-2:]
    if arg not in _IN_PLACE:
        return _expression(frame, f"{{}} {_SYMBOLS[arg]} {{}}", (left, right), 2)
    result = Placeholder("result")
    text = f"{{}} = {{}}\n{{}} {_SYMBOLS[_IN_PLACE[arg]]}= {{}}"
    return Step((result, left, result, right), _next(frame, 2, result), text)


@row("IS_OP")
def _is(frame: Frame, arg: bool) -> Step:
    return _expression(frame, f"{{}} {'is not' if arg else 'is'} {{}}", frame.stack[-2:], 2)


@row("CONTAINS_OP")
def _contains(frame: Frame, arg: bool) -> Step:
    return _expression(frame, f"{{}} {'not in' if arg else 'in'} {{}}", frame.stack[-2:], 2)


def _unary(template: str) -> Row:
    return lambda frame, arg: _expression(frame, template, frame.stack[-1:], 1)


ROWS.update(
    UNARY_NOT=_unary("not {}"),
    UNARY_NEGATIVE=_unary("-{}"),
    UNARY_POSITIVE=_unary("+{}"),
    UNARY_INVERT=_unary("~{}"),
    GET_ITER=_unary("iter({})"),
    GET_YIELD_FROM_ITER=_unary("iter({})"),
    LIST_TO_TUPLE=_unary("tuple({})"),
)


@row("TO_BOOL")
def _to_bool(frame: Frame, arg: int) -> Step:
    """With the jump behind it, if there is one."""
    at = frame.pc + 1
    condition = _CONDITIONS.get(frame.code.names[at])
    if condition is None:
        return _expression(frame, "bool({})", frame.stack[-1:], 1)
    below = frame.stack[:-1]
    successors = Successor(at + 1, below), Successor(frame.instructions[at][1], list(below))
    return Step((frame.stack[-1],), successors, conditions=(condition,))


_CONDITIONS = {"POP_JUMP_IF_TRUE": "{}", "POP_JUMP_IF_FALSE": "not {}"}


@row("GET_LEN")
def _get_len(frame: Frame, arg: int) -> Step:
    return _expression(frame, "len({})", frame.stack[-1:], 0)


@row("FORMAT_VALUE")
def _format_value(frame: Frame, arg: int) -> Step:
    count = 2 if arg & 4 else 1
    value, *spec = frame.stack[-count:]
    converted = ("{}", "str({})", "repr({})", "ascii({})")[arg & 3]
    text = f"format({converted}, {{}})" if spec else f"format({converted})"
    return _expression(frame, text, (value, *spec), count, "text")


@row("CONVERT_VALUE")
def _convert_value(frame: Frame, arg: int) -> Step:
    return _expression(frame, ("", "str({})", "repr({})", "ascii({})")[arg], frame.stack[-1:], 1, "text")


@row("FORMAT_SIMPLE")
def _format_simple(frame: Frame, arg: int) -> Step:
    return _expression(frame, "format({})", frame.stack[-1:], 1, "text")


@row("FORMAT_WITH_SPEC")
def _format_with_spec(frame: Frame, arg: int) -> Step:
    return _expression(frame, "format({}, {})", frame.stack[-2:], 2, "text")


# ------------------------------------------------------------------------------------------ attributes and items


def _attribute(name: str) -> str:
    return f"{{}}.{name}" if name.isidentifier() else f"getattr({{}}, {name!r})"


@row("LOAD_ATTR")
def _load_attr(frame: Frame, arg: tuple[str, bool]) -> Step:
    name, is_method = arg
    result = Placeholder(name)
    pushed = to_be_called(result) if is_method else (result,)
    return Step((result, frame.stack[-1]), _next(frame, 1, *pushed), "{} = " + _attribute(name))


@row("LOAD_METHOD")
def _load_method(frame: Frame, arg: str) -> Step:
    return _load_attr(frame, (arg, True))


@row("IMPORT_FROM")
def _import_from(frame: Frame, arg: str) -> Step:
    return _expression(frame, _attribute(arg), frame.stack[-1:], 0)


@row("STORE_ATTR")
def _store_attr(frame: Frame, arg: str) -> Step:
    value, obj = frame.stack[-2:]
    return _statement(frame, f"{_attribute(arg)} = {{}}", (obj, value), 2)


@row("DELETE_ATTR")
def _delete_attr(frame: Frame, arg: str) -> Step:
    return _statement(frame, f"del {_attribute(arg)}", frame.stack[-1:], 1)


@row("BINARY_SUBSCR")
def _binary_subscr(frame: Frame, arg: int) -> Step:
    return _expression(frame, "{}[{}]", frame.stack[-2:], 2, "item")


@row("BINARY_SLICE")
def _binary_slice(frame: Frame, arg: int) -> Step:
    return _expression(frame, "{}[{}:{}]", frame.stack[-3:], 3, "item")


@row("STORE_SUBSCR")
def _store_subscr(frame: Frame, arg: int) -> Step:
    value, obj, key = frame.stack[-3:]
    return _statement(frame, "{}[{}] = {}", (obj, key, value), 3)


@row("STORE_SLICE")
def _store_slice(frame: Frame, arg: int) -> Step:
    value, obj, start, stop = frame.stack[-4:]
    return _statement(frame, "{}[{}:{}] = {}", (obj, start, stop, value), 4)


@row("DELETE_SUBSCR")
def _delete_subscr(frame: Frame, arg: int) -> Step:
    return _statement(frame, "del {}[{}]", frame.stack[-2:], 2)


@row("LOAD_GLOBAL")
def _load_global(frame: Frame, arg: tuple[str, bool]) -> Step:
    name, push_null = arg
    result = Placeholder(name)
    pushed = to_be_called(result) if push_null else (result,)
    return Step((result, frame.globals), _next(frame, 0, *pushed), f"{{}} = read_global({{}}, {name!r})")


# -------------------------------------------------------------------------------------- iteration and unpacking


@row("FOR_ITER")
def _for_iter(frame: Frame, arg: int) -> Step:
    stack, value = frame.stack, Placeholder("item")
    successors = (
        Successor(frame.pc + 1, [*stack, value]),
        Successor(arg + LOOP_END, stack[: len(stack) - 1 + ENDED_ITERATOR]),
    )
    return Step((value, stack[-1], value), successors, "{} = next({}, exhausted)", ("{} is exhausted",))


@row("SEND")
def _send(frame: Frame, arg: int) -> Step:
    """The next of what a generator or coroutine delegates to; at its end END_SEND of 3.12 takes that from the stack."""
    *below, target, sent = frame.stack
    value, ended = Placeholder("sent"), Placeholder("ended")
    successors = (
        Successor(frame.pc + 1, [*below, target, value]),
        Successor(arg, [*below, *([target] if PY312 else []), value]),
    )
    return Step((value, ended, target, sent, ended), successors, "{}, {} = send({}, {})", ("{}",))


@row("UNPACK_SEQUENCE")
def _unpack_sequence(frame: Frame, arg: int) -> Step:
    items = [Placeholder(f"item{i}") for i in range(arg)]
    targets = ", ".join(["{}"] * arg)
    return Step((*items, frame.stack[-1]), _next(frame, 1, *reversed(items)), f"[{targets}] = {{}}")


@row("UNPACK_EX")
def _unpack_ex(frame: Frame, arg: int) -> Step:
    before, after = arg & 0xFF, arg >> 8
    items = [Placeholder(f"item{i}") for i in range(before + 1 + after)]
    targets = ["{}"] * len(items)
    targets[before] = "*{}"
    return Step(
        (*items, frame.stack[-1]), _next(frame, 1, *reversed(items)), f"[{', '.join(targets)}] = {{}}"
    )


def _into(method: str) -> Row:
    """`target.method(value)` of a container that stays on the stack."""

    def step(frame: Frame, arg: int) -> Step:
        value, target = frame.stack[-1], frame.stack[-1 - arg]
        return _statement(frame, f"{method}({{}}, {{}})", (target, value), 1)

    return step


ROWS.update(
    LIST_EXTEND=_into("list.extend"),
    SET_UPDATE=_into("set.update"),
    SET_ADD=_into("set.add"),
    DICT_UPDATE=_into("dict.update"),
)


@row("DICT_MERGE")
def _dict_merge(frame: Frame, arg: int) -> Step:
    value, target = frame.stack[-1], frame.stack[-1 - arg]
    return _statement(frame, "merge_keywords({}, {})", (target, value), 1)


@row("MAP_ADD")
def _map_add(frame: Frame, arg: int) -> Step:
    key, value = frame.stack[-2:]
    return _statement(frame, "{}[{}] = {}", (frame.stack[-2 - arg], key, value), 2)


@row("BUILD_SET")
def _build_set(frame: Frame, arg: int) -> Step:
    items = frame.stack[len(frame.stack) - arg :]
    return _expression(frame, "{{" + ", ".join(["{}"] * arg) + "}}", items, arg)


@row("BUILD_MAP")
def _build_map(frame: Frame, arg: int) -> Step:
    items = frame.stack[len(frame.stack) - 2 * arg :]
    return _expression(frame, "{{" + ", ".join(["{}: {}"] * arg) + "}}", items, 2 * arg)


# ------------------------------------------------------------------------------------------------------- jumps


def _jump_if(condition: str) -> Row:
    return lambda frame, arg: Step(
        (frame.stack[-1],), (*_next(frame, 1), Successor(arg, frame.stack[:-1])), conditions=(condition,)
    )


def _jump_or_pop(condition: str) -> Row:
    return lambda frame, arg: Step(
        (frame.stack[-1],), (*_next(frame, 1), Successor(arg, list(frame.stack))), conditions=(condition,)
    )


for _direction in ("", "FORWARD_", "BACKWARD_"):
    ROWS[f"POP_JUMP_{_direction}IF_TRUE"] = _jump_if("{}")
    ROWS[f"POP_JUMP_{_direction}IF_FALSE"] = _jump_if("not {}")
ROWS["JUMP_IF_TRUE_OR_POP"] = _jump_or_pop("{}")
ROWS["JUMP_IF_FALSE_OR_POP"] = _jump_or_pop("not {}")


# ------------------------------------------------------------------------- what compiled frames call for steps


def enter_context(manager: object) -> tuple[object, object]:
    """The two values that BEFORE_WITH pushes: `__exit__`, bound, and what `__enter__` returned."""
    cls: Any = type(manager)
    try:
        enter, leave = cls.__enter__, cls.__exit__
    except AttributeError:
        raise TypeError(f"{cls.__name__!r} object does not support the context manager protocol") from None
    bound = leave.__get__(manager, cls)
    return bound, enter.__get__(manager, cls)()


def no_manager(cls: type, missed: str) -> str:
    """What a `with` statement of 3.14 says of an object whose class has no such special method."""
    of_async = missed.startswith("__a")
    kinds = "asynchronous context manager", "context manager"
    this, other = kinds if of_async else reversed(kinds)
    text = f"'{whole_name(cls)}' object does not support the {this} protocol (missed {missed} method)"
    others = ("__enter__", "__exit__") if of_async else ("__aenter__", "__aexit__")
    if not all(hasattr(type(type_find(cls, name)), "__get__") for name in others):
        return text
    statement = "with" if of_async else "async with"
    return f"{text} but it supports the {other} protocol. Did you mean to use {statement!r}?"


def special_method(owner: object, name: str) -> object:
    """A method that a `with` statement of 3.14 calls, bound."""
    cls = type(owner)
    found = getattr(cls, name, None)
    if found is None:
        raise TypeError(no_manager(cls, name))
    return found.__get__(owner, cls)


def raise_as_it_is(error: BaseException) -> NoReturn:
    """Raises `error` without a new context."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def leave_frames(error: BaseException, count: int) -> None:
    """Cuts off the outermost frames from the traceback of `error`, which a frame inside of them handles."""
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
    """`f(**target, **more)`. Raises TypeError for a name that comes twice."""
    for key in more:
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
        target[key] = more[key]


provide(
    tail=_native.tail_call,
    send=_native.send,
    exhausted=Sentinel("exhausted"),
    enter_context=enter_context,
    special_method=special_method,
    raise_as_it_is=raise_as_it_is,
    leave_frames=leave_frames,
    read_global=read_global,
    merge_keywords=merge_keywords,
)
