"""From a call to an entry: what is compiled, what runs eagerly and why, and what users observe."""

from __future__ import annotations

import gc
import logging
import types
import unittest.mock
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import events
from smelt.backends.eager import eager
from smelt.capture.driver.cache_entries import entries_of, reasons_of, reset, wrap
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.config import DEFAULT
from smelt.errors import BackendError, Unsupported
from smelt.reasons import BACKEND_FAILED, RECOMPILE_LIMIT, TENSOR_CONDITION, USER_EXCEPTION
from smelt.runtime.thread_state import set_disabled
from tests.harness.threads import in_threads


def compiled(
    fn: Any, backend: Any = eager, fullgraph: bool = False, dynamic: bool | None = None, **options: Any
) -> Any:
    """`fn` compiled the way the public API does it, in verify mode."""
    own = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    own.__kwdefaults__ = fn.__kwdefaults__
    config = DEFAULT.with_options({"verify_stages": True, **options})
    return wrap(own, FrameCompiler(backend, config, fullgraph=fullgraph, dynamic=dynamic))


def entries(c: Any) -> list[Any]:
    return entries_of(c.__code__)


def reasons(c: Any) -> list[Any]:
    return [r.kind for r in reasons_of(c.__code__)]


def check(
    fn: Callable[..., Any], *calls: tuple[Any, ...], n_entries: int | None = None, **settings: Any
) -> Any:
    """Every call gives what eager gives, twice, and leaves no reason to run eagerly."""
    c = compiled(fn, fullgraph=True, **settings)
    for args in calls:
        for _ in range(2):
            torch.testing.assert_close(c(*args), fn(*args))
    assert not reasons(c)
    if n_entries is not None:
        assert len(entries(c)) == n_entries
    return c


