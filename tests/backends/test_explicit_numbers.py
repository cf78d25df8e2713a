"""Graphs that read numbers from tensors, for backends that run or compile calls of torch."""

import contextlib

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import smelt
from smelt import events
from smelt.errors import SmeltError
from smelt.report import inspect
from tests.harness.agreement import same, tensors


def nop(gm, inputs):
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm.forward


AOT = aot_autograd(fw_compiler=lambda gm, inputs: gm.forward)


def aot(gm, inputs):
    return AOT(gm, inputs)


X, T = (lambda: torch.randn(12, 4)), torch.tensor


def arange(x, t):
    n = t.max().item()
    torch._check(n >= 0)
    return torch.arange(n) + n


def lists(x, t):
    return [4 * n for n in t.tolist()], {"sum": sum(t.tolist()) // 3}


def split(x, t):
    a, b, c = t.tolist()
    return torch.cat([x.split([a, b, c])[2] * 2, x[:a]])


def scaled(x, t):
    n = int(t[0])
    return x * n + (n * 2 - 3), n


def prefix(x, t):
    n = t[0].item()
    return x[:n].cumsum(0), x[n:] + n


def with_sizes(x, t):
    n = t[1].item() + x.shape[0]
    return torch.zeros(n) + n, max(n, 3)


def checked(x, t):
    n = t[2].item()
    torch._check(n <= 5)
    return x[:n] - n


def masked(x, t):
    return (x[t.repeat(4) > 3] * 2).sum(0), (t > 3).sum().item()


def under_no_grad(x, t):
    with torch.no_grad():
        y = x * t[0].item()
    return y + x, t.tolist()


def dropped(x, t):
    return torch.nn.functional.dropout(x, 0.5) * t[0].item()


PROGRAMS = [arange, lists, split, scaled, prefix, with_sizes, checked, masked, under_no_grad, dropped]
VALUES = [(3, 5, 4), (4, 6, 2), (2, 5, 5), (1, 7, 4), (0, 9, 3)]


def step(f, x, t):
    """The results, and the gradient of `x`."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    out = f(x, t)
    differentiable = [y for y in tensors(out) if y.requires_grad]
    gradient = torch.autograd.grad(sum(y.square().sum() for y in differentiable), x) if differentiable else ()
    return out, gradient


@pytest.mark.parametrize(
    ("program", "backend"),
    [(p, b) for p in PROGRAMS for b in (nop, "eager", "aot_eager")]
    + [(p, aot) for p in (lists, split, prefix, masked)],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_graph_gives_eager_results_for_all_numbers(program, backend):
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    for values in VALUES:
        x = X()
        same(step(compiled, x, T(values)), step(program, x, T(values)), str(values))
    assert len(inspect.entries(compiled)) == 1


@pytest.mark.parametrize("backend", [nop, aot, "eager"])
def test_numbers_that_a_graph_is_not_for_run_the_original_function(backend):
    def f(x, n):
        n = n.item()
        torch._check(n <= 5)
        return x[:n] * n

    compiled = smelt.compile(f, backend=backend, fullgraph=True)
    seen = []
    with events.subscribed(lambda e: seen.append(e.kind)):
        for n in (3, 4, -2):
            x = X()
            assert torch.equal(compiled(x, T(n)), f(x, T(n)))
        with pytest.raises(RuntimeError, match="Expected cond to be True"):
            compiled(X(), T(6))
    assert seen.count("unbacked-mismatch") == 2


def test_a_graph_reads_numbers_by_item():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    smelt.compile(split, backend=backend, fullgraph=True)(X(), T([3, 5, 4]))
    (gm,) = graphs
    assert gm.code.count(".item()") == 3 and gm.code.count("check_number") > 3
    reads = gm.graph.find_nodes(op="call_method", target="item")
    assert all(isinstance(node.meta["example_value"], torch.SymInt) for node in reads)


def test_a_backend_that_traces_with_real_numbers_is_refused():
    """Its code would hold the numbers of the first call."""
    trace = lambda gm, inputs: torch.jit.trace(gm, tuple(inputs))  # noqa: E731
    compiled = smelt.compile(lambda x, n: x * n.item(), backend=trace, fullgraph=True)
    with pytest.raises(SmeltError), pytest.warns():
        compiled(X(), T(3))


def test_without_fullgraph_a_read_breaks_the_graph_of_a_foreign_backend():
    compiled = smelt.compile(scaled, backend=nop)
    for values in VALUES:
        x = X()
        same(compiled(x, T(values)), scaled(x, T(values)), str(values))
    assert inspect.reasons(compiled)


def test_an_input_that_is_written_needs_the_number_first():
    """A failed check could not repeat the call."""

    def f(x, n):
        x.mul_(n.item())
        return x.sum()

    with pytest.raises(smelt.errors.Unsupported, match=r"Tensor\.item"):
        smelt.compile(f, backend=nop, fullgraph=True)(X(), T(3))


def _needs_to_know(gm, inputs):
    """Fails like torch's code that depends on whether a number is 0, with an error of its own."""
    (read,) = gm.graph.find_nodes(op="call_method", target="item")
    try:
        return gm.forward if read.meta["example_value"] != 0 else None
    except RuntimeError as e:
        raise ValueError("cannot compile") from e


def _fails(gm, inputs):
    raise ValueError("not this graph")


@pytest.mark.parametrize(("fails", "graphs"), [(_needs_to_know, 2), (_fails, 1)])
def test_a_backend_that_fails_gets_a_second_graph_only_for_larger_numbers(fails, graphs):
    calls = []

    def backend(gm, inputs):
        calls.append(gm.code)
        return fails(gm, inputs)

    def f(x, n):
        n = n.item()
        torch._check(n >= 0)
        return x[:n] * 2

    compiled = smelt.compile(f, backend=backend, fullgraph=True)
    with pytest.raises(SmeltError) if fails is _fails else contextlib.nullcontext():
        for n in (3, 0, 1):
            x = X()
            same(compiled(x, T(n)), f(x, T(n)), str(n))
    assert sum(".item()" in code for code in calls) == graphs
