"""Graphs with symbols through the backend: eager's results for any sizes, by a template or compiled one by one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt import _native, events, runtime
from smelt.backends import smelt as backend
from smelt.backends.by_sizes import MOST_COMPILED
from smelt.backends.smelt import compile_graph
from smelt.config import Config
from smelt.errors import BackendError, NeedsFixedSize
from smelt.graph.handle import Handle
from smelt.graph.inner import RUN_GRAPHS, Choice, Inner
from smelt.graph.ir import Node
from smelt.graph.passes import copied
from tests.harness.symbolic import S0, S1, symbolic_trace
from tests.harness.threads import in_threads
from tests.harness.traced import flatten

CHECKED = Config(verify=True)
SIZES = [
    (2, 2),
    (3, 5),
    (5, 3),
    (101, 211),
    (64, 2),
    (7, 129),
    (33, 40),
    (2, 300),
    (101, 211),
    (3, 5),
    (90, 80),
]
w, b = torch.randn(8, 2), torch.randn(8)


def given(s: int, t: int) -> torch.Tensor:
    return torch.randn(s, t)


# Functions of a matrix. Of these all is a call of ATen or a view, whatever learns to be a loop.
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "products": lambda x: (x @ x.t()) @ x,
    "sorted": lambda x: torch.sort(x @ x.t(), 1),
    "a view of an input": lambda x: x.view(-1),
    "views of inputs": lambda x: (x.t(), x[:, None].expand(x.shape[0], 3, x.shape[1])),
    "an input as it is": lambda x: (x, x @ x.t()),
}
LOOPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "elementwise": lambda x: F.gelu(x) * 2 + x.shape[1],
    "written": lambda x: (x.mul_(2), x.t() @ x),
    "rows": lambda x: x.softmax(-1) @ x.t(),
    "weights": lambda x: F.gelu(F.linear(x[:, :2], w, b)),
    "reshaped": lambda x: x[:, None].expand(-1, 4, -1).reshape(-1, x.shape[1]).cumsum(0),
    "made of sizes": lambda x: (
        x.new_zeros(x.shape[1]),
        x.sum(0)[None].expand(x.shape[0] * 2, -1),
        x.new_full((2, x.shape[0]), x.shape[1]),
    ),
}


def without_template(monkeypatch):
    """Each set of sizes is compiled."""

    def refuse(*_):
        raise NeedsFixedSize("of numbers only", frozenset((S0,)))

    monkeypatch.setattr(backend, "_template", refuse)


def compiled(f, config=CHECKED):
    """The compiled graph of `f` of a matrix, and the tensors that it takes beside that."""
    x = torch.randn(101, 211)
    traced, inputs = symbolic_trace(f, x)
    assert inputs[0] is x and set(traced.sizes) <= {S0, S1}
    run = compile_graph(traced, config)
    assert isinstance(run, _native.BySizes)
    return lambda x: run((x, *inputs[1:])), run


def agree(run: Callable[[torch.Tensor], Sequence[Any]], f: Callable[..., Any], s: int, t: int) -> None:
    """Same values, strides, and what is written, twice; views are views."""
    ours = given(s, t)
    theirs = ours.clone()
    for _ in range(2):
        got, want = run(ours), flatten(f(theirs))
        assert ours._version == theirs._version
        for g, e in zip((*got, ours), (*want, theirs), strict=True):
            torch.testing.assert_close(g, e, atol=1e-4, rtol=1e-4, check_stride=True)
        assert [g._base is ours for g in got] == [e._base is theirs for e in want]
        assert [g is ours for g in got] == [e is theirs for e in want]


# ---------------------------------------------------------------------------------------------------- any sizes


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_eagers(name, grad):
    with torch.set_grad_enabled(grad):
        run, native = compiled(CALLS[name])
        for s, t in SIZES:
            agree(run, CALLS[name], s, t)
    assert len(native.instances) == 8


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS | LOOPS)
def test_without_a_template_results_are_eagers_too(name, grad, monkeypatch):
    """Also of those beyond the eighth set, which run operator by operator."""
    without_template(monkeypatch)
    f = (CALLS | LOOPS)[name]
    with torch.set_grad_enabled(grad):
        run, native = compiled(f)
        for s, t in SIZES:
            agree(run, f, s, t)
    assert len(native.instances) == 8


@pytest.mark.parametrize("name", CALLS)
def test_a_template_is_made_once(name):
    seen = []
    with events.subscribed(seen.append):
        run, native = compiled(CALLS[name])
        for s, t in SIZES:
            run(given(s, t))
    stages = [e.name for e in seen if e.kind == "stage"]
    assert stages.count("lower") == stages.count("codegen") == 1
    assert stages.count("instance") == stages.count("load") == stages.count("verify") == len(set(SIZES))


def test_the_sizes_of_the_trace_are_ready():
    run, native = compiled(CALLS["products"])
    assert list(native.instances) == [(101, 211)]
    with events.subscribed(lambda event: pytest.fail(f"{event} at a call")):
        run(given(101, 211))


def test_a_size_beyond_a_symbols_range_is_an_error():
    run, native = compiled(CALLS["products"])
    with pytest.raises(ValueError, match="s0 from 2 to .* was called with 1"):
        run(given(1, 3))
    assert list(native.instances) == [(101, 211)]


@pytest.mark.parametrize("template", [True, False])
def test_threads_with_sizes_of_their_own(template, monkeypatch):
    if not template:
        without_template(monkeypatch)
    f = CALLS["sorted"]
    run, _ = compiled(f)

    def work(k):
        for i in range(20):
            agree(run, f, *SIZES[(k + i) % len(SIZES)])

    in_threads([lambda k=k: work(k) for k in range(4)])


def test_memory_between_calls_is_bounded():
    gc.collect()
    runtime.release_all()
    run, native = compiled(lambda x: ((x @ x.t()) @ x) @ x.t())
    for s in range(100, 108):
        run(given(s, 211))
    largest = max(i.arena_bytes for i in native.instances.values())
    assert largest > 0 and largest <= runtime.held_bytes() <= 2 * largest
    del run, native
    gc.collect()
    assert runtime.held_bytes() == 0


# ------------------------------------------------------------------------------------- where there is no template


def test_beyond_eight_sets_of_sizes_a_graph_runs_by_operators(monkeypatch, caplog):
    without_template(monkeypatch)
    f = LOOPS["written"]
    seen = []
    with events.subscribed(seen.append), caplog.at_level(logging.WARNING, "smelt"):
        run, native = compiled(f)
        for n in range(2, 30):
            agree(run, f, n, 3)
            agree(run, f, 2, 3)
    assert [e.kind for e in seen].count("plan") == MOST_COMPILED
    assert next(iter(native.instances)) == (2, 3) and len(native.instances) == MOST_COMPILED
    [record] = caplog.records
    assert "operator by operator" in record.message and "of numbers only" in record.message


def test_what_fails_at_a_call_is_raised_and_nothing_is_kept(monkeypatch):
    run, native = compiled(CALLS["products"])
    with monkeypatch.context() as patched:
        patched.setattr(backend.Template, "at", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(given(3, 3))
    agree(run, CALLS["products"], 3, 3)
    assert set(native.instances) == {(101, 211), (3, 3)}


def test_what_fails_in_the_compiler_is_a_backend_error(monkeypatch):
    monkeypatch.setattr(backend, "fuse", lambda *_: 1 / 0)
    traced, _ = symbolic_trace(CALLS["products"], torch.randn(101, 211))
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        compile_graph(traced, Config())


def test_graphs_that_need_fixed_sizes():
    """They say so to capture: no BackendError."""
    traced, _ = symbolic_trace(CALLS["products"], torch.randn(101, 211))
    inside = Handle.of(Inner(Choice(), [traced.aten_graph, traced.aten_graph]))
    graph, copy_of = copied(traced.aten_graph, {})
    call = Node("call_function", RUN_GRAPHS, (inside, [*graph.placeholders]), {}, "inside", ())
    graph.nodes.insert(len(graph.placeholders), call)
    with pytest.raises(NeedsFixedSize, match="graphs inside") as error:
        compile_graph(replace(traced, aten_graph=graph), CHECKED)
    assert error.value.symbols == {S0, S1}
