"""Graphs print as Python programs that run, and as tables; the verifier sees what is wrong with one."""

import operator

import pytest
import torch

from smelt.errors import VerificationError
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.graph_interpreter import run
from smelt.graph.graph_passes import eliminate_common, eliminate_dead
from smelt.graph.graph_printer import code, table
from smelt.graph.ir import Graph, Line, Node
from smelt.graph.verify_graph import verify
from tests.harness.traced import trace


def program(x, w):
    y = torch.nn.functional.linear(x, w).softmax(-1)
    top, where = y.max(dim=-1)
    y[:, 0] = -float("inf")
    return top, y.clamp(min=0.1)[..., None, 1:], where + torch.tensor([1, 2])


@pytest.mark.parametrize("level", ["torch_graph", "aten_graph"])
def test_code_runs(level):
    inputs = [torch.randn(2, 3), torch.randn(4, 3)]
    _, traced = trace(program, inputs)
    graph = getattr(traced, level)
    verify(graph, functional=level == "aten_graph")
    scope = {}
    exec(code(graph), scope)
    for got, want, also in zip(scope["forward"](*inputs), program(*inputs), GraphFunction(graph)(*inputs)):
        assert torch.equal(got, want) and torch.equal(also, want)
    assert len(run(graph, inputs)) == 3


def test_an_overload_whose_name_is_a_keyword():
    _, traced = trace(lambda x: x.random_(2, 3), [torch.empty(4)])
    x = torch.zeros(4)
    GraphFunction(traced.aten_graph)(x)
    assert torch.equal(x, torch.full((4,), 2.0))


def test_lines_are_comments():
    _, traced = trace(lambda x: x + 1, [torch.randn(2)])
    traced.torch_graph.nodes[1].line = Line("model.py", 12, "forward")
    assert "# model.py:12 in forward" in code(traced.torch_graph)
    assert "float32[2]" in code(traced.torch_graph)


def test_table(capsys):
    _, traced = trace(lambda x: x + 1, [torch.randn(2)])
    print(table(traced.aten_graph))
    assert "torch.ops.aten.add.Tensor" in capsys.readouterr().out


def small_graph():
    x = Node("placeholder", "x", (), {}, "x")
    y = Node("call_function", torch.ops.aten.sin.default, (x,), {}, "y")
    z = Node("call_function", torch.ops.aten.sin.default, (x,), {}, "z")
    s = Node("call_function", torch.ops.aten.add.Tensor, (y, z), {}, "s")
    dead = Node("call_function", torch.ops.aten.cos.default, (x,), {}, "dead")
    graph = Graph("aten")
    graph.nodes = [x, y, z, s, dead, Node("output", "output", ((s,),), {}, "output")]
    return graph


def test_passes():
    graph = small_graph()
    verify(graph)
    assert eliminate_dead(graph) == 1
    assert eliminate_common(graph) == 1
    verify(graph)
    assert [n.name for n in graph] == ["x", "y", "s", "output"]


def test_returned_values_are_not_joined():
    _, traced = trace(lambda x: (x.sin(), x.sin().t()), [torch.randn(2, 2)])
    assert eliminate_common(traced.aten_graph) == 0


def test_random_operators_stay():
    _, traced = trace(lambda x: (torch.rand(2), x + torch.rand(2), torch.rand(3))[1], [torch.randn(2)])
    assert [str(n.target) for n in traced.aten_graph].count("aten.rand.default") == 3


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda g: g.nodes.pop(), "output"),
        (lambda g: g.nodes.insert(0, g.nodes.pop(3)), "placeholders come first"),
        (lambda g: g.nodes.insert(1, g.nodes.pop(3)), "does not stand before"),
        (lambda g: setattr(g.nodes[1], "name", "s"), "two nodes"),
        (lambda g: setattr(g.nodes[1], "name", "1x"), "identifier"),
        (lambda g: setattr(g.nodes[1], "target", operator.add), "ATen"),
    ],
)
def test_verifier(damage, message):
    graph = small_graph()
    damage(graph)
    with pytest.raises(VerificationError, match=message):
        verify(graph)
