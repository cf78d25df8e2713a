"""Symbolic tracing on proxies: `smelt.symbolic_trace(module)`, with torch.fx's tracer as the reference."""

import copy
import pickle
import threading

import pytest
import torch
import torch.fx
from torch import nn

import smelt
from smelt import fx


class Block(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.randn(4))
        self.scale = scale

    def forward(self, x, y=None, *, flag=True):
        x = self.linear(self.norm(x)) * self.weight + self.offset
        if flag:
            x = torch.relu(x) * self.scale
        return {"x": x, "pair": (x.sum(dim=0), [x[0], x.shape[0]])}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
        self.block = Block()

    def forward(self, x):
        out = self.block(self.blocks(x))
        a, b = out["pair"]
        return a + b[0], out["x"].mean()


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_graph_is_that_of_torch_fx():
    net = Net()
    ours, theirs = smelt.symbolic_trace(net), torch.fx.symbolic_trace(net)
    assert ours.code == theirs.code
    assert [n.format_node() for n in ours.graph.nodes] == [n.format_node() for n in theirs.graph.nodes]
    x = torch.randn(2, 3)
    same(ours(x), net(x))
    assert isinstance(ours, smelt.GraphModule) and isinstance(ours, torch.fx.GraphModule)


@pytest.mark.parametrize(
    "concrete", [{"flag": False}, {"flag": True, "y": None}, {"flag": True, "x": fx.PH}], ids=str
)
def test_concrete_arguments(concrete):
    block = Block()
    ours, theirs = (trace(block, concrete) for trace in (smelt.symbolic_trace, torch.fx.symbolic_trace))
    assert ours.code == theirs.code


def test_nested_concrete_arguments():
    def program(values, scale=2):
        return {name: value * scale for name, value in values.items()}, len(values)

    traced = smelt.symbolic_trace(program, {"values": {"a": fx.PH, "b": fx.PH}})
    args = {"a": torch.ones(2), "b": torch.zeros(2)}, 3
    assert str(traced(*args)) == str(program(*args))


def test_a_changed_concrete_argument_is_an_error():
    traced = smelt.symbolic_trace(lambda x, n: x * n, {"n": 3})
    same(traced(torch.ones(2), 3), torch.full((2,), 3.0))
    with pytest.raises(AssertionError, match="n has been specialized to have value 3"):
        traced(torch.ones(2), 4)


def needs_truth(x):
    if x.sum() > 0:
        return x
    return -x


def needs_length(x):
    return x * len(x)


def needs_items(x):
    return sum(row.sum() for row in x)


def needs_range(x):
    for i in range(x.shape[0]):
        x = x + i
    return x


def needs_number(x):
    return x * float(x.sum())


def needs_starred(x):
    first, *rest = x
    return first


@pytest.mark.parametrize(
    "program, what",
    [
        (needs_truth, "inputs to control flow"),
        (needs_length, "'len' is not supported"),
        (needs_items, "cannot be iterated"),
        (needs_range, "cannot be an index"),
        (needs_number, "cannot become a float"),
        (needs_starred, "starred target"),
    ],
)
def test_an_error_names_the_line_and_what_to_do(program, what):
    line = program.__code__.co_firstlineno + 1
    with pytest.raises(fx.TraceError, match=what) as caught:
        smelt.symbolic_trace(program)
    assert f"{__file__}:{line} in " in str(caught.value)
    assert "example_inputs" in str(caught.value) and "smelt.fx.wrap" in str(caught.value)
    assert isinstance(caught.value, (torch.fx.proxy.TraceError, smelt.errors.SmeltError))


def test_a_failed_trace_leaves_modules_as_they_were():
    before = nn.Module.__call__, nn.Module.__getattr__
    with pytest.raises(fx.TraceError):
        smelt.symbolic_trace(needs_truth)
    assert (nn.Module.__call__, nn.Module.__getattr__) == before
    assert not torch.fx._symbolic_trace.is_fx_tracing()


def test_other_threads_call_modules_while_one_traces():
    other, found = nn.Linear(2, 2), []

    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            thread = threading.Thread(target=lambda: found.append(other(torch.ones(2))))
            thread.start()
            thread.join()
            return self.inner(x)

    traced = smelt.symbolic_trace(Waits())
    same(found[0], other(torch.ones(2)))
    assert [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "output"]


@fx.wrap
def leaf_function(x, n):
    return x * len(x.shape) * n


def test_leaves():
    def program(x):
        return leaf_function(x, 2) + 1

    traced = smelt.symbolic_trace(program)
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"][0] is leaf_function
    same(traced(torch.ones(2, 2)), program(torch.ones(2, 2)))
    net = Net()
    called = lambda gm: [n.target for n in gm.graph.nodes if n.op == "call_module"]  # noqa: E731
    assert called(smelt.symbolic_trace(nn.Sequential(net), leaves=[Net])) == ["0"]
    assert called(smelt.symbolic_trace(net, leaves=lambda m, path: path == "blocks"))[0] == "blocks"
    assert "call_module" not in {n.op for n in smelt.symbolic_trace(net.blocks, leaves=()).graph.nodes}
    with pytest.raises(smelt.errors.OptionError, match="leaves must be classes"):
        smelt.symbolic_trace(net, leaves=["blocks"])


def test_copies_and_pickles():
    net, x = Net(), torch.randn(2, 3)
    traced = smelt.symbolic_trace(net)
    for made in (copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        same(made(x), net(x))
        assert made.code == traced.code
        assert type(made.graph) is fx.Graph


def test_the_table_needs_no_library(capsys):
    smelt.symbolic_trace(lambda x: torch.relu(x)).graph.print_tabular()
    assert capsys.readouterr().out.split()[:5] == ["opcode", "name", "target", "args", "kwargs"]


def test_a_tracer_of_ones_own():
    class Halves(fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Block)

        def to_bool(self, obj):
            return True

    net = Net()
    graph = Halves().trace(net)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["block"]
    assert [n.target for n in Halves().trace(needs_truth).nodes if n.op == "output"] == ["output"]


@pytest.mark.parametrize("value", [torch.relu, "module", 3])
def test_what_is_no_program(value):
    with pytest.raises((fx.NotTraceable, TypeError), match="a Python function or an nn.Module can be traced"):
        smelt.symbolic_trace(value)


def test_options_that_need_example_inputs():
    with pytest.raises(smelt.errors.OptionError, match="dynamic needs example_inputs"):
        smelt.symbolic_trace(Net(), dynamic=True)
    with pytest.raises(smelt.errors.OptionError, match="exclude each other"):
        smelt.symbolic_trace(Net(), {"x": 1}, example_inputs=(torch.ones(2, 3),))
    with pytest.raises(smelt.errors.OptionError, match="must be a tuple"):
        smelt.symbolic_trace(Net(), example_inputs=torch.ones(2, 3))
