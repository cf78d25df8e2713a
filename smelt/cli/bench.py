"""Eager against smelt for one function: the first call, and medians of later calls, taken in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smelt import api, events
from smelt.runtime.compiled_callables import eager_callable

SAMPLE = 1e-3  # least seconds of a sample of several calls, above the resolution of the clock
ROUNDS = 5  # the least number, however long they take


@dataclass(frozen=True)
class Measured:
    """Seconds: `first` of the call that compiles, `eager` and `smelt` of later calls, medians of `samples`, during which
    there were `compilations`. `differs`: how the results differ, `not_compared`: why they were not compared, or empty."""

    first: float
    eager: float
    smelt: float
    samples: int
    compilations: int
    differs: str
    not_compared: str


def measure(fn: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, no_grad: bool) -> Measured:
    """Call `fn` and its compiled form with `arguments`, for about `seconds`; without gradients if asked. Raises what `fn`
    raises."""
    fn = eager_callable(fn)
    compiled = api.compile(fn)
    with torch.set_grad_enabled(not no_grad and torch.is_grad_enabled()):
        torch.manual_seed(0)
        expected = fn(*arguments)
        first, found = _first(compiled, arguments)
        differs, not_compared = _difference(found, expected)
        if differs:
            torch.manual_seed(0)
            if any(_difference(fn(*arguments), expected)):
                differs, not_compared = "", "eager's change from call to call"
        compilations: list[str] = []
        eagers, smelts = _in_turns(
            [lambda: fn(*arguments), lambda: compiled(*arguments)], seconds, compilations
        )
    medians = statistics.median(eagers), statistics.median(smelts)
    return Measured(first, *medians, len(eagers), len(compilations), differs, not_compared)


def _first(compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, Any]:
    torch.manual_seed(0)
    start = time.perf_counter()
    found = compiled(*arguments)
    _wait()
    return time.perf_counter() - start, found


def _in_turns(calls: list[Callable[[], Any]], seconds: float, compilations: list[str]) -> list[list[float]]:
    """Seconds per call of each, with a sample of each in every round. Adds the names of compilations during the samples."""
    for call in calls:
        _sample(call, 2)  # a second call may still do work that later ones do not
    sizes = [max(1, round(SAMPLE / max(_sample(call, 1), 1e-9))) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    with events.timed(lambda name, _: compilations.append(name)):
        while len(times[0]) < ROUNDS or time.perf_counter() < end:
            for call, size, found in zip(calls, sizes, times):
                found.append(_sample(call, size))
    return times


def _sample(call: Callable[[], Any], size: int) -> float:
    start = time.perf_counter()
    for _ in range(size):
        call()
    _wait()
    return (time.perf_counter() - start) / size


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _difference(found: Any, expected: Any) -> tuple[str, str]:
    """How results differ, and why they cannot be compared; two empty texts if they are equal."""
    if _are_close(found, expected):
        return "", ""
    try:
        torch.testing.assert_close(found, expected)
    except AssertionError as error:
        return str(error), ""
    except TypeError:
        return "", "they are of a class that torch does not compare"
    return "", ""


def _are_close(found: Any, expected: Any) -> bool:
    """Whether `torch.testing.assert_close`, whose import takes seconds, would certainly accept the results."""
    if type(found) is not type(expected):
        return False
    if type(found) is torch.Tensor:
        same = (
            found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.device == expected.device
        )
        plain = found.layout is expected.layout is torch.strided and not found.is_quantized
        return same and plain and torch.allclose(found, expected, 1e-7, 1e-7, equal_nan=True)
    if type(found) in (list, tuple):
        return len(found) == len(expected) and all(map(_are_close, found, expected))
    if type(found) is dict:
        return found.keys() == expected.keys() and all(_are_close(found[k], expected[k]) for k in found)
    return type(found) in (int, str, bool, type(None)) and bool(found == expected)


def report(name: str, measured: Measured) -> str:
    """The text of a measurement."""
    eager, smelt = measured.eager, measured.smelt
    ratio = f"{eager / smelt:.2f} times as fast" if eager >= smelt else f"{smelt / eager:.2f} times as slow"
    results = f"results differ: {measured.differs}" if measured.differs else "results are as in eager"
    if measured.not_compared:
        results = f"results were not compared: {measured.not_compared}"
    n = measured.compilations
    again = f", with {n} compilation{'s'[: n != 1]}: `smelt explain` says why" if n else ""
    return "\n".join(
        [
            f"{name}: first call {_text(measured.first)}",
            f"  eager  {_text(eager)} a call",
            f"  smelt  {_text(smelt)} a call, {ratio}",
            f"  medians of {measured.samples} samples taken in turns, {torch.get_num_threads()} threads{again}",
            f"  {results}",
        ]
    )


def _text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"
