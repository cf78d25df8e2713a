"""Backends by name, and the torch.fx bridge."""

import pytest
import torch
import torch.fx

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
