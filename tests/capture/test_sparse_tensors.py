"""Sparse and quantized tensors: operators on them run at a graph break, all others are compiled."""

import pytest
import torch
from torch import nn

import smelt
from smelt.report.inspect import graph_count, records
from tests.harness.agreement import check_no_failure

torch.manual_seed(0)
X = torch.randn(4, 4)
COO, CSR = X.relu().to_sparse(), X.relu().to_sparse_csr()
QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


class Convolution(nn.Module):
    """A layer of a graph network: its buffer is sparse."""

    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", COO)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(self.adjacency @ (x * 2))).sum(0)


def multiplied(s, x):
    y = x * 2
    return torch.sparse.mm(s, y) + 1


def metadata(s, x):
    return s.shape, s.dtype, s.layout, s.is_sparse, s.ndim, len(s), s is s, torch.is_tensor(s), [x * 2, s]


def parts(s, x):
    s = s.coalesce()
    return s.to_dense() * x, s.values() * 2, s.indices().sum(), s._nnz(), s.is_coalesced(), s.size(0)


def made_inside(s, x):
    own = (x.relu() * 2).to_sparse()
    return torch.sparse.mm(own, x + 1) * 3, own * 2


def written(s, x):
    s = s.clone()
    s.mul_(2)
    s.tag = 3
    return x * s.tag, s.sum() > 0, s.grad


def in_a_handler(s, x):
    try:
        return s + x[0], x
    except RuntimeError as error:
        return str(error), x * 2


def dequantized(q, x):
    return q.dequantize() * x + q.q_scale(), q.dtype, q.int_repr().sum()


def agree(got, want):
    if isinstance(want, torch.Tensor):
        assert (
            type(got) is type(want) and got.layout == want.layout and got.requires_grad == want.requires_grad
        )
        got, want = (t.dequantize() if t.is_quantized else t.to_dense() for t in (got, want))
        torch.testing.assert_close(got, want)
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want):
            agree(g, w)
    else:
        assert got == want


@pytest.mark.parametrize(
    "fn, odd, graphs",
    [
        (multiplied, COO, 2),
        (multiplied, CSR, 2),
        (multiplied, COO.detach().requires_grad_(), 2),
        (metadata, COO, 1),
        (parts, COO, 3),
        (made_inside, COO, 3),
        (written, COO, 2),
        (in_a_handler, CSR, 2),
        (dequantized, QUANTIZED, 3),
    ],
)
def test_graphs_around(fn, odd, graphs):
    compiled = smelt.compile(fn)
    for x in (X, X + 1, X.clone().requires_grad_()):
        agree(compiled(odd, x), fn(odd, x))
        check_no_failure(compiled)
    assert not any(record.reasons for _, record in records(compiled))
    smelt.reset()  # equal compilations share their graphs
    first = smelt.compile(fn)
    first(odd, X)
    assert graph_count(first) == graphs


def test_a_buffer_of_a_module():
    module = Convolution()
    compiled = smelt.compile(module)
    for _ in range(2):
        module.zero_grad()
        want = module(X)
        want.sum().backward()
        wanted = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        got = compiled(X)
        got.sum().backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close([p.grad for p in module.parameters()], wanted)
    assert graph_count(compiled) == 2


def test_the_layout_is_guarded():
    def fn(s, x):
        return s * x if s.layout is torch.strided else torch.sparse.mm(s, x)

    compiled = smelt.compile(fn)
    for s in (COO, X, CSR, X, COO):
        agree(compiled(s, X), fn(s, X))


def test_sparse_gradients():
    def run(compile):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        step = compile(optimizer.step)
        for i in range(3):
            optimizer.zero_grad()
            table(torch.tensor([i, i + 3, i])).sum().backward()
            step()
        return table.weight.detach()

    torch.testing.assert_close(run(smelt.compile), run(lambda fn: fn))
