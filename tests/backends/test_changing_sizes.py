"""Graphs with symbolic sizes through the backend: eager's results for all sizes, by one template of plans. Where no code is
valid for all sizes, capture specializes them: a program then has several entries."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import _native, events, pipeline, runtime
from smelt.backends.eager import aot_eager, eager
from smelt.backends.smelt import compile_graph
from smelt.config import Config
from smelt.errors import BackendError, NeedsFixedSize
from smelt.graph.graph_passes import copied
from smelt.graph.ir import Graph, Node
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import RUN_GRAPHS, Choice, Inner
from smelt.report import inspect
from tests.harness.symbolic import S0, S1, symbolic_trace
from tests.harness.threads import in_threads
from tests.harness.traced import flatten

CHECKED = Config(verify_stages=True)
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
    "sorted": lambda x: torch.sort(x, 1),
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


def without_symbolic_code(monkeypatch, is_refused=lambda c: True):
    """No code is valid for all sizes, of the graphs that `is_refused` selects."""
    generate = pipeline.generate_code

    def refuse(schedule, c):
        if c.sizes and is_refused(c):
            raise NeedsFixedSize("of numbers only", frozenset(c.sizes))
        return generate(schedule, c)

    monkeypatch.setattr(pipeline, "generate_code", refuse)


def compiled(f, config=CHECKED):
    """The compiled graph of `f` of a matrix, and the tensors that it takes beside that."""
    x = torch.randn(101, 211)
    traced, inputs = symbolic_trace(f, x)
    assert inputs[0] is x and set(traced.sizes) <= {S0, S1}
    run = compile_graph(traced, config)
    assert isinstance(run, _native.SizeDispatch)
    return lambda x: run((x, *inputs[1:])), run


def agree(run: Callable[[torch.Tensor], Sequence[Any]], f: Callable[..., Any], s: int, t: int) -> None:
    """Same values, strides, and what is written, twice; views are views."""
    ours = given(s, t)
    theirs = ours.clone()
    for _ in range(2):
        got, want = run(ours), flatten(f(theirs))
        assert ours._version == theirs._version
        for g, e in zip((*got, ours), (*want, theirs), strict=True):
            torch.testing.assert_close(g, e, atol=1e-3, rtol=1e-4, check_stride=True)  # sums in another order
        assert [g._base is ours for g in got] == [e._base is theirs for e in want]
        assert [g is ours for g in got] == [e is theirs for e in want]


# ---------------------------------------------------------------------------------------------------- any sizes


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS | LOOPS)
def test_results_are_eagers(name, grad):
    with torch.set_grad_enabled(grad):
        run, native = compiled((CALLS | LOOPS)[name])
        for s, t in SIZES:
            agree(run, (CALLS | LOOPS)[name], s, t)
    assert len(native.instances) == len(set(SIZES))


@pytest.mark.parametrize("name", CALLS | LOOPS)
def test_a_template_is_made_once(name):
    seen = []
    with events.subscribed(seen.append):
        run, native = compiled((CALLS | LOOPS)[name])
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


def test_threads_with_sizes_of_their_own():
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


def plans_made(run):
    seen = []
    with events.subscribed(seen.append):
        run()
    return sum(event.kind == "plan" for event in seen)


def growing_cache(x, w):
    """Attention to a cache that grows, as a decoder's."""
    y = x @ w
    return (y @ x.t()).softmax(-1) @ y


def padded_rows(x, w):
    return F.layer_norm(F.pad(x, (0, 0, 1, 2)).cumsum(0) * x.shape[0], (8,)) @ w


