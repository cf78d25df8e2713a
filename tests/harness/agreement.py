"""Runs a program eager and compiled on equal inputs and compares everything a caller can observe.

`check(fn, make)` calls `make(seed)` for fresh arguments, twice eager and twice compiled (two seeds; the contents of the
arguments are changed in place before a third call), and compares results, mutation of the arguments, aliasing between
results and arguments, exceptions, and the state of the random generator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import smelt
from smelt.reasons import BACKEND_FAILED, INTERNAL, Reason
from smelt.report.inspect import entries, reasons

TOLERANCES = {  # relative and absolute; what is of another dtype must be equal
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (1e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
}


@dataclass
class Observed:
    """What one call did."""

    result: Any = None
    error: BaseException | None = None
    arguments: Any = None
    random: Any = None
    aliases: list[tuple[int, int]] = field(default_factory=list)


def tensors(value: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v, seen)]
    if isinstance(value, (list, tuple, set)):
        return [t for v in value for t in tensors(v, seen)]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return [t for v in vars(value).values() for t in tensors(v, seen)]
    return []


def _aliases(result: Any, arguments: Any) -> list[tuple[int, int]]:
    """Pairs of tensors (results first, then arguments) that share storage; identical objects appear as (i, i')."""
    every = tensors(result) + tensors(arguments)
    return [
        (i, j)
        for i in range(len(every))
        for j in range(i + 1, len(every))
        if every[i].numel() and every[j].numel()
        and every[i].untyped_storage().data_ptr() == every[j].untyped_storage().data_ptr()
    ]  # fmt: skip


def observe(fn: Callable[..., Any], arguments: tuple[Any, ...], seed: int) -> Observed:
    torch.manual_seed(seed)
    seen = Observed(arguments=arguments)
    try:
        seen.result = fn(*arguments)
    except Exception as error:
        seen.error = error
    seen.random = torch.get_rng_state()
    seen.aliases = _aliases(seen.result, arguments)
    return seen


def same(got: Any, want: Any, path: str = "result") -> None:
    """Raises AssertionError at the first difference, naming where it is."""
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor), f"{path}: {type(got)} is not a tensor"
        assert type(got) is type(want), f"{path}: type {type(got)}, eager {type(want)}"
        for what in ("shape", "dtype", "device", "requires_grad"):
            assert getattr(got, what) == getattr(want, what), (
                f"{path}: {what} {getattr(got, what)}, eager {getattr(want, what)}"
            )
        assert got.stride() == want.stride(), f"{path}: strides {got.stride()}, eager {want.stride()}"
        if want.layout is torch.strided and not want.is_meta and torch.equal(got, want):
            return  # `assert_close` takes twenty times as long
        rtol, atol = TOLERANCES.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{path}: {m}"
        )
    elif isinstance(want, dict):
        assert type(got) is type(want) and list(got) == list(want), f"{path}: {got!r}, eager {want!r}"
        for key in want:
            same(got[key], want[key], f"{path}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want), f"{path}: {got!r}, eager {want!r}"
        for i, (g, w) in enumerate(zip(got, want)):
            same(g, w, f"{path}[{i}]")
    elif hasattr(want, "__dict__") and (isinstance(want, torch.nn.Module) or not callable(want)):
        assert type(got) is type(want), f"{path}: {type(got)}, eager {type(want)}"
        same(vars(got), vars(want), f"{path}.__dict__")
    else:
        assert got == want or (got != got and want != want), f"{path}: {got!r}, eager {want!r}"


def compare(got: Observed, want: Observed) -> None:
    if want.error is not None or got.error is not None:
        assert type(got.error) is type(want.error), f"raised {got.error!r}, eager {want.error!r}"
        assert str(got.error) == str(want.error)
    else:
        same(got.result, want.result)
    same(got.arguments, want.arguments, "arguments")
    assert torch.equal(got.random, want.random), "the random generator is in another state"
    assert got.aliases == want.aliases, f"aliases {got.aliases}, eager {want.aliases}"


def check(
    fn: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    *,
    backend: str = "smelt",
    captured: bool = True,
    entries_expected: int | None = 1,
) -> Any:
    """`make()` builds the arguments (seeded). Returns the compiled callable for further checks."""
    compiled = smelt.compile(fn, backend=backend)
    with torch.no_grad():
        for seed in (1, 2):
            torch.manual_seed(seed)
            arguments = make()
            again = copy.deepcopy(arguments)
            want, got = observe(fn, arguments, seed), observe(compiled, again, seed)
            compare(got, want)
            for tensor in tensors(arguments) + tensors(again):
                if tensor.is_floating_point():
                    tensor.mul_(0.5).add_(0.25)
            compare(observe(compiled, again, seed + 10), observe(fn, arguments, seed + 10))
    if captured:
        assert not reasons(compiled), f"ran eagerly: {reasons(compiled)[0]}"
        if entries_expected is not None:
            assert len(entries(compiled)) == entries_expected
    return compiled


def failure_of(compiled: Any) -> Reason | None:
    """The first reason of `compiled` that is a failure of smelt itself or of its backend."""
    return next((r for r in reasons(compiled) if r.kind in (INTERNAL, BACKEND_FAILED)), None)


def check_no_failure(compiled: Any) -> None:
    """A failure of smelt itself never passes as a call that ran eagerly."""
    assert failure_of(compiled) is None, failure_of(compiled)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (3,)))


def calls_agree(make: Callable[..., Any], **options: Any) -> None:
    """`make(compile)` is a generator of what is seen between calls; `compile` is eager's (none) and then smelt's."""

    def compile(fn: Callable[..., Any]) -> Any:
        compiled.append(smelt.compile(fn, **options))
        return compiled[-1]

    compiled: list[Any] = []
    with torch.no_grad():
        torch.manual_seed(0)
        want = [copy.deepcopy(seen) for seen in make(lambda fn: fn)]
        torch.manual_seed(0)
        for number, (got, wanted) in enumerate(zip(make(compile), want)):
            same(got, wanted, f"yield {number}")
    for c in compiled:
        check_no_failure(c)
