"""Functions that a call makes and that are alive at a graph break: the next call makes others, and compiles nothing."""

from __future__ import annotations

import logging
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
def test_results_are_eagers(name: str) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, backend="eager")
    for n in (2, 2, 3, 3, 2, 5, 4):
        assert value(compiled(torch.ones(3), n)) == value(fn(torch.ones(3), n))


@pytest.mark.parametrize(
    "name",
    [
        "a_local_function", "a_lambda_on_the_stack", "a_closure", "a_variable_that_changes_afterwards", "calls_itself",
        "shared_variables", "is_returned",
    ],
)  # fmt: skip
def test_another_function_of_the_same_code_does_not_compile_again(name: str) -> None:
    logging.getLogger("smelt").setLevel(logging.ERROR)
    compiled = smelt.compile(PROGRAMS[name], backend="eager")
    for _ in range(12):
        compiled(torch.ones(3), 2)
    assert all(len(record.entries) <= 1 for _, record in records(compiled))
    assert "recompile-limit" not in {reason.kind.id for reason in reasons(compiled)}


def test_a_while_loop_has_one_resume_function_for_its_body_and_one_behind_it() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = x + 1
        return x * 2

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert len(records(compiled)) == 3