@pytest.mark.parametrize("f", [growing_cache, padded_rows])
@pytest.mark.parametrize("train", [False, True])
def test_many_sizes_have_a_plan_each_which_stays(f, train):
    """As many as the tokens that a decoder generates, again and again."""
    run = smelt.compile(f, dynamic=True)
    w = torch.randn(8, 8, requires_grad=train)

    def passes():
        for n in range(2, 202):
            x = torch.linspace(-1, 1, 8 * n).view(n, 8)
            got = run(x, w)
            if n % 50 == 2:
                torch.testing.assert_close(got, f(x, w), rtol=1e-3, atol=1e-3)
            if train:
                (gradient,) = torch.autograd.grad(got.square().mean(), w)
                if n % 50 == 2:
                    (want,) = torch.autograd.grad(f(x, w).square().mean(), w)
                    torch.testing.assert_close(gradient, want, rtol=1e-3, atol=1e-3)

    assert plans_made(passes) >= 200
    assert plans_made(passes) == 0


def test_many_unbacked_sizes_have_a_node_each_which_stays():
    def f(x, w):
        rows = x[x[:, 0] > 0]
        return (rows * w).softmax(-1).sum(0)

    run = smelt.compile(f)
    w = torch.randn(3, requires_grad=True)

    def passes():
        for n in range(2, 102):
            x = torch.ones(120, 3)
            x[n:] = -1
            (gradient,) = torch.autograd.grad(run(x, w).square().sum(), w)
            if n % 25 == 2:
                (want,) = torch.autograd.grad(f(x, w).square().sum(), w)
                torch.testing.assert_close(gradient, want)

    assert plans_made(passes) >= 100
    assert plans_made(passes) == 0


# ------------------------------------------------------------------------------------- where no code is for all sizes


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS | LOOPS)
def test_without_symbolic_code_sizes_are_specialized(name, grad, monkeypatch):
    """Each set of sizes has an entry, up to the limit; calls with others run eagerly."""
    without_symbolic_code(monkeypatch)
    f = (CALLS | LOOPS)[name]
    run = smelt.compile(f, dynamic=True, options={"verify_stages": True})
    with torch.set_grad_enabled(grad):
        for s, t in SIZES:
            agree(lambda x: flatten(run(x)), f, s, t)
    assert len(inspect.entries(run)) == Config().recompile_limit
    assert [reason.kind.id for reason in inspect.reasons(run)] == ["recompile-limit"]


@pytest.mark.parametrize("joint", [False, True])
def test_what_is_to_be_specialized_is_named(joint, monkeypatch):
    """By the symbols of the capture, not by those of the compiler, which know their bounds."""
    without_symbolic_code(monkeypatch)
    x = torch.randn(101, 211, requires_grad=joint)
    traced, _ = symbolic_trace(CALLS["products"], x, joint=joint)
    with pytest.raises(NeedsFixedSize, match="of numbers only") as error:
        compile_graph(traced, CHECKED)
    assert error.value.symbols == set(traced.sizes)


def test_unbacked_sizes_without_symbolic_code(monkeypatch):
    """Capture cannot specialize them: the subgraph is specialized, up to the limit of entries; then it runs eagerly."""
    without_symbolic_code(monkeypatch)

    def chosen(x):
        return x[x > 0].sin() * 2

    run = smelt.compile(chosen, fullgraph=True)
    with events.subscribed((seen := []).append):
        for n in (9, *range(20, 40), 20, 21):
            x = torch.ones(40).index_fill(0, torch.arange(n, 40), -1)
            torch.testing.assert_close(run(x), chosen(x))
    before = 1  # of what comes before the size is known
    assert [e.kind for e in seen].count("plan") == before + Config().recompile_limit
    assert len(inspect.entries(run)) == 1


def test_what_fails_at_a_call_runs_eagerly(monkeypatch, caplog):
    """New sizes; what was compiled stays."""
    run, native = compiled(CALLS["products"])
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.Template, "at", lambda *_: 1 / 0)
        agree(run, CALLS["products"], 3, 3)
    agree(run, CALLS["products"], 5, 4)
    agree(run, CALLS["products"], 101, 211)
    assert set(native.instances) == {(101, 211)}
    [record] = caplog.records
    assert "could not be compiled: ZeroDivisionError" in record.getMessage()


