"""Backends by name, and the torch.fx bridge."""

import pytest
import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions
from torch.utils.checkpoint import checkpoint

import smelt
from smelt import config
from smelt.backends import backend_registry
from smelt.errors import OptionError
from smelt.graph.ir import TensorSpec
from smelt.report import inspect
from tests.harness.traced import trace


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x)
        a, b = y.split([1, 2], -1)
        return torch.relu(b) + a, y.mT


def traced_model(grad=False):
    model, x = Model(), torch.randn(5, 4)
    recorder, traced = trace(model, [x], grad)
    return model, x, traced, tuple(recorder.real(f) for f in traced.inputs)


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_uncompiled_backends(name):
    model, x, traced, inputs = traced_model()
    for got, want in zip(backend_registry.lookup(name)(traced, config.DEFAULT)(inputs), model(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "smelt"])
def test_gradients(name):
    model, x, traced, inputs = traced_model(grad=True)
    assert traced.needs_grad
    backend_registry.lookup(name)(traced, config.DEFAULT)(inputs)[0].sum().backward()
    assert model.linear.weight.grad is not None


def test_foreign_backend_gets_a_real_graph_module():
    model, x, traced, inputs = traced_model()
    seen = []

    def backend(gm, example_inputs):
        assert isinstance(gm, torch.fx.GraphModule)
        assert all(a is b for a, b in zip(example_inputs, inputs))
        gm.graph.lint()
        seen.append(gm)
        return torch.fx.Interpreter(gm).run

    for got, want in zip(backend_registry.lookup(backend)(traced, config.DEFAULT)(inputs), model(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert [n.target for n in seen[0].graph.nodes if n.op == "call_function"][:1] == [torch._C._nn.linear]


def test_a_foreign_backend_finds_calls_by_their_function():
    found = []

    def backend(gm, example_inputs):
        partitions = get_source_partitions(gm.graph, [torch.relu, "split", torch.sin])
        found.append({target: [len(p.nodes) for p in parts] for target, parts in partitions.items()})
        return gm.forward

    model, x = Model(), torch.randn(5, 4)
    smelt.compile(lambda x: (model(x), x.relu(), torch.relu(x)), backend=backend)(x)
    assert found == [{torch.relu: [1, 1], "split": [1]}]


def test_names():
    assert {"smelt", "eager", "aot_eager"} <= set(backend_registry.list_backends())
    with pytest.raises(OptionError, match="did you mean 'eager'"):
        backend_registry.lookup("eagre")
    with pytest.raises(OptionError, match="already"):
        backend_registry.register_backend(lambda gm, x: gm, name="smelt")


def test_foreign_backends_get_symbolic_sizes_if_asked():
    modules = []

    def backend(gm, inputs):
        modules.append(gm)
        return gm.forward

    def f(x, y):
        b, s = x.shape
        return (x.view(b * s) * 2 + s).sum() * y.new_zeros(b, 3) + y[:, : s // 2].sum()

    for dynamic, count in ((True, 1), (None, 4)):  # a backend may compile for its examples alone
        modules.clear()
        compiled = smelt.compile(f, dynamic=dynamic, backend=backend)
        for b, s in ((4, 16), (5, 9), (6, 13), (3, 8)):
            x, y = torch.randn(b, s), torch.randn(b, 40)
            torch.testing.assert_close(compiled(x, y), f(x, y))
        assert len(modules) == count
    numbers = [n.meta["spec"] for n in modules[0].graph.nodes if n.op == "placeholder"]
    assert all(isinstance(spec, TensorSpec) for spec in numbers)


def test_a_shape_as_an_argument_names_its_sizes():
    f = lambda x: torch.nn.functional.layer_norm(x, x.shape[1:])  # noqa: E731
    compiled = smelt.compile(f, dynamic=True, fullgraph=True, backend=lambda gm, inputs: gm.forward)
    for shape in ((4, 16), (5, 9), (6, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_eager_backends_take_sizes(backend):
    f = lambda x: x.view(-1, x.shape[0]).softmax(-1) * x.shape[1]  # noqa: E731
    compiled = smelt.compile(f, backend=backend)
    for b, s in ((4, 16), (5, 9), (6, 13), (3, 8)):
        x = torch.randn(b, s)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(inspect.entries(compiled)) == 2


class Scaled(torch.autograd.Function):
    """Its backward has gradients for inputs that its forward does not read."""

    @staticmethod
    def forward(ctx, x, y, by, fn):
        ctx.save_for_backward(x)
        ctx.by = by
        return fn(x) * by, x + 1

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return a * ctx.by + b, a * x + 5, None, None


def custom_function(x, y):
    return Scaled.apply(x, y, 2.0, torch.sin)[0].cos()


def two_custom_functions(x, y):
    return sum(Scaled.apply(x * y, y, 3, torch.cos)) + Scaled.apply(y, x, 0.5, torch.exp)[1]


def checkpointed(x, y):
    return checkpoint(lambda a, b: (a * b).sin() * y, x, y, use_reentrant=False)


def conditional(x, y):
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)) * y


def hooked(x, y):
    x = x * 2
    x.register_hook(lambda g: g * 5)
    return x.clone().mul_(y)


def hooked_twice(x, y):
    x.register_hook(lambda g: g + 1)
    z = x * y
    z.register_hook(lambda g: None if g is None else g * 3)
    w = z.sin()
    w.register_hook(lambda g: g * 2)
    return w * z


def differentiated(x, y):
    return torch.autograd.grad((x * x * y).sum(), x, create_graph=True)[0] + x


@pytest.mark.parametrize(
    "backend",
    [lambda gm, inputs: smelt.compile(gm.forward), aot_autograd(fw_compiler=lambda gm, inputs: gm.forward)],
)
@pytest.mark.parametrize(
    "program",
    [custom_function, two_custom_functions, checkpointed, conditional, hooked, hooked_twice, differentiated],
)
def test_backends_that_compile_again(program, backend):
    """smelt, or torch's AOTAutograd, captures the torch-level graph, in which custom functions are single calls."""
    found = []
    for f in (program, smelt.compile(program, backend=backend)):
        x, y = torch.arange(1.0, 4.0).requires_grad_(), torch.full((3,), 0.5, requires_grad=True)
        result = f(x, y)
        found.append((result.detach(), torch.autograd.grad(result.sum(), (x, y))))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", aot_autograd(fw_compiler=lambda gm, inputs: gm.forward)])
def test_a_gradient_retained_inside(backend):
    def f(x, y):
        z = x * y
        z.retain_grad()
        return z.sin(), z

    found = []
    for run in (f, smelt.compile(f, backend=backend)):
        result, z = run(torch.ones(3, requires_grad=True), torch.full((3,), 0.5))
        result.sum().backward()
        found.append(z.grad)
    torch.testing.assert_close(*found)


def hooked_part(x, y):
    a, b = x.mul(2).chunk(2)
    a.register_hook(lambda g: g.clamp(max=0.5))
    return a.exp() * b + y.chunk(2)[0]


def hooked_view_of_an_input(x, y):
    z = x.view(-1)
    z.register_hook(lambda g: g * 3)
    dropped = z.register_hook(lambda g: g * 100)
    dropped.remove()
    return (z.sin() + y.view(-1)).view(2, 2), z


def hooked_and_written(x, y):
    z = x.sin() + y
    w = z.sigmoid()
    z.register_hook(lambda g: g + y.detach())
    with torch.no_grad():
        y.add_(1)
    return w * z, w.detach().add(1)


def hooked_last(x, y):
    z = torch.where(x > 0, x, y)
    z.register_hook(lambda g: None)
    return z


@pytest.mark.parametrize("compile", [lambda gm: gm.forward, lambda gm: smelt.compile(gm.forward), None])
@pytest.mark.parametrize(
    "program", [hooked, hooked_twice, hooked_part, hooked_view_of_an_input, hooked_and_written, hooked_last]
)
def test_graphs_end_behind_tensors_with_hooks(program, compile):
    """Without a graph break: a backend may make each graph one node of autograd (None: AOTAutograd does)."""
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        if compile is not None:
            return compile(gm)
        return aot_autograd(fw_compiler=lambda gm, inputs: gm.forward)(gm, inputs)

    compiled = smelt.compile(program, backend=backend, fullgraph=True)

    def outcome(f):
        torch.manual_seed(0)
        x, y = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True) * 1
        result = f(x, y)
        results = [
            t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)
        ]
        sum((t * (i + 1)).sum() for i, t in enumerate(results) if t.requires_grad).backward()
        return [*map(torch.Tensor.detach, results), x.grad]

    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), outcome(program))
    assert len(graphs) == {hooked_last: 1, hooked_twice: 3}.get(program, 2)


def test_a_hook_under_a_setting_breaks_the_graph():
    def f(x):
        with torch.autocast("cpu"):
            y = x @ x
            y.register_hook(lambda g: g * 2)
        return y.sum()

    compiled = smelt.compile(f, backend=lambda gm, inputs: gm.forward)
    found = []
    for g in (f, compiled):
        x = torch.eye(3, requires_grad=True)
        g(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
    assert "a hook on a tensor that a graph of another backend computes" in str(inspect.reasons(compiled))
