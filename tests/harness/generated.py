"""Runs a generated program eager and compiled, and says where they differ."""

from __future__ import annotations

import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import smelt
from tests.harness.agreement import failure_of
from tests.harness.catalogue import observe_world
from tests.harness.generate import CALLS, Options
from tests.harness.snapshot import difference


def _tensor(rows: int, low: int) -> torch.Tensor:
    return (torch.arange(rows * 3.0) * 7 + low).remainder(11).sub(4).reshape(rows, 3)


def _arguments(rows: int, n: int, grad: bool) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """The arguments of one call, and what their gradients flow to. With `grad`, what is in containers has a history, as
    programs write it in place."""
    leaves = [_tensor(rows, n + i).requires_grad_(grad) for i in (0, 0, 1, 5, 6)]
    x, *held = leaves
    a, b, c, d = (t * 1 for t in held) if grad else held
    return (x, n, [a, b], {"a": c, "b": d}), leaves


_TWICE = ((2, 1), (4, 2))  # the rows of the tensors, and the number, of each call
_CHANGING = ((2, 1), (4, 2), (3, 5), (7, 1), (2, 2), (5, 3))


def world(source: str, grad: bool, sizes: Sequence[tuple[int, int]] = _TWICE) -> Any:
    """A factory for the catalogue's harness: the function, its calls with inputs of these `sizes` in turn, what it changes
    outside."""
    name = f"<program {abs(hash(source)):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "generated"}
    exec(compile(source, name, "exec"), namespace)

    calls = [_arguments(*sizes[i % len(sizes)], grad) for i in range(CALLS)]
    leaves = [found for _, found in calls]

    def state() -> Any:
        more = namespace["observed"]() if "observed" in namespace else ()
        return namespace["LOG"], namespace["COUNT"], namespace["STATE"], leaves, more

    arguments = [arguments for arguments, _ in calls]
    if "change" in namespace:
        return namespace["program"], _Changing(arguments, namespace["change"]), state
    return namespace["program"], arguments, state


class _Changing(list[tuple[Any, ...]]):
    """The arguments of calls; before each one is given out, the program's world changes."""

    def __init__(
        self, arguments: list[tuple[Any, ...]], change: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> None:
        super().__init__(arguments)
        self._change = change

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for number, given in enumerate(super().__iter__()):
            yield self._change((number, *given))


def difference_of(source: str, options: Options, backend: str = "eager") -> str | None:
    """The first difference between eager and compiled; None if there is none."""
    compiled: list[Any] = []

    def compile(fn: Any) -> Any:
        compiled.append(smelt.compile(fn, backend=backend))
        return compiled[0]

    sizes = _CHANGING if options.branches else _TWICE
    make = lambda: world(source, options.grad, sizes)  # noqa: E731
    with warnings.catch_warnings(), torch.set_grad_enabled(options.grad):
        warnings.simplefilter("ignore")
        want = list(observe_world(make, lambda fn: fn))
        for number, (got, wanted) in enumerate(zip(observe_world(make, compile), want)):
            if re.search(r"has been modified (by an )?in-?place", str(wanted.facts[-1].value)):
                return None  # eager's backward stopped half-way; a compiled one may have kept less, and go on
            problem = difference(got.facts, wanted.facts, 1e-5, 1e-5)
            if problem is not None:
                backward, eager = got.facts[-1].value, wanted.facts[-1].value
                raised = f" (backward: {backward!r}, eager's: {eager!r})" if backward != eager else ""
                return f"call {number}: {problem}{raised}"
    failure = failure_of(compiled[0])
    return None if failure is None else str(failure)


def outcome(source: str, options: Options, backend: str = "eager") -> str | None:
    """`difference_of`, with an exception of the harness or of smelt itself as a difference too."""
    try:
        return difference_of(source, options, backend)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def kind_of(problem: str) -> str:
    """What two reports of the same difference have in common: their words without names and numbers."""
    return re.sub(r"[\d_]+|'[^']*'|<[^>]*>", "", problem)[:70]
