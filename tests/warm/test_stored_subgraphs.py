"""Entries with graphs inside of graphs are found by a second process."""

import pytest

from tests.harness.inner_graphs import REFUSED
from tests.warm.test_second_process import process

pytestmark = pytest.mark.skipif(
    REFUSED, reason="torch.cond calls torch.compile there, which breaks the graph"
)

PROGRAMS = """
import json, sys
import torch
from torch import nn
from torch._higher_order_ops import while_loop
import smelt

torch.manual_seed(0)
first, second = nn.Linear(4, 4), nn.Linear(4, 4)
scale = torch.rand(4)

def chosen(x):
    return torch.cond(x.sum() > 0, lambda a: first(a).exp() * scale, lambda a: second(a) @ a.t() @ a, (x,))

def looped(x):
    return while_loop(lambda i, a: a.sum() < 60, lambda i, a: (i + 1, a * 2 + scale), (torch.tensor(0), x))

def sized(x, y):
    z = torch.cond(y.sum() > 0, lambda a: (a @ a).sin(), lambda a: a.cumsum(0) @ a, (y,))
    return x * 2 + z[0]

X = torch.rand(4, 4)

def main():
    outcome = {}
    with torch.no_grad():
        for f in (chosen, looped):
            c = smelt.compile(f, fullgraph=True)
            outcome[f.__name__] = [[t.tolist() for t in torch.utils._pytree.tree_leaves(c(x))] for x in (X, -X / 9)]
        c = smelt.compile(sized, fullgraph=True, dynamic=True)
        outcome["sized"] = [c(torch.ones(n, 4), X).tolist() for n in (3, 5)]
    c = smelt.compile(chosen, fullgraph=True)
    for x in (X, -X):
        given = x.clone().requires_grad_()
        c(given).square().sum().backward()
        outcome[f"gradients {x.sum() > 0}"] = [given.grad.tolist(), first.weight.grad.tolist()]
    if sys.argv[1:]:
        given = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(c(given).square().sum(), given, create_graph=True)
        outcome["second"] = torch.autograd.grad(gradient.sum(), given)[0].tolist()
    compiler = ("smelt.capture", "smelt.tracing", "smelt.codegen", "llvmlite")
    print(json.dumps([outcome, [m for m in sys.modules if m.startswith(compiler)]]))
"""


def test_a_second_process(tmp_path):
    first, imported = process(tmp_path, PROGRAMS)
    assert imported
    again, imported = process(tmp_path, PROGRAMS)
    assert again == first and not imported


def test_second_derivatives_replay_the_graph(tmp_path):
    first, _ = process(tmp_path, PROGRAMS, arguments=("second",))
    again, _ = process(tmp_path, PROGRAMS, arguments=("second",))
    assert again == first and "second" in first
