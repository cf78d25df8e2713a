"""What a trace of torch.profiler shows of graphs on the simulated GPU."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import smelt
from smelt.user_lines import location
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


def fn(x):
    return torch.sin(x) * 2 + x.sum(1, keepdim=True)


LINE = fn.__code__.co_firstlineno
GRAPH = f"smelt graph fn ({location(__file__, LINE)})"


def recorded(call):
    """Smelt's events of a call, each with the one that it is in."""
    with profile(activities=[ProfilerActivity.CPU]) as made:
        call()
    return [
        (e.name, e.cpu_parent.name if e.cpu_parent else "")
        for e in made.events()
        if e.name.startswith("smelt")
    ]


def test_launches_are_within_their_graph():
    compiled, x = smelt.compile(fn), torch.randn(4, 5, device="cuda")
    compiled(x)
    (graph, around), *kernels = recorded(lambda: compiled(x))
    assert (graph, around) == (GRAPH, "") and kernels
    for name, around in kernels:
        assert around == GRAPH and name.endswith(f" ({location(__file__, LINE + 1)})")


def test_a_graph_that_is_replayed_is_one_event():
    compiled, x = smelt.compile(fn, options={"cuda_graphs": True}), torch.randn(4, 5, device="cuda")
    for _ in range(4):
        compiled(x)
    before = cuda.Graph.replays
    found = recorded(lambda: compiled(x))
    assert cuda.Graph.replays == before + 1
    assert found == [(GRAPH, "")]


def test_launches_that_are_one_are_one_event():
    def update(parameters, gradients):
        for p, g in zip(parameters, gradients):
            p.sub_(torch.sin(g) * 0.1)

    compiled = smelt.compile(update)
    tensors = [[torch.randn(n, device="cuda") for n in (100, 200, 300)] for _ in range(2)]
    compiled(*tensors)
    [_, (name, _)] = recorded(lambda: compiled(*tensors))
    assert name.endswith(f" and 2 more ({location(__file__, update.__code__.co_firstlineno + 2)})")
