"""`smelt.compile(backend=..., operators=...)`: a backend of the user receives graphs in the operators of a set."""

import operator

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import OptionError
from smelt.report import inspect
from smelt.tracing.operator_sets import SETS, is_member

aten = torch.ops.aten


class Backend:
    """A backend that runs graphs unchanged and records their operators."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        for node, example in zip(gm.graph.find_nodes(op="placeholder"), example_inputs):
            assert node.meta["example_value"].shape == example.shape
        return gm.forward

    @property
    def called(self):
        return {target for graph in self.graphs for target in graph} - {operator.getitem}


def agree(fn, backend, operators, *args, **options):
    compiled = smelt.compile(fn, backend=backend, operators=operators, **options)
    mine, wanted = ([a.clone() for a in args] for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(compiled(*mine), fn(*wanted))
        torch.testing.assert_close(mine, wanted)
    assert not inspect.reasons(compiled)
    return compiled


def normalized(x):
    return nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1).mean(), nn.functional.gelu(x).T


def written(x):
    x.mul_(2).add_(1)
    return nn.functional.silu(x)


@pytest.mark.parametrize("operators", SETS)
@pytest.mark.parametrize("fn", [normalized, written])
def test_graphs_have_the_operators_of_the_set(fn, operators):
    backend = Backend()
    agree(fn, backend, operators, torch.randn(3, 5))
    (graph,) = backend.graphs
    assert all(is_member(op, operators) or op is aten.copy_.default for op in backend.called)
    assert any(op.namespace == ("prims" if operators == "prims" else "aten") for op in backend.called)


@pytest.mark.parametrize("operators", SETS)
def test_forward_and_backward_are_graphs_of_the_set(operators):
    torch.manual_seed(0)
    model, backend = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 2)), Backend()
    x = torch.randn(3, 4, requires_grad=True)
    compiled = smelt.compile(model, backend=backend, operators=operators)
    inputs = (x, *model.parameters())
    got, wanted = (
        [call(x), *torch.autograd.grad(call(x).square().sum(), inputs)] for call in (compiled, model)
    )
    torch.testing.assert_close(got, wanted)
    assert len(backend.graphs) == 2
    assert all(is_member(op, operators) for op in backend.called)
    assert not backend.called & {aten.gelu.default, aten.gelu_backward.default} or operators == "core"


def test_other_sizes_are_other_graphs():
    backend = Backend()
    compiled = smelt.compile(
        lambda x: x.softmax(0) * x.shape[0], backend=backend, operators="prims", dynamic=True
    )
    for n in (3, 4, 3):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x.softmax(0) * n)
    assert len(backend.graphs) == 2


def test_a_registered_backend_takes_them():
    backend = Backend()
    smelt.register_backend(backend, name="of prims")
    agree(normalized, "of prims", "prims", torch.randn(2, 3))
    agree(normalized, "of prims", None, torch.randn(2, 3))
    of_prims, of_program = backend.graphs
    assert {op.namespace for op in of_prims} >= {"prims"}
    assert nn.functional.layer_norm in of_program


def test_a_graph_without_calls_calls_no_backend():
    backend = Backend()
    agree(lambda x: (x, 1), backend, "core", torch.ones(2))
    assert backend.graphs == []


def test_wrong_arguments_raise():
    with pytest.raises(OptionError, match="one of 'core', 'prims', got 'aten'"):
        smelt.compile(normalized, backend=Backend(), operators="aten")
    for backend in ("smelt", "eager", "aot_eager"):
        with pytest.raises(OptionError, match="for custom backends"):
            smelt.compile(normalized, backend=backend, operators="core")
