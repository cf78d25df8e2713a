"""`torch.compiler.set_stance`."""

import pytest
import torch

import smelt
from smelt.errors import OptionError
from smelt.report.inspect import entries

set_stance = torch.compiler.set_stance


def shifted(x):
    return x + (1 if torch.compiler.is_compiling() else 0)


def broken(x):
    x = shifted(x) * 2
    smelt.graph_break()
    return shifted(x)


def generated(x):
    yield shifted(x)
    yield shifted(x) * 2


class Module(torch.nn.Module):
    def forward(self, x):
        return shifted(x)


def results(f, x):
    found = f(x)
    return torch.stack(list(found)) if hasattr(found, "send") else found


@pytest.mark.parametrize("program", [shifted, broken, generated, Module()])
def test_everything_runs_eagerly_while_forced(program):
    compiled, x = smelt.compile(program), torch.ones(2)
    expected = results(program, x)
    before = results(compiled, x)
    assert not torch.equal(before, expected)
    with set_stance("force_eager"):
        assert torch.equal(results(compiled, x), expected)
        new = smelt.compile(program)
        assert torch.equal(results(new, x), expected)
        with set_stance("default"):
            assert torch.equal(results(compiled, x), before)
        assert torch.equal(results(compiled, x), expected)
    assert torch.equal(results(compiled, x), before)
    assert torch.equal(results(new, x), before)


def test_as_a_decorator_and_as_a_function():
    compiled, x = smelt.compile(shifted), torch.zeros(2)
    eagerly = set_stance("force_eager")(lambda: compiled(x))
    assert compiled(x).sum() == 2 and eagerly().sum() == 0 and compiled(x).sum() == 2
    set_stance("force_eager")
    try:
        assert compiled(x).sum() == 0
    finally:
        set_stance("default")
    assert compiled(x).sum() == 2


def test_no_recompiles():
    compiled, x, double = smelt.compile(shifted), torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    with set_stance("eager_on_recompile"):
        assert compiled(x).sum() == 0
    assert compiled(x).sum() == 2
    with set_stance("eager_on_recompile"):
        assert compiled(x).sum() == 2 and compiled(double).sum() == 0
    with set_stance("fail_on_recompile"):
        assert compiled(x).sum() == 2
        with pytest.raises(
            RuntimeError, match="Detected recompile when torch.compile stance is .*\n.*float64"
        ):
            compiled(double)
        with pytest.raises(RuntimeError, match="Detected recompile"):
            smelt.compile(lambda x: shifted(x))(x)
    assert len(entries(compiled)) == 1
    assert compiled(double).sum() == 2


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_first_call_is_eager(stance):
    compiled, x = smelt.compile(shifted), torch.zeros(2)
    with set_stance(stance):
        assert [int(compiled(x).sum()) for _ in range(3)] == [0, 2, 2]
        assert compiled(torch.zeros(3)).sum() == 3


def test_gradients_and_effects_while_forced():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    compiled, x = smelt.compile(model), torch.ones(4, 3)
    found = []
    for f in (model, compiled):
        torch.manual_seed(0)
        model.zero_grad()
        with set_stance("force_eager"):
            f(x).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *found))


def recording(graphs):
    """A backend that records its graphs, and runs them as they are."""

    def backend(graph, inputs):
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    return backend


class Callable:
    def __call__(self, x):
        return shifted(x) * 3


@pytest.mark.parametrize("program", [shifted, broken, generated, Module(), Callable()])
@pytest.mark.parametrize("own", ["smelt", "eager"])
def test_a_backend_is_forced(program, own):
    graphs, x = [], torch.ones(2)
    backend = recording(graphs)
    compiled = smelt.compile(program, backend=own)
    expected = results(compiled, x)
    with set_stance(force_backend=backend):
        for _ in range(2):
            assert torch.equal(results(compiled, x), expected)
            assert len(graphs) == (2 if program in (broken, generated) else 1)
    assert torch.equal(results(compiled, x), expected)
    with set_stance(force_backend=backend):
        assert torch.equal(results(compiled, x), expected)
        assert torch.equal(results(compiled, torch.ones(2, dtype=torch.float64)), expected.double())
        with set_stance("force_eager"):
            assert torch.equal(results(compiled, x), results(program, x))
    assert len(graphs) == (4 if program in (broken, generated) else 2)


def test_a_forced_backend_by_name():
    compiled, x = smelt.compile(shifted, backend="eager"), torch.ones(2)
    kinds = []
    for backend in ("eager", "smelt", "inductor"):
        with set_stance(force_backend=backend), torch.no_grad():
            assert compiled(x).sum() == 4
        kinds.append(len(entries(compiled)))
    assert kinds == [1, 1, 1]
    with set_stance(force_backend="smelt"):
        model = torch.nn.Linear(2, 2)
        torch.testing.assert_close(smelt.compile(model)(x), model(x))
    with set_stance(force_backend="no such backend"), pytest.raises(OptionError, match="no such backend"):
        compiled(x)
    assert compiled(x).sum() == 4


def test_another_tracer_sees_through_a_forced_backend():
    compiled, x = smelt.compile(shifted), torch.ones(2)
    with set_stance(force_backend="eager"):
        traced = torch.fx.symbolic_trace(compiled)
        assert len(traced.graph.nodes) == 3
        assert torch.equal(torch.vmap(compiled)(x), x)


def test_forced_backends_are_forgotten():
    """Each made in place, as a loop over backends does, and not hashable."""

    class Backend:
        __hash__ = None

        def __call__(self, graph, inputs):
            return graph.forward

    compiled = smelt.compile(shifted)
    for _ in range(20):
        with set_stance("default", force_backend=Backend()):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(compiled._smelt_by_backend) <= 8
