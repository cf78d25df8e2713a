"""`await` at a graph break."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.break_instructions import Step, Successor, row
from smelt.capture.graph_breaks.resume_points import Placeholder
from smelt.capture.reconstruction.frame_globals import provide


@row("GET_AWAITABLE")
def _get_awaitable(frame: Frame, arg: int) -> Step:
    *below, obj = frame.stack
    result = Placeholder("awaited")
    return Step(
        (result, obj), (Successor(frame.pc + 1, [*below, result]),), f"{{}} = iterator_of_await({{}}, {arg})"
    )


@row("BEFORE_ASYNC_WITH")
def _before_async_with(frame: Frame, arg: int) -> Step:
    *below, manager = frame.stack
    leave, entered = Placeholder("leave"), Placeholder("entered")
    after = Successor(frame.pc + 1, [*below, leave, entered])
    return Step((leave, entered, manager), (after,), "{}, {} = enter_async_context({})")


@row("GET_AITER")
def _get_aiter(frame: Frame, arg: int) -> Step:
    *below, obj = frame.stack
    result = Placeholder("iterator")
    return Step((result, obj), (Successor(frame.pc + 1, [*below, result]),), "{} = iterator_of_async_for({})")


@row("GET_ANEXT")
def _get_anext(frame: Frame, arg: int) -> Step:
    result = Placeholder("awaited")
    after = Successor(frame.pc + 1, [*frame.stack, result])
    return Step((result, frame.stack[-1]), (after,), "{} = next_of_async({})")


def enter_async_context(manager: AbstractAsyncContextManager[object]) -> tuple[object, object]:
    """The two values that BEFORE_ASYNC_WITH pushes: `__aexit__`, bound, and what `__aenter__` returned."""
    cls = type(manager)
    if not hasattr(cls, "__aenter__") or not hasattr(cls, "__aexit__"):
        missed = " (missed __aexit__ method)" if hasattr(cls, "__aenter__") else ""
        raise TypeError(
            f"{cls.__name__!r} object does not support the asynchronous context manager protocol{missed}"
        )
    leave = cls.__aexit__.__get__(manager, cls)
    return leave, cls.__aenter__.__get__(manager, cls)()


def next_of_async(iterator: AsyncIterator[object]) -> object:
    """What `async for` awaits next. Raises what it does for what cannot be awaited."""
    awaitable = type(iterator).__anext__(iterator)
    if isinstance(iterator, types.AsyncGeneratorType):
        return awaitable
    try:
        return iterator_of_await(awaitable)
    except TypeError as error:
        name = type(awaitable).__name__
        raise TypeError(f"'async for' received an invalid object from __anext__: {name}") from error


def iterator_of_async_for(x: AsyncIterable[object]) -> object:
    """What `async for` iterates over `x` with."""
    if not hasattr(type(x), "__aiter__"):
        raise TypeError(f"'async for' requires an object with __aiter__ method, got {type(x).__name__}")
    made = type(x).__aiter__(x)
    if not hasattr(type(made), "__anext__"):
        name = type(made).__name__
        raise TypeError(
            f"'async for' received an object from __aiter__ that does not implement __anext__: {name}"
        )
    return made


NO_AWAITABLE = "'{}' object can't be awaited" if PY314 else "object {} can't be used in 'await' expression"
_CANNOT_BE_AWAITED = (
    NO_AWAITABLE,
    "'async with' received an object from __aenter__ that does not implement __await__: {}",
    "'async with' received an object from __aexit__ that does not implement __await__: {}",
)


def iterator_of_await(x: object, place: int = 0) -> Iterator[object]:
    """What `await x` iterates over; in `place` 1 and 2 `x` is what `async with` was given. Raises TypeError and RuntimeError
    as that does."""
    cls = type(x)
    if isinstance(x, types.CoroutineType):
        if x.cr_await is not None:
            raise RuntimeError("coroutine is being awaited already")
        return cast("Iterator[object]", x)
    if isinstance(x, types.GeneratorType) and x.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return x
    method = getattr(cls, "__await__", None)
    if method is None:
        raise TypeError(_CANNOT_BE_AWAITED[place].format(cls.__name__))
    found = method(x)
    if isinstance(found, types.CoroutineType):
        raise TypeError("__await__() returned a coroutine")
    if not hasattr(type(found), "__next__"):
        raise TypeError(f"__await__() returned non-iterator of type {type(found).__name__!r}")
    return cast("Iterator[object]", found)


provide(
    enter_async_context=enter_async_context,
    iterator_of_async_for=iterator_of_async_for,
    iterator_of_await=iterator_of_await,
    next_of_async=next_of_async,
)
