"""Graphs with symbols, at numbers."""

from __future__ import annotations

import pytest
import torch

from smelt.graph.free_symbols import graphs_in, symbols_in, symbols_of_arguments
from smelt.graph.graph_interpreter import run
from smelt.graph.graph_printer import table
from smelt.graph.ir import Graph, Node, copy_at
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import RUN_GRAPHS, Choice, Inner
from smelt.graph.verify_graph import verify
from smelt.shapes.substitute import substitute
from tests.harness.symbolic import S0, S1, symbolic
from tests.harness.traced import traced


def program(x):
    y = x[:, None].expand(-1, 3, -1).reshape(-1, x.shape[1])
    top, places = y.max(0)
    return y.view(x.shape[0], -1), top, places, x.new_zeros(2, x.shape[1])


def test_the_sizes_of_the_trace_give_its_graph():
    x = torch.randn(101, 211)
    fixed, _ = traced(program, x)
    graph, _ = symbolic(program, x)
    made = substitute(graph, {S0: 101, S1: 211})
    assert table(made) == table(fixed) != table(graph)
    assert [n.spec for n in made] == [n.spec for n in fixed]


@pytest.mark.parametrize("s, t", [(2, 2), (3, 7), (50, 4)])
def test_other_sizes(s, t):
    graph, _ = symbolic(program, torch.randn(101, 211))
    before = table(graph)
    made, copy_of = copy_at(graph, {S0: s, S1: t})
    verify(made, functional=True)
    assert [copy_of[n] for n in graph] == made.nodes and table(graph) == before
    x = torch.randn(s, t)
    for got, want, node in zip(run(made, [x]), program(x), made.output.args[0]):
        assert torch.equal(got, want) and tuple(node.spec.shape) == tuple(want.shape)


def test_symbols_of_arguments():
    graph, _ = symbolic(program, torch.randn(101, 211))
    assert symbols_of_arguments(graph) == {S0, S1}
    graph, _ = symbolic(lambda x: x.t() @ x, torch.randn(101, 211))
    assert symbols_of_arguments(graph) == frozenset()


def calling(inside: Graph) -> Graph:
    """A graph with another one inside."""
    graph = Graph("aten")
    handle = Handle.of(Inner(Choice(), [inside, inside]))
    graph.nodes = [Node("call_function", RUN_GRAPHS, (handle, []), {}, "call", ())]
    return graph


def test_sizes_of_graphs_inside():
    graph, _ = symbolic(program, torch.randn(101, 211))
    for outer in (calling(graph), calling(calling(graph))):
        assert {*symbols_in(outer)} == symbols_of_arguments(outer) == {S0, S1}
        made = substitute(outer, {S0: 4, S1: 6})
        assert not {*symbols_in(made)} and {*symbols_in(outer)} == {S0, S1}
        inside = graphs_in(made.nodes[0].args[0])
        while inside[0].nodes[0].target is RUN_GRAPHS:
            inside = graphs_in(inside[0].nodes[0].args[0])
        x = torch.randn(4, 6)
        assert all(map(torch.equal, run(inside[1], [x]), program(x)))


def test_graphs_inside_without_symbols_stay():
    fixed, _ = traced(program, torch.randn(4, 6))
    outer = calling(fixed)
    assert substitute(outer, {S0: 4}).nodes[0].args[0] is outer.nodes[0].args[0]
