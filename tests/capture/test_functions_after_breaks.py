"""Functions that each call creates, alive at a graph break or passed as arguments: a new function of the same code does not
recompile."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons, records

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def a_local_function(x, n):
    def double(y):
        return y * 2

    smelt.graph_break()
    return double(x)


@program
def a_lambda_on_the_stack(x, n):
    return (lambda y: y * 2)(x if x.sum() > -1e9 else -x)


@program
def a_closure(x, n):
    scale = n * 1.0

    def scaled(y):
        return y * scale

    smelt.graph_break()
    return scaled(x)


@program
def a_variable_that_changes_afterwards(x, n):
    count = 0

    def counted(y):
        nonlocal count
        count += n
        return y + count

    x = counted(x)
    smelt.graph_break()
    x = counted(x)
    count = 10
    return counted(x), count


@program
def two_functions_of_one_code(x, n):
    made = [lambda y, k=k: y * k for k in (2, n)]
    closed = [(lambda k: lambda y: y + k)(k) for k in (1, n)]
    smelt.graph_break()
    for f in (*made, *closed):
        x = f(x)
    return x, made[0] is made[1], closed[0] is closed[0]


@program
def one_of_two(x, n):
    def more(y):
        return y + 1

    def less(y):
        return y - 1

    chosen = more if n % 2 else less
    smelt.graph_break()
    return chosen(x), chosen is more


@program
def as_an_attribute(x, n):
    held = types.SimpleNamespace(f=lambda y: y * 2)
    smelt.graph_break()
    return held.f(x)


@program
def in_a_partial_call(x, n):
    f = functools.partial(lambda k, y: y * k, 3)
    smelt.graph_break()
    return f(x)


@program
def with_defaults(x, n):
    held = types.SimpleNamespace(n=n)
    f = lambda y, k=held, *, w=x: y * k.n + w  # noqa: E731
    smelt.graph_break()
    return f(x)


@program
def as_a_key(x, n):
    def f(y):
        return y + n

    known = {f: 3}
    smelt.graph_break()
    return f(x) * known[f]


@program
def with_an_attribute(x, n):
    def f(y):
        return y + f.step

    f.step = n
    smelt.graph_break()
    return f(x)


@program
def calls_itself(x, n):
    def power(y, k):
        return y if k == 0 else power(y * 2, k - 1)

    smelt.graph_break()
    return power(x, 3)


@program
def shared_variables(x, n):
    total = [0]
    kept = 0

    def put(y):
        nonlocal kept
        kept = y.shape[0] + n
        total[0] += 1

    def get():
        return kept, total[0]

    smelt.graph_break()
    put(x)
    return x + get()[0], get()


@program
def is_returned(x, n):
    def f(y):
        return y * n

    smelt.graph_break()
    return f(x), f


def value(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, tuple):
        return tuple(map(value, result))
    return value(result(torch.ones(1))) if callable(result) else result


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_eagers(name: str) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, backend="eager")
    for n in (2, 2, 3, 3, 2, 5, 4):
        assert value(compiled(torch.ones(3), n)) == value(fn(torch.ones(3), n))


@pytest.mark.parametrize(
    "name",
    [
        "a_local_function", "a_lambda_on_the_stack", "a_closure", "a_variable_that_changes_afterwards", "calls_itself",
        "shared_variables", "is_returned", "as_an_attribute", "in_a_partial_call", "with_defaults",
    ],
)  # fmt: skip
def test_new_function_of_the_same_code_does_not_recompile(name: str) -> None:
    logging.getLogger("smelt").setLevel(logging.ERROR)
    compiled = smelt.compile(PROGRAMS[name], backend="eager")
    for _ in range(12):
        compiled(torch.ones(3), 2)
    assert all(len(record.entries) <= 1 for _, record in records(compiled))
    assert "recompile-limit" not in {reason.kind.id for reason in reasons(compiled)}


GIVEN: dict[str, Callable[[int], Any]] = {
    "lambda": lambda n: lambda y: y * 2,
    "defaults": lambda n: (lambda held: lambda y, held=held: y * held.n)(types.SimpleNamespace(n=2)),
    "keywords": lambda n: (lambda k: lambda y, *, k=k: y * k)(torch.full((3,), float(n))),
    "partial": lambda n: functools.partial(lambda k, y: y * k, 2),
    "attribute": lambda n: types.SimpleNamespace(f=lambda y: y * 2).f,
}


@pytest.mark.parametrize("name", GIVEN)
def test_function_argument_of_the_same_code_does_not_recompile(name: str) -> None:
    compiled = smelt.compile(lambda x, f: f(x), backend="eager")
    for n in range(4):
        f = GIVEN[name](n)
        assert torch.equal(compiled(torch.ones(3), f), f(torch.ones(3)))
    (record,) = records(compiled)
    assert len(record[1].entries) == 1


def test_changed_default_recompiles_once() -> None:
    compiled = smelt.compile(lambda x, f: f(x), backend="eager")
    for n in range(6):
        assert torch.equal(compiled(torch.ones(3), lambda y, k=n: y * k), torch.ones(3) * n)
    (record,) = records(compiled)
    assert len(record[1].entries) == 2


def test_while_loop_has_a_resume_function_for_its_body_and_one_after_it() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = x + 1
        return x * 2

    compiled = smelt.compile(fn, backend="eager", options={"control_flow": "break"})
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert len(records(compiled)) == 3