def test_what_fails_in_the_compiler_is_a_backend_error(monkeypatch):
    monkeypatch.setattr(pipeline, "fuse", lambda *_: 1 / 0)
    traced, _ = symbolic_trace(CALLS["products"], torch.randn(101, 211))
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        compile_graph(traced, Config())


# ------------------------------------------------------------------------------------------------- with gradients


def layers(x, v):
    y = F.gelu(F.linear(x[:, None].expand(-1, 3, -1), v))
    return (y.softmax(1) * x.shape[0]).sum(1), y.transpose(0, 1)


def views(x, v):
    y = x * v[0]
    return y.view(-1), y[:, None].expand(-1, 2, -1).reshape(-1, x.shape[1]) @ v.t(), x.t()


def written(x, v):
    y = x.clone()
    y[1] = v[0] * 2
    y.mul_(x)
    return y.unbind(1)[0] if x.shape[1] == 0 else y.sin(), y.sum(0)


def products(x, v):
    y = (x @ v) @ v
    return y @ v.t(), y[:, None].expand(-1, 2, -1), y


def gradients(run, f, s, columns, seed):
    """Of the first result that has some, then of all: compiled and eager, twice differentiated as well."""
    found = []
    for call in (run, lambda inputs: flatten(f(*inputs))):
        torch.manual_seed(seed)
        x = torch.randn(s, columns, requires_grad=True)
        v = torch.randn(columns, columns, requires_grad=True)
        outputs = call((x, v))
        weights = [torch.randn(o.shape) for o in outputs]
        one = torch.autograd.grad(
            (outputs[0] * weights[0]).sum(), (x, v), retain_graph=True, allow_unused=True
        )
        total = sum((o * w).sum() for o, w in zip(outputs, weights))
        every = torch.autograd.grad(total, (x, v), create_graph=True)
        twice = torch.autograd.grad(sum((g**2).sum() for g in every), (x, v), allow_unused=True)
        found.append([*outputs, *one, *every, *twice])
    for got, want in zip(*found, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3, check_stride=True)
            assert got.requires_grad == want.requires_grad


ROWS = [2, 3, 101, 7, 2, 64, 101, 33]


@pytest.mark.parametrize("f", [layers, views, written, products])
def test_gradients_are_eagers(f):
    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, inputs = symbolic_trace(f, x, v, joint=True)
    assert inputs[0] is x and inputs[1] is v and traced.joint is not None
    run = compile_graph(traced, CHECKED)
    assert isinstance(run, _native.SizeDispatch)
    for seed, s in enumerate(ROWS):
        gradients(run, f, s, 6, seed)
    assert set(run.instances) == {(s,) for s in ROWS}


def test_a_joint_graph_is_cut_and_compiled_once():
    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(lambda x, v: (x @ v) @ v.t(), x, v, joint=True)
    with events.subscribed((seen := []).append):
        run = compile_graph(traced, CHECKED)
        for s in (2, 3, 101, 2, 50):
            given = torch.randn(s, 6, requires_grad=True)
            (y,) = run((given, v))
            want = torch.autograd.grad(((given @ v) @ v.t()).pow(2).sum(), (given, v))
            found = torch.autograd.grad(y.pow(2).sum(), (given, v))
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-3)
    stages = [e.name if e.kind == "stage" else e.kind for e in seen]
    assert stages.count("partition") == 1
    assert stages.count("lower") == stages.count("codegen") == 2  # forward and backward
    assert stages.count("instance") == 2 * 4


def test_what_is_packed_may_be_larger_later():
    """The indices of a maximum among 101 fit a byte; among more they may not."""

    def f(x, v):
        return (x @ v).max(0)[0], x.sum()

    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(f, x, v, joint=True)
    run = compile_graph(traced, CHECKED)
    for s in (101, 5, 300, 70_000):
        gradients(run, f, s, 6, s)


