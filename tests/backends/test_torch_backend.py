"""`torch.compile(model, backend="smelt")`: torch captures, smelt compiles."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from smelt import errors, events
from smelt.torch_backend import compile_fx


@contextmanager
def counted():
    """The number of events of each kind."""
    counts = Counter()
    with events.subscribed(lambda event: counts.update([event.kind])):
        yield counts


def steps(f, inputs):
    """Results and gradients for each input."""
    found = []
    for x in inputs:
        x = x.clone().requires_grad_()
        y = f(x)
        found.append((y.detach(), torch.autograd.grad(y.square().sum(), x)))
    return found


region = torch.compiler.nested_compile_region(lambda x: x.relu() + 1)
linear = torch.nn.Linear(8, 8)

PROGRAMS = {
    "module": torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)),
    "region": lambda x: region(region(x) * 2),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
    "checkpoint": lambda x: checkpoint(lambda x: linear(x).sin().cos(), x, use_reentrant=False),
    "vmap": torch.func.vmap(lambda x: x.softmax(0) * x.sum()),
    "views and writes": lambda x: (x * 2).t().contiguous().view(-1)[3:].mul_(3).add_(1),
    "two graphs": lambda x: (x.sin() * (torch._dynamo.graph_break() or 2)).cos(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_compiled_with_their_gradients(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    program, inputs = PROGRAMS[name], [torch.randn(4, 8) for _ in range(2)]
    with counted() as counts:
        found = steps(torch.compile(program, backend=compile_fx), inputs)
    # The gradient of a normalized module's squares is only rounding.
    torch.testing.assert_close(found, steps(program, inputs), rtol=1e-5, atol=1e-4)
    assert counts["entry-installed"] == (2 if name == "two graphs" else 1)
    assert not counts.keys() & {"graph-break", "eager-fallback", "no-joint-graph"}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
        lambda x: flex_attention(*[x.view(1, 1, *x.shape)] * 3),
        lambda x: x[x > 0.5].sum(),
    ],
)
def test_programs_without_gradients(program):
    torch._dynamo.reset()
    x = torch.rand(5, 8)
    with torch.no_grad(), counted() as counts:
        torch.testing.assert_close(torch.compile(program, backend=compile_fx)(x), program(x))
    assert counts["entry-installed"] >= 1 and "graph-break" not in counts


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
def test_optimizers(rate):
    torch._dynamo.reset()

    def train(compiled):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        step = torch.compile(lambda: optimizer.step(), backend=compile_fx) if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            step()
        return list(model.parameters())

    torch.testing.assert_close(train(True), train(False))


@pytest.mark.parametrize("dynamic", [None, True])
def test_symbolic_sizes(dynamic):
    torch._dynamo.reset()
    f = lambda x: linear(x).relu().sum() * x.shape[0] + x.view(-1)[: x.shape[0]].sum()  # noqa: E731
    inputs = [torch.randn(b, 8) for b in (4, 5, 9, 7, 2, 1)]
    with counted() as counts:
        found = steps(torch.compile(f, backend=compile_fx, dynamic=dynamic), inputs)
    torch.testing.assert_close(found, steps(f, inputs), rtol=1e-5, atol=1e-5)
    assert counts["entry-installed"] <= 4 and "graph-break" not in counts


def test_values_that_python_reads_break_the_graph():
    torch._dynamo.reset()

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def call(f, x):
        return f(x)

    f = lambda x: x.sin() * int(x.sum().item())  # noqa: E731
    x = torch.ones(3)
    torch.testing.assert_close(call(torch.compile(f, backend=compile_fx), x), f(x))


def test_mode_and_options():
    torch._dynamo.reset()
    x = torch.ones(3)
    for arguments in ({"mode": "reduce-overhead"}, {"options": {"fuse": False}}, {"mode": "max-autotune"}):
        f = torch.compile(lambda x: x.sin() + 1, backend=compile_fx, **arguments)
        torch.testing.assert_close(f(x), x.sin() + 1)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="did you mean 'fuse'") as raised:
        torch.compile(lambda x: x.sin() + 1, backend=compile_fx, options={"fuze": False})(x)
    assert isinstance(raised.value.inner_exception, errors.OptionError)


def test_a_graph_module_of_torch_fx():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    x = torch.randn(5, 4)
    compiled = compile_fx(torch.fx.symbolic_trace(model), [x])
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model[0].weight.grad is not None
