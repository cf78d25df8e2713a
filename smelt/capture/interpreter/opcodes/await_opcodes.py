"""`await`, `async with` and `async for`."""

from __future__ import annotations

from smelt._native import isinstance
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.base.vm_frames import SUSPENDED, Coroutine, Frame, Generator
from smelt.capture.graph_breaks.await_breaks import NOT_AWAITABLE
from smelt.capture.interpreter.opcodes.exception_opcodes import context_methods
from smelt.capture.interpreter.opcodes.opcode_table import opcode
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls.python_functions import ITERABLE_COROUTINE
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason


@opcode("GET_AWAITABLE")
def _get_awaitable(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack[-1] = _awaited(vm, frame.stack[-1])


def _awaited(vm: VM, obj: object) -> Generator:
    """The generator that `await obj` runs. Raises Unsupported unless the VM runs its frame."""
    if isinstance(obj, Generator):
        if type(obj) is Coroutine and obj.state is SUSPENDED and obj.yieldfrom is not None:
            raise RuntimeError("coroutine is being awaited already")
        if type(obj) is Coroutine or obj.user_code.co_flags & ITERABLE_COROUTINE:
            return obj
        raise TypeError(NOT_AWAITABLE.format("generator"))
    found = attributes.python_method(vm, obj, "__await__")
    generator = None if found is None else vm.call_function(found, (obj,))
    if type(generator) is not Generator:
        raise Unsupported(Reason(UNSUPPORTED_CALL, f"a {vm.class_of(obj).__qualname__} is awaited"))
    return generator


@opcode("BEFORE_ASYNC_WITH")
def _before_async_with(vm: VM, frame: Frame, arg: int) -> None:
    enter, leave = context_methods(vm, frame.stack[-1], "a", "asynchronous ")
    frame.stack[-1:] = (leave, vm.call(enter, (), {}))


@opcode("GET_AITER")
def _get_aiter(vm: VM, frame: Frame, arg: int) -> None:
    obj = frame.stack[-1]
    found = attributes.load_special(vm, obj, "__aiter__")
    if found is MISSING:
        name = vm.class_of(obj).__name__
        raise TypeError(f"'async for' requires an object with __aiter__ method, got {name}")
    iterator = vm.call(found, (), {})
    if attributes.load_special(vm, iterator, "__anext__") is MISSING:
        name = vm.class_of(iterator).__name__
        raise TypeError(
            f"'async for' received an object from __aiter__ that does not implement __anext__: {name}"
        )
    frame.stack[-1] = iterator


@opcode("GET_ANEXT")
def _get_anext(vm: VM, frame: Frame, arg: int) -> None:
    found = attributes.load_special(vm, frame.stack[-1], "__anext__")
    frame.stack.append(_awaited(vm, vm.call(found, (), {})))


@opcode("END_ASYNC_FOR")
def _end_async_for(vm: VM, frame: Frame, arg: int) -> None:
    error = frame.stack[-1]
    if not isinstance(error, StopAsyncIteration):
        del frame.stack[-1]
        vm.reraise(error)
    del frame.stack[-2:]
