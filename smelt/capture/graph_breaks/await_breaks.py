"""Asynchronous instructions at a graph break: `await`, `async with`, `async for`."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import (
    BREAK_INSTRUCTIONS,
    BreakInstruction,
    Successor,
    at_positions,
    break_instruction,
)
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.capture.reconstruction.frame_globals import provide

BREAK_INSTRUCTIONS.update(
    GET_AWAITABLE=at_positions(lambda arg: f"awaitable_iterator({{}}, {arg})", -1, result="awaited"),
    GET_AITER=at_positions("async_iterator({})", -1, result="iterator"),
    GET_ANEXT=at_positions("next_awaitable({})", -1, pops=0, result="awaited"),
)


@break_instruction("BEFORE_ASYNC_WITH")
def _before_async_with(frame: Frame, arg: int) -> BreakInstruction:
    *below, manager = frame.stack
    leave, entered = Placeholder("leave"), Placeholder("entered")
    after = Successor(frame.pc + 1, [*below, leave, entered])
    return BreakInstruction((leave, entered, manager), (after,), "{}, {} = enter_async_context({})")


def enter_async_context(manager: AbstractAsyncContextManager[object]) -> tuple[object, object]:
    """The two values that BEFORE_ASYNC_WITH pushes: the bound `__aexit__` and the result of `__aenter__`."""
    cls = type(manager)
    if not hasattr(cls, "__aenter__") or not hasattr(cls, "__aexit__"):
        missed = " (missed __aexit__ method)" if hasattr(cls, "__aenter__") else ""
        raise TypeError(
            f"{cls.__name__!r} object does not support the asynchronous context manager protocol{missed}"
        )
    leave = cls.__aexit__.__get__(manager, cls)
    return leave, cls.__aenter__.__get__(manager, cls)()


def next_awaitable(iterator: AsyncIterator[object]) -> object:
    """The awaitable of the next element of an `async for`. Raises the TypeError of `async for`."""
    awaitable = type(iterator).__anext__(iterator)
    if isinstance(iterator, types.AsyncGeneratorType):
        return awaitable
    try:
        return awaitable_iterator(awaitable)
    except TypeError as error:
        name = type(awaitable).__name__
        raise TypeError(f"'async for' received an invalid object from __anext__: {name}") from error


def async_iterator(x: AsyncIterable[object]) -> object:
    """The iterator of `async for` over `x`. Raises the TypeError of `async for`."""
    if not hasattr(type(x), "__aiter__"):
        raise TypeError(f"'async for' requires an object with __aiter__ method, got {type(x).__name__}")
    iterator = type(x).__aiter__(x)
    if not hasattr(type(iterator), "__anext__"):
        name = type(iterator).__name__
        raise TypeError(
            f"'async for' received an object from __aiter__ that does not implement __anext__: {name}"
        )
    return iterator


NOT_AWAITABLE = "'{}' object can't be awaited" if PY314 else "object {} can't be used in 'await' expression"
_NOT_AWAITABLE_TEXTS = (
    NOT_AWAITABLE,
    "'async with' received an object from __aenter__ that does not implement __await__: {}",
    "'async with' received an object from __aexit__ that does not implement __await__: {}",
)


def awaitable_iterator(x: object, context: int = 0) -> Iterator[object]:
    """The iterator of `await x`; `context` 1 and 2: `x` is the result of `__aenter__` and `__aexit__` in `async with`.
    Raises the TypeError and RuntimeError of `await`."""
    cls = type(x)
    if isinstance(x, types.CoroutineType):
        if x.cr_await is not None:
            raise RuntimeError("coroutine is being awaited already")
        return cast("Iterator[object]", x)
    if isinstance(x, types.GeneratorType) and x.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return x
    method = getattr(cls, "__await__", None)
    if method is None:
        raise TypeError(_NOT_AWAITABLE_TEXTS[context].format(cls.__name__))
    found = method(x)
    if isinstance(found, types.CoroutineType):
        raise TypeError("__await__() returned a coroutine")
    if not hasattr(type(found), "__next__"):
        raise TypeError(f"__await__() returned non-iterator of type {type(found).__name__!r}")
    return cast("Iterator[object]", found)


provide(
    enter_async_context=enter_async_context,
    async_iterator=async_iterator,
    awaitable_iterator=awaitable_iterator,
    next_awaitable=next_awaitable,
)
