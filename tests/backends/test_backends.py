"""Backends by name, and the torch.fx bridge."""

import pytest
import torch
import torch.fx

from smelt import config
from smelt.backends import registry
from smelt.backends.dynamo import compile_fx
from smelt.errors import OptionError
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
    for got, want in zip(registry.lookup(name)(traced, config.DEFAULT)(inputs), model(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "smelt"])
def test_gradients(name):
    model, x, traced, inputs = traced_model(grad=True)
    assert traced.needs_grad
    registry.lookup(name)(traced, config.DEFAULT)(inputs)[0].sum().backward()
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

    for got, want in zip(registry.lookup(backend)(traced, config.DEFAULT)(inputs), model(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert [n.target for n in seen[0].graph.nodes if n.op == "call_function"][:1] == [torch._C._nn.linear]


def test_names():
    assert {"smelt", "eager", "aot_eager"} <= set(registry.list_backends())
    with pytest.raises(OptionError, match="did you mean 'eager'"):
        registry.lookup("eagre")
    with pytest.raises(OptionError, match="already"):
        registry.register_backend(lambda gm, x: gm, name="smelt")


def test_torch_compile_with_the_smelt_backend():
    model, x = Model(), torch.randn(5, 4)
    gm = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        for got, want in zip(compile_fx(gm, [x])(x), model(x)):
            torch.testing.assert_close(got, want)
    compile_fx(gm, [x])(x)[0].sum().backward()
    assert model.linear.weight.grad is not None
