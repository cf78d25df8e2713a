"""Functions, calls, generators, classes."""

from __future__ import annotations

import builtins
import sys
from types import BuiltinFunctionType
from typing import Any, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY312
from smelt.capture.base.value_kinds import NULL, CellType, FunctionType, MethodType, callee_and_args
from smelt.capture.base.vm_frames import Coroutine, Frame, Generator, Operands
from smelt.capture.graph_breaks.finalizers import check_dropped_argument
from smelt.capture.interpreter.opcodes.container_opcodes import (
    NO_MAPPING,
    class_name,
    is_iterable,
    mapping_of,
)
from smelt.capture.interpreter.opcodes.opcode_table import opcode
from smelt.capture.semantics import attributes, cells
from smelt.capture.semantics.calls.argument_binding import callable_name
from smelt.capture.semantics.calls.calls import call
from smelt.capture.semantics.calls.python_functions import ASYNC_GENERATOR, COROUTINE
from smelt.capture.semantics.values.iteration import TUPLE_CALLS_LENGTH_HINT
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OPCODE, Reason
from smelt.tracing.record.torch_function_handlers import is_handled


@opcode("MAKE_FUNCTION")
def _make_function(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    code = stack.pop()
    closure = stack.pop() if arg & 8 else tuple(CellType() for _ in code.co_freevars)
    annotations = stack.pop() if arg & 4 else None
    keyword_defaults = stack.pop() if arg & 2 else None
    defaults = stack.pop() if arg & 1 else None
    function = FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__kwdefaults__ = keyword_defaults
    function.__qualname__ = code.co_qualname
    if annotations:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2]))
    stack.append(function)
    _register_function(vm, frame)


def _register_function(vm: VM, frame: Frame) -> None:
    """Register the function on top of the stack, unless the next instruction of 3.13 continues to build it."""
    if frame.code.names[frame.pc] != "SET_FUNCTION_ATTRIBUTE":
        cells.register_closure(vm, frame, cast(FunctionType, frame.stack[-1]))


@opcode("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(vm: VM, frame: Frame, arg: int) -> None:
    value, function = cast("tuple[Any, FunctionType]", frame.stack[-2:])
    if arg == 1:
        function.__defaults__ = value
    elif arg == 2:
        function.__kwdefaults__ = value
    elif arg == 4:
        function.__annotations__ = dict(zip(value[::2], value[1::2]))
    elif arg == 16:
        function.__annotate__ = value  # type: ignore[attr-defined]
    else:  # the closure, which CPython sets first
        function = FunctionType(function.__code__, function.__globals__, function.__name__, None, value)
        function.__qualname__ = function.__code__.co_qualname
    frame.stack[-2:] = (function,)
    _register_function(vm, frame)


@opcode("LOAD_BUILD_CLASS")
def _load_build_class(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack.append(builtins.__build_class__)


@opcode("KW_NAMES")
def _kw_names(vm: VM, frame: Frame, arg: tuple[str, ...]) -> None:
    frame.kwnames = arg


@opcode("CALL")
def _call(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    at = len(stack) - arg - 2
    fn, args = callee_and_args(stack, at)
    kwargs = {}
    if frame.kwnames:
        kwargs = _keywords(args, frame.kwnames)
        frame.kwnames = ()
    args = _operands(fn, args, stack, at)
    vm.frames.set_call_site(frame)
    result = call(vm, fn, args, kwargs)
    stack[at:] = (result,)


@opcode("CALL_KW")
def _call_kw(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    at = len(stack) - arg - 3
    fn, args = callee_and_args(stack, at)
    kwargs = _keywords(args, cast("tuple[str, ...]", args.pop()))
    args = _operands(fn, args, stack, at)
    vm.frames.set_call_site(frame)
    result = call(vm, fn, args, kwargs)
    stack[at:] = (result,)


def _operands(fn: object, args: list[object], stack: list[object], start: int) -> list[object]:
    """`args`; if `fn` is a Python function, its frame takes them over from the caller's stack."""
    return Operands(args, stack, start) if type(fn) in (FunctionType, MethodType) else args


def _keywords(args: list[object], names: tuple[str, ...]) -> dict[str, object]:
    """Remove the keyword arguments called `names` from the end of `args`, and return them."""
    split = len(args) - len(names)
    kwargs = dict(zip(names, args[split:]))
    del args[split:]
    return kwargs


@opcode("CALL_FUNCTION_EX")
def _call_function_ex(vm: VM, frame: Frame, arg: bool) -> None:
    stack = frame.stack
    at = len(stack) - 3 - arg
    fn, (positional, *_) = callee_and_args(stack, at)
    if not is_iterable(vm, positional):
        kind = class_name(vm, positional)
        raise TypeError(f"{callable_name(fn)} argument after * must be an iterable, not {kind}")
    keywords = stack[-1] if arg else NULL
    kwargs = {} if keywords is NULL else dict(mapping_of(vm, keywords, NO_MAPPING, fn))
    args = (
        positional
        if type(positional) is tuple
        else tuple(vm.elements(positional, hinted=TUPLE_CALLS_LENGTH_HINT))
    )
    vm.frames.set_call_site(frame)
    trace_call = vm.trace.call
    # Callables of other types drop an empty dictionary.
    if keywords is not NULL and not kwargs and type(fn) is BuiltinFunctionType:
        trace_call.has_empty_kwargs = is_handled(trace_call, (fn.__self__, *args))
    try:
        stack[at:] = (call(vm, fn, args, kwargs),)
    finally:
        trace_call.has_empty_kwargs = False


@opcode("RETURN_VALUE")
def _return_value(vm: VM, frame: Frame, arg: int) -> bool:
    _check_variables(vm, frame, frame.stack[-1])
    frame.result = frame.stack.pop()
    return True


@opcode("RETURN_CONST")
def _return_const(vm: VM, frame: Frame, arg: int) -> bool:
    _check_variables(vm, frame, arg)
    frame.result = arg
    return True


def _check_variables(vm: VM, frame: Frame, result: object) -> None:
    """Check the objects that the ending frame drops with its variables."""
    if frame.code.original is not None and frame.parent is not None:
        for value in frame.locals:
            check_dropped_argument(vm, frame, value, result)


@opcode("RETURN_GENERATOR")
def _return_generator(vm: VM, frame: Frame, arg: int) -> bool:
    if frame.code.flags & ASYNC_GENERATOR:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, "asynchronous generators"))
    if frame.code.flags & COROUTINE and sys.get_coroutine_origin_tracking_depth():
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, "coroutines that know where they were made"))
    frame.result = (Coroutine if frame.code.flags & COROUTINE else Generator)(vm, frame)
    frame.result_handlers = frame.parent = None
    return True


@opcode("YIELD_VALUE")
def _yield_value(vm: VM, frame: Frame, arg: int) -> bool:
    frame.result = frame.stack.pop()
    frame.yielded = True
    return True


@opcode("SEND")
def _send(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    target, value = stack[-2:]
    try:
        stack[-1] = (
            target.send(value)
            if isinstance(target, Generator)
            else vm.next(target)
            if value is None
            else vm.call(attributes.load_attr(vm, target, "send"), (value,), {})
        )
    except StopIteration as stop:
        if PY312:
            stack[-1] = stop.value
        else:
            stack[-2:] = (stop.value,)
        frame.pc = arg


@opcode("END_SEND")
def _end_send(vm: VM, frame: Frame, arg: int) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def _cleanup_throw(vm: VM, frame: Frame, arg: int) -> None:
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        vm.reraise(error)
    frame.stack[-3:] = (None, error.value)
