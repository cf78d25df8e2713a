"""Graphs that are edited, rewritten, transformed and described."""

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.passes.shape_prop import ShapeProp as TorchShapeProp

import smelt
from smelt import fx


def test_nodes_are_inserted_replaced_and_erased():
    gm = smelt.symbolic_trace(lambda x: torch.relu(x + 1))
    [relu] = gm.graph.find_nodes(op="call_function", target=torch.relu)
    with gm.graph.inserting_after(relu):
        new = gm.graph.call_function(torch.tanh, relu.args)
    relu.replace_all_uses_with(new)
    gm.graph.erase_node(relu)
    gm.graph.lint()
    gm.recompile()
    x = torch.randn(3)
    assert torch.equal(gm(x), torch.tanh(x + 1))


def test_a_pattern_is_replaced_wherever_it_is():
    class M(nn.Module):
        def forward(self, x, y):
            return torch.sigmoid(x) * x + (torch.sigmoid(y) * y).sum()

    gm = smelt.symbolic_trace(M())
    matches = fx.replace_pattern(gm, lambda a: torch.sigmoid(a) * a, lambda a: nn.functional.silu(a))
    assert len(matches) == 2
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"].count(nn.functional.silu) == 2
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(gm(x, y), M()(x, y))


def test_patterns_of_a_captured_graph():
    def program(x):
        for _ in range(x.shape[0]):
            x = torch.exp(x).log()
        return x

    gm = smelt.symbolic_trace(program, example_inputs=(torch.ones(3),))
    assert len(fx.replace_pattern(gm, lambda a: torch.exp(a).log(), lambda a: a)) == 3
    x = torch.tensor([1.0, 1000.0, -1.0])
    assert torch.equal(gm(x), x)


def test_a_transformer_gives_another_graph():
    class NegForSigmoid(fx.Transformer):
        def call_function(self, target, args, kwargs):
            return super().call_function(torch.neg if target is torch.sigmoid else target, args, kwargs)

    net = nn.Sequential(nn.Linear(2, 2))
    gm = smelt.symbolic_trace(lambda x: torch.sigmoid(x) + 1)
    x = torch.randn(2)
    assert torch.equal(NegForSigmoid(gm).transform()(x), -x + 1)
    kept = fx.Transformer(smelt.symbolic_trace(net)).transform()
    assert torch.equal(kept(x), net(x)) and type(kept.graph) is fx.Graph


def test_an_interpreter_runs_node_by_node():
    seen = []

    class Names(fx.Interpreter):
        def run_node(self, n):
            seen.append(n.name)
            return super().run_node(n)

    gm = smelt.symbolic_trace(lambda x: x.relu() + 1)
    assert torch.equal(Names(gm).run(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == ["x", "relu", "add", "output"]


def test_dead_code_keeps_writes():
    def program(x):
        y = x + 1
        y[0].mul_(3)
        y[1] = 0.0
        torch.sin(x)
        return y

    gm = smelt.symbolic_trace(program)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    assert torch.equal(gm(torch.ones(3)), program(torch.ones(3)))
    assert torch.sin not in [n.target for n in gm.graph.nodes]


def test_shapes_are_those_that_torch_computes():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )
    x = torch.randn(2, 3, 8, 8)
    ours, theirs = smelt.symbolic_trace(net), torch.fx.symbolic_trace(net)
    before = net[1].running_mean.clone()
    fx.ShapeProp(ours).propagate(x)
    assert torch.equal(net[1].running_mean, before)  # nothing ran
    with torch.no_grad():
        TorchShapeProp(theirs).propagate(x)
    for a, b in zip(ours.graph.nodes, theirs.graph.nodes, strict=True):
        found, wanted = a.meta["tensor_meta"], b.meta["tensor_meta"]
        assert (found.shape, found.dtype, found.stride) == (wanted.shape, wanted.dtype, wanted.stride)
        assert a.meta["spec"].shape == tuple(wanted.shape)


def test_there_and_back():
    def program(x, y):
        parts = torch.split(x, 2)
        return parts[0] * y + parts[1], torch.cat([x, x], dim=0)

    args = torch.randn(4, 2), torch.randn(2)
    trace = smelt.trace(program)(*args)
    for view in (trace.torch, trace.aten):
        back = fx.from_fx(view.to_fx())
        assert back.graph.level == view.graph.level
        for ours, wanted in zip(back(*args), program(*args), strict=True):
            assert torch.equal(ours, wanted)
        assert [n.name for n in back.nodes] == [n.name for n in view.nodes]


def test_what_cannot_be_smelts_graph():
    with pytest.raises(smelt.errors.SmeltError, match="calls the module 0.*leaves=()"):
        fx.from_fx(smelt.symbolic_trace(nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(smelt.errors.SmeltError, match="nested or plain"):
        fx.from_fx(smelt.symbolic_trace(lambda x: {"a": x}))
