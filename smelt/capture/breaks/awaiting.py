"""`await` at a graph break."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.frames import Frame
from smelt.capture.breaks.instructions import Step, Successor, row
from smelt.capture.breaks.points import Placeholder
from smelt.capture.rebuilding.names import NAMES


@row("GET_AWAITABLE")
def _get_awaitable(frame: Frame, arg: int) -> Step:
    *below, obj = frame.stack
    result = Placeholder("awaited")
    return Step((result, obj), (Successor(frame.pc + 1, [*below, result]),), "{} = iterator_of_await({})")


def iterator_of_await(x: object) -> Iterator[object]:
    """What `await x` iterates over. Raises TypeError and RuntimeError as that does."""
    cls = type(x)
    if isinstance(x, types.CoroutineType):
        if x.cr_await is not None:
            raise RuntimeError("coroutine is being awaited already")
        return cast("Iterator[object]", x)
    if isinstance(x, types.GeneratorType) and x.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return x
    method = getattr(cls, "__await__", None)
    if method is None:
        raise TypeError(f"object {cls.__name__} can't be used in 'await' expression")
    found = method(x)
    if isinstance(found, types.CoroutineType):
        raise TypeError("__await__() returned a coroutine")
    if not hasattr(type(found), "__next__"):
        raise TypeError(f"__await__() returned non-iterator of type {type(found).__name__!r}")
    return cast("Iterator[object]", found)


NAMES.update(iterator_of_await=iterator_of_await)
