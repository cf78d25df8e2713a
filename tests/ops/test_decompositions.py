"""A decomposed graph computes what the original does, in the same layout."""

import pytest
import torch
import torch.nn.functional as F

from smelt.graph.interpreter import run
from smelt.graph.verify import verify
from smelt.ops.decompositions import table
from smelt.trace.decompose import decompose
from tests.harness.traced import trace

PROGRAMS = {
    "elu": lambda x: F.elu(x),
    "mish": lambda x: F.mish(x.t()),
    "softplus": lambda x: F.softplus(x, beta=2),
    "hardsigmoid": lambda x: F.hardsigmoid(x) + F.hardtanh(x),
    "glu": lambda x: F.glu(x, 0),
    "mse_loss": lambda x: F.mse_loss(x, x * 2) + F.smooth_l1_loss(x, x + 3),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "std": lambda x: torch.std(x, 0) + torch.var_mean(x, 1)[0],
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1) + x.norm(),
    "logsumexp": lambda x: x.logsumexp(0),
    "tril": lambda x: x.tril() + x.triu(1),
    "written": lambda x: x.add_(F.elu(x)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_same_values(program):
    x = torch.randn(4, 4)
    _, traced = trace(program, [x])
    graph = decompose(traced.aten_graph, table())
    verify(graph, functional=True)
    (want,) = run(traced.aten_graph, [x.clone()])
    (got,) = run(graph, [x.clone()])
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, check_stride=True)
    assert not [n for n in graph if n.target in table()]


def test_excluded_operators_stay():
    _, traced = trace(lambda x: F.elu(x), [torch.randn(4)])
    excluded = {torch.ops.aten.elu.default}
    assert decompose(traced.aten_graph, table(excluded)) is traced.aten_graph