class A(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.exp(2 * x)


class B(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.exp(-x)


def apply(x: Any, mod: Any) -> Any:
    y = mod(x)
    z = torch.log(y)
    return z


def test_plus_one() -> None:
    c = check(lambda x: x + 1, (torch.ones(3),), n_entries=1)
    entry = entries(c)[0]
    assert "t0, = graph(inputs)" in entry.source and "is_tensor(L['x']" in entry.guards


def test_entries_grow_with_module_classes() -> None:
    c = compiled(apply, fullgraph=True)
    x = torch.randn(5, 5)
    assert entries(c) == []
    for mod, n in ((A(), 1), (A(), 1), (B(), 2), (A(), 2), (B(), 2)):
        torch.testing.assert_close(c(x, mod), apply(x, mod))
        assert len(entries(c)) == n
    reason = entries(c)[1].reason
    assert "L['mod']" in reason.source and "A" in reason.expected and "B" in reason.found


def test_a_new_shape_or_value_creates_an_entry() -> None:
    x = torch.ones(3)
    check(lambda x, n: x * n, (x, 2), (x, 3), (torch.ones(4), 3), (x.double(), 3), n_entries=4)


def test_the_recompile_limit_names_the_changing_values(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any, step: int) -> Any:
        return x + len(range(step))

    c = compiled(f, recompile_limit=3, dynamic=False)
    with caplog.at_level(logging.WARNING, "smelt"):
        for i in range(6):
            assert c(torch.zeros(1), i).item() == i
    assert len(entries(c)) == 3 and reasons(c) == [RECOMPILE_LIMIT]
    assert len(caplog.records) == 1
    assert "L['step'] was 0, 1, 2, 3" in caplog.text and "test_frame_compiler.py" in caplog.text
    with pytest.raises(Unsupported, match="recompile-limit"):
        c = compiled(f, recompile_limit=1, fullgraph=True)
        c(torch.zeros(1), 0)
        c(torch.zeros(1), 1)


def branches(x: Any) -> Any:
    if x.sum() > 0:
        print(end="")  # an effect, for which the graph breaks at the condition
        return x + 1
    return x - 1


def test_a_graph_break_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    c = compiled(branches)
    with caplog.at_level(logging.INFO, "smelt"):
        for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
            assert torch.equal(c(x), branches(x))
    assert reasons(c) == [TENSOR_CONDITION] and len(entries(c)) == 1
    assert len(caplog.records) == 1 and "x.sum()" not in caplog.text and "in branches" in caplog.text


def test_fullgraph_raises_on_the_users_line() -> None:
    with pytest.raises(Unsupported, match=r"data-dependent.*test_frame_compiler.py:\d+ in branches"):
        compiled(branches, fullgraph=True)(torch.ones(2))


def test_user_exceptions_are_those_of_eager() -> None:
    def f(x: Any, d: Any) -> Any:
        return x + d["missing"]

    c = compiled(f, fullgraph=True)
    with pytest.raises(KeyError, match="missing"):
        c(torch.ones(1), {})
    assert entries(c) == [] and reasons(c) == [USER_EXCEPTION]
    assert c(torch.ones(1), {"missing": 1}).item() == 2


def test_a_failing_backend() -> None:
    def broken(traced: Any, config: Any) -> Any:
        raise ZeroDivisionError("no such luck")

    def f(x: Any) -> Any:
        return x + 1

    def with_backend(**settings: Any) -> Any:
        own = types.FunctionType(f.__code__.replace(), f.__globals__, "f")
        return wrap(own, FrameCompiler(broken, DEFAULT, **settings))

    c = with_backend()
    assert c(torch.ones(1)).item() == 2 and reasons(c) == [BACKEND_FAILED]
    with pytest.raises(BackendError, match="no such luck") as e:
        with_backend(fullgraph=True)(torch.ones(1))
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_gradients_and_none() -> None:
    w = torch.ones(2, requires_grad=True)
    own = types.FunctionType((lambda x: x * w).__code__, globals(), "f", None, (types.CellType(w),))
    c = wrap(own, FrameCompiler(eager, DEFAULT))
    x = torch.ones(2)
    for _ in range(3):
        assert c(x).requires_grad
    with torch.no_grad():
        assert not c(x).requires_grad
    c(x).sum().backward()
    assert torch.equal(w.grad, x)
    assert [e.traced.needs_grad for e in entries(c)] == [True, False] and not reasons(c)


def test_set_disabled() -> None:
    c = compiled(lambda x: x + 1)
    with set_disabled():
        assert c(torch.ones(1)).item() == 2
        assert entries(c) == []
    c(torch.ones(1))
    assert len(entries(c)) == 1


def test_reset() -> None:
    c = compiled(branches)
    c(torch.ones(1))
    reset()
    assert reasons(c) == []
    d = compiled(lambda x: x + 1)
    d(torch.ones(1))
    reset()
    assert entries(d) == []
    d(torch.ones(1))
    assert len(entries(d)) == 1


def test_each_compilation_has_its_own_entries() -> None:
    def f(x: Any) -> Any:
        return x + 1

    a, b = compiled(f), compiled(f)
    a(torch.ones(1))
    assert (len(entries(a)), len(entries(b))) == (1, 0)


def test_everything_is_freed_with_the_callable() -> None:
    def make() -> Any:
        weight = torch.ones(3)
        return compiled(lambda x: x + weight), weakref.ref(weight)

    c, weight = make()
    c(torch.ones(3))
    entry = weakref.ref(entries(c)[0])
    del c
    gc.collect()
    assert entry() is None and weight() is None


def test_events_in_order() -> None:
    seen: list[str] = []
    c = compiled(lambda x: x + 1)
    with events.subscribed(lambda e: seen.append(e.kind)):
        c(torch.ones(1))
        c(torch.ones(1))
        first = list(seen)
        c(torch.ones(2))
    assert first[0] == "capture-start" and first[-1] == "entry-installed"
    assert [k for k in first if k.startswith("backend")] == ["backend-start", "backend-end"]
    assert seen[len(first)] == "recompile"


def test_threads_compile_once() -> None:
    c = compiled(apply)
    mods, x = (A(), B()), torch.randn(4)
    wrong: list[Any] = []

    def work() -> None:
        for i in range(20):
            mod = mods[i % 2]
            if not torch.allclose(c(x, mod), apply(x, mod)):
                wrong.append(i)

    in_threads([work] * 8)
    assert not wrong and len(entries(c)) == 2


def test_modules_created_after_a_use_of_torch_compile() -> None:
    """torch.compile wraps Module.__init__ to tag new modules; a slice of a ModuleList is a new module."""
    layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh()])
    torch.compile(layers[0], backend="eager")(torch.ones(2))

    def f(layers: Any, x: Any) -> Any:
        for layer in layers[:2]:
            x = layer(x)
        return x

    c = compiled(f, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(c(layers, x), f(layers, x))


def test_a_program_that_replaces_a_builtin_runs_on() -> None:
    """Where `int` is a mock neither capture nor logging works: the call goes on eagerly, and the mock is taken away."""

    def fn(x: Any) -> Any:
        with unittest.mock.patch("builtins.int") as mock:
            smelt.graph_break()
            int("7")
            mock.assert_called_once_with("7")
        return x + 1

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert isinstance(int, type)