def test_a_backward_without_code_for_all_sizes(monkeypatch):
    """It is specialized for each set of sizes, up to the limit of entries; then it runs eagerly."""
    without_symbolic_code(monkeypatch, lambda c: c.donated)
    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(lambda x, v: torch.sort(x @ v, 0)[0] @ v, x, v, joint=True)
    with events.subscribed((seen := []).append):
        run = compile_graph(traced, CHECKED)
        for s in range(2, 14):
            gradients(run, lambda x, v: torch.sort(x @ v, 0)[0] @ v, s, 6, s)
    stages = [e.name for e in seen if e.kind == "stage"]
    assert stages.count("instance") == 13 and stages.count("codegen") == 1 + Config().recompile_limit


@pytest.mark.parametrize("f", [layers, views, written, products])
def test_backends_that_compile_nothing(f):
    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(f, x, v, joint=True)
    for run in (eager(traced, CHECKED), aot_eager(traced, CHECKED)):
        for s in (7, 101, 2):
            gradients(run, f, s, 6, s)


@pytest.mark.parametrize("name", CALLS | LOOPS)
def test_without_gradients_too(name):
    f = (CALLS | LOOPS)[name]
    with torch.no_grad():
        traced, inputs = symbolic_trace(f, torch.randn(101, 211))
        for run in (eager(traced, CHECKED), aot_eager(traced, CHECKED)):
            for s, t in ((7, 9), (101, 211), (2, 2)):
                agree(lambda x, run=run: run((x, *inputs[1:])), f, s, t)


@pytest.mark.parametrize("f", [layers, views, written])
def test_without_symbolic_code_gradients_are_eagers_too(f, monkeypatch):
    without_symbolic_code(monkeypatch)
    run = smelt.compile(f, dynamic=True)
    for s in ROWS:
        gradients(lambda inputs: flatten(run(*inputs)), f, s, 6, s)
    assert len(inspect.entries(run)) == len(set(ROWS))


def test_a_backward_outlives_the_graph():
    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(layers, x, v, joint=True)
    run = compile_graph(traced, CHECKED)
    later = [(s, run((x[:s].clone(), v))) for s in (5, 6)]
    del run
    gc.collect()
    for s, outputs in later:
        (got,) = torch.autograd.grad(outputs[0].sum(), v)
        (want,) = torch.autograd.grad(layers(x[:s], v)[0].sum(), v)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_memory_of_backwards_is_bounded():
    gc.collect()
    runtime.release_all()

    def f(x, v):
        return torch.sort(torch.sort((x @ v).sin(), 0)[0] @ v, 0)[0].cos() @ v

    x, v = torch.randn(101, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    traced, _ = symbolic_trace(f, x, v, joint=True)
    run = compile_graph(traced, CHECKED)
    held = []
    for s in range(1000, 1006):
        run((torch.randn(s, 6), v))[0].sum().backward()
        held.append(runtime.held_bytes())
    assert 0 < max(held) <= 2.1 * held[0]


# ------------------------------------------------------------------------------------------------- fixed sizes


def test_graphs_that_need_fixed_sizes():
    """Those with kernels of the program, also within graphs inside, say so to capture: no BackendError."""
    traced, _ = symbolic_trace(CALLS["products"], torch.randn(101, 211))

    def calling(handle: Handle) -> Graph:
        graph, _ = copied(traced.aten_graph.nodes, {})
        call = Node("call_function", RUN_GRAPHS, (handle, [*graph.placeholders]), {}, "inside", ())
        graph.nodes.insert(len(graph.placeholders), call)
        return graph

    graph = calling(Handle.of(lambda: None))
    for outer in (graph, calling(Handle.of(Inner(Choice(), [graph, graph])))):
        with pytest.raises(NeedsFixedSize, match="kernels of the program") as error:
            compile_graph(replace(traced, aten_graph=outer), CHECKED)
        assert error.value.symbols == {S0, S1}
