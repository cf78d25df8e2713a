"""Coroutine functions and generator functions as the compiled function, and their awaitables."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import graph_count

Program = Callable[[torch.Tensor], Coroutine[Any, Any, Any]]
PROGRAMS: list[tuple[Program, int]] = []
log: list[object] = []


def program(graphs: int) -> Callable[[Program], Program]:
    def add(fn: Program) -> Program:
        PROGRAMS.append((fn, graphs))
        return fn

    return add


async def doubled(x: torch.Tensor) -> torch.Tensor:
    y = x.cos() + 1
    return y * 2


async def raising(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0)
    raise ValueError("raised")


@program(graphs=1)
async def awaits_captured_ones(x: torch.Tensor) -> torch.Tensor:
    y = await doubled(x)
    return await doubled(y) + 1


@program(graphs=2)
async def suspends_between(x: torch.Tensor) -> torch.Tensor:
    y = await doubled(x)
    await asyncio.sleep(0)
    return await doubled(y) + 1


@program(graphs=2)
async def reads_a_value(x: torch.Tensor) -> torch.Tensor:
    n = (x * 2).sum().tolist()
    return x * n


@program(graphs=1)
async def handles_and_raises(x: torch.Tensor) -> torch.Tensor:
    y = await doubled(x)
    await asyncio.sleep(0)
    try:
        await raising(y)
    except ValueError as error:
        log.append(repr(error))
    raise KeyError("end")


@program(graphs=3)
async def gathers(x: torch.Tensor) -> torch.Tensor:
    a, b = await asyncio.gather(doubled(x), doubled(x + 1))
    return a + b


async def cancelled(x: torch.Tensor) -> None:
    y = x + 1
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        y = y * 2
        raise
    finally:
        log.append(y)


@program(graphs=0)
async def times_out(x: torch.Tensor) -> torch.Tensor | None:
    try:
        await asyncio.wait_for(cancelled(x), 0.01)
    except TimeoutError:
        return x * 3
    return None


@program(graphs=1)
async def is_cancelled_itself(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        log.append("cancelled")
    return y + 1


async def counted() -> AsyncIterator[int]:
    for i in range(3):
        yield i


class Resource:
    """An async context manager that suspends at entry and exit, unless `at_once`, and suppresses exceptions of `ends`."""

    def __init__(self, name: str, ends: tuple[type, ...] = (), at_once: bool = False) -> None:
        self.name, self.ends, self.at_once = name, ends, at_once

    async def __aenter__(self) -> int:
        log.append(("entered", self.name))
        if not self.at_once:
            await asyncio.sleep(0)
        return 2

    async def __aexit__(self, kind: type | None, *rest: object) -> bool:
        log.append(("left", self.name, kind))
        if not self.at_once:
            await asyncio.sleep(0)
        return kind in self.ends


class Numbers:
    """1, 2, ... up to `last`, then `error`."""

    def __init__(self, last: int, at_once: bool = False, error: type[Exception] = StopAsyncIteration) -> None:
        self.last, self.at_once, self.error = last, at_once, error

    def __aiter__(self) -> Numbers:
        self.number = 0
        return self

    async def __anext__(self) -> int:
        self.number += 1
        log.append(self.number)
        if self.number > self.last:
            raise self.error
        if not self.at_once:
            await asyncio.sleep(0)
        return self.number


@program(graphs=1)
async def with_and_for_that_never_wait(x: torch.Tensor) -> torch.Tensor:
    async with Resource("a", at_once=True) as factor, Resource("b", at_once=True):
        y = x * factor
        async for i in Numbers(3, at_once=True):
            async for k in Numbers(2, at_once=True):
                y = y * i + k
        else:
            y = y.sin()
    return y + 1


@program(graphs=4)
async def with_that_waits(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    async with Resource("a") as factor:
        y = y * factor
        await asyncio.sleep(0)
        y = y + 1
    return y.cos()


@program(graphs=3)
async def for_that_waits(x: torch.Tensor) -> torch.Tensor:
    async for i in Numbers(5):
        if i == 3:
            break
        x = x * i
    else:
        x = x + 100
    return x.cos()


@program(graphs=2)
async def with_that_ends_an_exception(x: torch.Tensor) -> torch.Tensor:
    async with Resource("a"), Resource("b", (ValueError,)):
        y = x * 2
        raise ValueError("ended")
    return y + 1


@program(graphs=1)
async def with_that_lets_an_exception_through(x: torch.Tensor) -> torch.Tensor:
    try:
        async with Resource("a", (KeyError,)):
            raise ValueError("through")
    except ValueError as error:
        log.append(str(error))
    return x * 2


@program(graphs=3)
async def with_around_a_break(x: torch.Tensor) -> torch.Tensor:
    async with Resource("a", at_once=True):
        y = x * x.sum().tolist()
        async for i in Numbers(2, at_once=True):
            y = y * i
    return y * y.sum().tolist()


@program(graphs=1)
async def for_whose_iterator_raises(x: torch.Tensor) -> torch.Tensor:
    async for i in Numbers(2, error=ValueError):
        x = x + i
    return x


@pytest.mark.parametrize("kind", ["manager", "exit", "iterable", "iterator", "item"])
def test_errors_of_asynchronous_statements(kind: str) -> None:
    class Half:
        async def __aenter__(self) -> None: ...

        def __aiter__(self) -> Any:
            return self if kind == "item" else 3

        if kind == "item":

            def __anext__(self) -> int:
                return 3

    async def managed(x: torch.Tensor) -> torch.Tensor:
        async with 3 if kind == "manager" else Half():  # type: ignore[attr-defined]
            return x + 1

    async def iterated(x: torch.Tensor) -> torch.Tensor:
        async for _ in 3 if kind == "iterable" else Half():  # type: ignore[attr-defined]
            x = x + 1
        return x

    fn = managed if kind in ("manager", "exit") else iterated
    with pytest.raises(TypeError) as want:
        asyncio.run(fn(torch.ones(2)))
    with pytest.raises(TypeError) as found:
        asyncio.run(smelt.compile(fn)(torch.ones(2)))
    assert str(found.value) == str(want.value)


# The comprehension is part of the function from 3.12 on, which is why it is compiled.
@program(graphs=5 if sys.version_info >= (3, 12) else 3)
async def asynchronous_statements(x: torch.Tensor) -> torch.Tensor:
    async with asyncio.Lock():
        y = x * 2
    async for i in counted():
        y = y + i
    return y + sum([i async for i in counted()])


class Awaited:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __await__(self) -> Generator[Any, None, torch.Tensor]:
        y = self.x * 2
        yield from asyncio.sleep(0).__await__()
        return y + 1


@program(graphs=3)
async def awaits_an_object(x: torch.Tensor) -> torch.Tensor:
    return await Awaited(x) + 1


@types.coroutine
def old_style(x: torch.Tensor) -> Generator[Any, Any, torch.Tensor]:
    yield from asyncio.sleep(0).__await__()
    return x + 1


@program(graphs=3)
async def awaits_a_generator(x: torch.Tensor) -> torch.Tensor:
    return await old_style(x * 2) * 2


@program(graphs=0)
async def awaits_no_awaitable(x: torch.Tensor) -> torch.Tensor:
    try:
        await x  # type: ignore[misc]
    except TypeError as error:
        log.append(str(error))
    return await 3  # type: ignore[misc]


@program(graphs=1)
async def awaits_twice(x: torch.Tensor) -> torch.Tensor:
    made = doubled(x)
    y = await made
    try:
        await made
    except RuntimeError as error:
        log.append(str(error))
    return y


@program(graphs=2)
async def variables_in_cells(x: torch.Tensor) -> torch.Tensor:
    z = x * 2

    def read() -> torch.Tensor:
        return z + 1

    await asyncio.sleep(0)
    z = z + 1
    return read()


def observed(fn: Program) -> object:
    log.clear()
    x = torch.arange(4.0) / 3
    try:
        result = asyncio.run(fn(x))
        shown = result.tolist() if isinstance(result, torch.Tensor) else result
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [(f.name, f.lineno) for f in frames if f.filename == __file__]
        shown = (repr(error), repr(error.__context__), where)
    return shown, [value.tolist() if isinstance(value, torch.Tensor) else value for value in log]


@pytest.mark.parametrize(("fn", "graphs"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_program(fn: Program, graphs: int) -> None:
    want = observed(fn)
    compiled = smelt.compile(fn, backend="eager")
    for _ in range(3):
        assert observed(compiled) == want
    assert graph_count(compiled) == graphs


def test_arguments_are_bound_at_the_call():
    async def fn(
        x: torch.Tensor, /, n: int = 2, *rest: int, k: int = 3, **more: int
    ) -> tuple[torch.Tensor, int, tuple[int, ...], int, dict[str, int]]:
        return x * n + k, n, rest, k, more

    compiled: Any = smelt.compile(fn, backend="eager")
    x = torch.ones(2)
    for args, kwargs in (((x,), {}), ((x, 1, 2, 3), {"k": 4, "a": 5}), ((x,), {"n": 7})):
        want, got = asyncio.run(fn(*args, **kwargs)), asyncio.run(compiled(*args, **kwargs))
        assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        compiled()
    assert graph_count(compiled) > 0


def test_coroutine_attributes():
    made = smelt.compile(doubled, backend="eager")(torch.ones(2))
    assert inspect.iscoroutine(made) and isinstance(made, Coroutine)
    assert (made.__name__, made.__qualname__) == ("doubled", "doubled")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del made
        gc.collect()
    assert [str(w.message) for w in caught] == ["coroutine 'doubled' was never awaited"]


def test_coroutine_that_is_never_awaited_warns():
    def fn(x: torch.Tensor) -> torch.Tensor:
        doubled(x)
        return x + 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = smelt.compile(fn, backend="eager")
        for _ in range(2):
            assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        gc.collect()
    assert [str(w.message) for w in caught] == ["coroutine 'doubled' was never awaited"] * 2


def test_method_and_manual_send():
    class Model:
        def __init__(self) -> None:
            self.scale = torch.tensor(3.0)

        async def run(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.scale
            await asyncio.sleep(0)
            return y + 1

    model = Model()
    compiled = smelt.compile(model.run, backend="eager")
    made = compiled(torch.ones(2))
    assert made.send(None) is None
    with pytest.raises(StopIteration) as caught:
        made.send(None)
    assert caught.value.value.tolist() == [4.0, 4.0]
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        made.send(None)


# --------------------------------------------------------------------------------------------------- generators


def rows(x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
    for i in range(n):
        y = x * i
        if y.sum() > 100:
            return
        yield y


def test_generator_function():
    compiled = smelt.compile(rows, backend="eager")
    x = torch.ones(3)
    for n in (0, 2, 3):
        assert [t.tolist() for t in compiled(x, n)] == [t.tolist() for t in rows(x, n)]
    assert isinstance(compiled(x, 1), types.GeneratorType)
    assert graph_count(compiled) == 3


def test_without_tensors_the_function_itself_runs():
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    compiled = smelt.compile(numbers, backend="eager")
    made = compiled(3)
    assert made.gi_code is numbers.__code__
    assert list(made) == [0, 1, 2]


def test_the_iterator_of_a_coroutine_runs_it_once():
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        made = doubled(x)
        iterator = made.__await__()
        try:
            next(iterator)
        except StopIteration as stop:
            y = stop.value
        try:
            next(iterator)
        except RuntimeError as error:
            return y + 1, str(error)
        return y, ""

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(3):
        want, got = fn(torch.ones(2)), compiled(torch.ones(2))
        assert torch.equal(want[0], got[0]) and want[1] == got[1]
