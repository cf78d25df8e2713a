"""Graph breaks: the number of graphs and resume functions, and their source."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import Unsupported
from smelt.report import inspect

BREAKS = {"control_flow": "break"}


def toy(a: Any, b: Any) -> Any:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_data_dependent_branch() -> None:
    c = smelt.compile(toy, backend="eager", options=BREAKS)
    a, b = torch.randn(4, requires_grad=True), torch.ones(4)
    for _ in range(3):
        for sign in (1, -1):
            got, want = c(a, b * sign), toy(a, b * sign)
            assert torch.equal(got, want)
            (one,), (two,) = torch.autograd.grad(got.sum(), a), torch.autograd.grad(want.sum(), a)
            assert torch.equal(one, two)
    assert inspect.graph_count(c) == 3
    source = re.sub(r"#.*", "# ...", inspect.source(c))
    source = re.sub(r"_at_\d+", "_at_N", source)
    assert source.startswith(
        "def compiled_toy(a, b, inputs):  # ...\n"
        "    t0, t1 = graph(inputs)\n"
        "    # ...\n"
        "    if not t0:\n"
        "        return tail(resume_in_toy_at_N, b, t1)\n"
        "    return tail(resume_in_toy_at_N, b, t1)\n"
    )


def deep(depth: int, x: Any) -> Any:
    if depth == 0:
        return x + x.sum().tolist()
    y = x.sin()
    return deep(depth - 1, y + depth) * y


def test_a_break_five_calls_deep_gives_two_graphs() -> None:
    c = smelt.compile(lambda x: deep(5, x) + 1, backend="eager")
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(c(x), deep(5, x) + 1)
    # The first call has the sum as a number of its own; once it is known to change, it is an input.
    assert inspect.graph_count(c) == 2
    c(x + 1)
    c(x + 2)
    assert inspect.graph_count(c) <= 3


def test_a_loop_with_a_break_has_a_bounded_number_of_graphs() -> None:
    def f(x: Any) -> Any:
        for i in range(1000):
            x = x + i
            if x.sum() < 0:
                x = -x
        return x

    c = smelt.compile(f, backend="eager", options=BREAKS)
    x = torch.zeros(2)
    assert torch.equal(c(x), f(x))
    count = inspect.graph_count(c)
    assert count <= 6
    assert torch.equal(c(x), f(x)) and inspect.graph_count(c) == count


def test_ten_thousand_iterations_do_not_grow_the_stack() -> None:
    def f(x: Any) -> Any:
        n = 0
        while x < 10_000:
            x = x + 1
            n += 1
        return n

    c = smelt.compile(f, backend="eager")
    assert c(torch.zeros(())) == 10_000


def test_fullgraph_raises_the_reason_once_and_changes_nothing() -> None:
    log: list[int] = []

    def f(x: Any) -> Any:
        log.append(1)
        return x * x.sum().tolist()

    c = smelt.compile(f, fullgraph=True)
    for _ in range(2):
        with pytest.raises(Unsupported, match=r"data-dependent-value.*test_resume_functions.py:\d+ in "):
            c(torch.ones(2))
    assert log == [] and inspect.entries(c) == []


def test_reset_forgets_resume_functions() -> None:
    c = smelt.compile(toy, backend="eager", options=BREAKS)
    c(torch.ones(2), torch.ones(2))
    assert len(inspect.records(c)) > 1
    smelt.reset()
    assert len(inspect.records(c)) == 1 and inspect.graph_count(c) == 0
    assert torch.equal(c(torch.ones(2), torch.ones(2)), toy(torch.ones(2), torch.ones(2)))


def test_code_that_needs_long_arguments_and_jumps() -> None:
    lines = ["def f(x):", "    try:", "        for k in range(2):"]
    lines += [f"            v{i} = x + {i}.5" for i in range(300)]
    lines += ["            if v299.sum() > 1e6:", "                break"]
    lines += [f"            x = x + v{i} * {i}.25 / 1000" for i in range(0, 300, 7)]
    lines += [
        "    except ValueError:",
        "        return None",
        "    def g():",
        "        return v3 + v298",
        "    return x, g()",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    f = scope["f"]
    c = smelt.compile(f, backend="eager", options=BREAKS)
    for _ in range(3):
        got, want = c(torch.ones(2)), f(torch.ones(2))
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert inspect.graph_count(c) >= 2


def test_the_traceback_of_a_resume_function_names_the_users_line() -> None:
    def f(x: Any) -> Any:
        n = x.sum().tolist()
        if n > 5:
            raise ValueError(f"bad {n}")
        return x + n

    c = smelt.compile(f)
    c(torch.zeros(2))
    with pytest.raises(ValueError, match=r"bad 6\.0") as error:
        c(torch.ones(2) * 3)
    last = error.traceback[-1]
    assert str(last.path) == __file__ and last.lineno + 1 == f.__code__.co_firstlineno + 3


def test_eager_continuation_stack_does_not_grow_the_c_stack() -> None:
    def inner(x: Any, text: str) -> Any:
        smelt.graph_break()
        return x + (text != "7")  # each text compiles anew, until the limit

    def outer(x: Any, text: str) -> Any:
        try:
            return inner(x, text) * 1
        finally:
            smelt.graph_break()

    def f(x: Any) -> Any:
        for i in range(1500):
            x = outer(x, str(i))
        return x

    c = smelt.compile(f, backend="eager", options={"recompile_limit": 2})
    assert torch.equal(c(torch.zeros(2)), f(torch.zeros(2)))


def test_exceptions_after_a_continuation_stack_are_the_programs() -> None:
    def inner(x: Any) -> Any:
        smelt.graph_break()
        return x * 2

    def fn(x: Any, n: int) -> Any:
        y = inner(x) + 1
        if n:
            raise KeyError(n)
        return y

    compiled = smelt.compile(fn, backend="eager")
    for n in (0, 1, 0, 2):
        if n:
            with pytest.raises(KeyError, match=str(n)):
                compiled(torch.ones(2), n)
        else:
            assert compiled(torch.ones(2), n).tolist() == [3, 3]
    assert not [r for r in inspect.reasons(compiled) if r.kind.id == "internal-error"]
