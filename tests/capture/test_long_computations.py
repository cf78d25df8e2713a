"""Loops and calls with much Python work and no tensors run eagerly: the graph breaks around them."""

from __future__ import annotations

import bisect
import contextlib
import operator
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.interpreter import interpreter
from smelt.report.inspect import entries, graph_count, reasons

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_LONG", 300)


@program
def between_tensors(x, n):
    y = x * 2
    total = 0
    for i in range(n):
        total += i
    return y + total


@program
def at_the_end_of_a_while(x, n):
    total = i = 0
    while i < n:
        total += i
        i += 1
    return x * total, i


@program
def with_break_and_else(x, n):
    for i in range(n):
        if i * i > 30_000:
            break
    else:
        return x - 1
    return x + i


@program
def returns_from_inside(x, n):
    y = x + 1
    for i in range(n):
        if i > 500:
            return y, i
    return y * 2


@program
def several_ways_out(x, n):
    for i in range(n):
        if i == 700:
            y = x + 1
            break
        if i == 1200:
            return x
        for j in range(2):
            if i * j == 900:
                return x * j
    else:
        y = x - 1
    return y * i


@program
def nested_loops(x, n):
    total = 0
    for i in range(n // 10):
        for j in range(20):
            if (i ^ j) & 1:
                continue
            total += i * j
    return x + total


@program
def an_inner_loop_beside_tensors(x, n):
    for scale in (1, 2, 3):
        total = 0
        for i in range(n):
            total += i % scale
        x = x + total
    return x


@program
def catches_inside(x, n):
    failed = 0
    for i in range(n):
        try:
            failed += 1 // (i % 3)
        except ZeroDivisionError:
            failed += 100
            continue
        finally:
            failed += 1
    return x + failed


@program
def raises_from_inside(x, n):
    y = x + 1
    for i in range(n):
        if i == 1000:
            raise ValueError(f"at {i}")
    return y


@program
def is_caught_outside(x, n):
    i = -1
    try:
        for i in range(n):
            if i == 1000:
                raise ValueError(f"at {i}")
    except ValueError as error:
        return x + i, str(error)
    return x * i


@program
def under_a_setting(x, n):
    with torch.no_grad():
        total = 0
        for i in range(n):
            total += i
        y = x * total
    return y + 1


@program
def changes_a_container(x, n):
    found, seen = [], {}
    for i in range(n):
        found.append(i)
        seen[i % 7] = i
    return x + len(found), found[-1], seen


@program
def changes_a_captured_variable(x, n):
    total = 0

    def add(i):
        nonlocal total
        total += i

    for i in range(n):
        add(i)
    return x + total


@program
def calls_itself(x, n):
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    return x * 2 + fib(12)


@program
def in_a_function_below(x, n):
    def count(y):
        total = 0
        for i in range(n):
            total += i
        return y + total

    return count(x * 2) * 3


@program
def a_comprehension(x, n):
    return x + len([i for i in range(n) if i % 2]), sum(i * 2 for i in range(n))


@program
def sorts_with_a_key(x, n):
    return x + sorted(range(n), key=lambda i: -i)[0]


@program
def advances_an_iterator(x, n):
    numbers = iter(range(n))
    for i in numbers:
        if i == n - 5:
            break
    return x + i, list(numbers)


@program
def a_variable_may_have_no_value(x, n):
    for i in range(n):
        if i == 3 * n:
            found = i
    try:
        return x + found
    except UnboundLocalError:
        return x - 1


@program
def deletes_a_variable(x, n):
    kept = 1
    for i in range(n):
        kept = i
        del kept
    return x + i


@program
def until_a_condition_of_an_object(x, n):
    left = list(range(n))
    while left:
        left.pop()
    return x + len(left)


@program
def forever(x, n):
    i = 0
    while True:
        i += 1
        if i > n:
            break
    return x + i


def outcome(fn: Callable[..., Any], n: int) -> object:
    try:
        return fn(torch.ones(3), n)
    except Exception as error:
        return type(error), str(error)


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_eagerly(name: str) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, backend="eager")
    for n in (2000, 2000, 1500, 0, 2000, 10):
        assert same(outcome(compiled, n), outcome(fn, n))
    kinds = {reason.kind.id for reason in reasons(compiled)}
    assert "long-computation" in kinds
    assert kinds <= {"long-computation", "user-exception", "unsupported-object"}, reasons(compiled)


def test_code_around_a_loop_is_compiled() -> None:
    compiled = smelt.compile(between_tensors, backend="eager")
    compiled(torch.ones(3), 2000)
    assert graph_count(compiled) == 2
    assert "run_loop(" in entries(compiled)[0].source


def test_loop_with_tensors_is_captured() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for i in range(100):
            x = x + sum(range(i % 5))
        return x

    compiled = smelt.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2)))


@pytest.mark.parametrize("looked", [bisect.bisect, list.index, list.count, operator.contains])
def test_scans_of_large_containers_count_as_work(looked: Callable[[list[int], int], int]) -> None:
    def fn(x: torch.Tensor, values: list[int]) -> torch.Tensor:
        total = 0
        for i in range(10):
            total += looked(values, i)
        return x + total

    for count, expected in ((20, set()), (5000, {"long-computation"})):
        values = list(range(count))
        compiled = smelt.compile(fn, backend="eager")
        assert torch.equal(compiled(torch.ones(1), values), fn(torch.ones(1), values))
        assert {reason.kind.id for reason in reasons(compiled)} == expected


@contextlib.contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """A Ctrl-C, so many seconds from now."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    # A process that a shell has put in the background ignores it.
    on_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, on_interrupt)


def test_interrupt_aborts_capture_without_effects() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor, count: int) -> torch.Tensor:
        seen.append(1)
        try:
            for _ in range(count):
                x = x + 1
        except BaseException:
            return x - 1
        finally:
            seen.append(2)
        return x

    compiled = smelt.compile(fn, backend="eager")
    with interrupted(0.1), pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(1), 10**9)
    assert seen == []
    assert torch.equal(compiled(torch.ones(1), 2), torch.ones(1) + 2)
    assert seen == [1, 2]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("mine"), GeneratorExit()])
def test_interrupts_of_the_program_keep_its_effects(error: BaseException) -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        try:
            raise error
        except KeyboardInterrupt:
            return x + 1

    def call(target: Callable[..., Any]) -> object:
        try:
            return target(torch.ones(1))
        except BaseException as raised:
            return raised

    compiled = smelt.compile(fn, backend="eager")
    for count in (1, 2):
        assert same(call(compiled), call(fn))
        assert len(seen) == 2 * count
