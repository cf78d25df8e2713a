"""Graphs lowered to core ATen or prims: their operators are members, and they compute what eager does."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.errors import OptionError, SmeltError
from smelt.graph.verify_graph import verify
from smelt.tracing.operator_sets import SETS, is_member


def rand(*shape):
    return torch.rand(shape) + 0.5


PROGRAMS = {
    "activations": lambda x, w: sum(
        f(x) for f in (F.gelu, F.silu, F.elu, F.hardswish, F.softplus, F.mish, F.logsigmoid, F.leaky_relu, F.selu)
    ),
    "norms": lambda x, w: F.layer_norm(x, (8,), w[0]) + F.rms_norm(x, (8,)) + F.group_norm(x[None], 2)[0],
    "batch norm": lambda x, w: F.batch_norm(x, w[0].clone(), w[1].clone(), training=True),
    "softmax": lambda x, w: x.softmax(-1) + x.log_softmax(0) + F.softmin(x, 1),
    "products": lambda x, w: F.linear(x, w, w[:, 0]) + x @ w + torch.einsum("ij,kj->ik", x, w),
    "losses": lambda x, w: F.cross_entropy(x, torch.arange(6) % 8) + F.mse_loss(x, x * 2) + F.huber_loss(x, w[:6]),
    "views": lambda x, w: torch.cat([x.t().reshape(-1), x.unflatten(1, (2, 4)).flatten(), x.diagonal(), x.flip(0).ravel()]),
    "reductions": lambda x, w: x.var(0) + x.std(0) + x.mean(0) + x.amax(0) + x.logsumexp(0) + x.norm(dim=0),
    "indexing": lambda x, w: x[[0, 2]] + x.index_select(0, torch.tensor([1, 1])) + x.gather(0, torch.zeros(2, 8).long()),
    "writes": lambda x, w: (lambda y: (y[1:3].mul_(2), y.add_(1), y)[2])(x.clone()),
    "integers": lambda x, w: (x * 10).long() // 3 + torch.arange(8).bitwise_and(3) % 2,
    "conditions": lambda x, w: torch.where(x > 1, x.clamp(0.6, 1.2), x.lerp(w[:6], 0.3)).masked_fill(x < 0.7, 0.0),
    "padding": lambda x, w: F.pad(x, (1, 2), value=3.0) @ F.pad(w, (0, 0, 1, 2)),
    "statistics": lambda x, w: torch.cumsum(x, 0) + x.sort(0).values + torch.topk(x, 6, 0).values,
    "the same": lambda x, w: F.dropout(x, 0.5, training=False).expand(6, 8).contiguous(),
}  # fmt: skip


# Calls that stay although there is a decomposition, by the reason.
STAY = {
    *("aten.copy_.default",),  # writes
    *(
        "aten.where.ScalarOther",
        "aten.where.ScalarSelf",
        "aten.real.default",
        "aten.reshape.default",
    ),  # calls itself
    *("aten.__and__.Tensor", "aten.div.Tensor_mode"),
    *(
        "aten.minimum.default",
        "aten.mul.Tensor",
        "aten.where.self",
    ),  # a tensor without dimensions beside others
    *("aten.constant_pad_nd.default",),  # writes into a view
    *("aten.slice.Tensor",),  # another layout for sizes that change
    *("aten._native_batch_norm_legit_functional.default",),  # a quotient of sizes
    *("aten.var_mean.correction",),  # no decomposition into ATen
}


@pytest.mark.parametrize("operators", SETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_graphs_compute_what_eager_does(name, operators):
    x, w = rand(6, 8), rand(8, 8)
    for dynamic in (False, True):
        with torch.no_grad():
            trace = smelt.trace(PROGRAMS[name], dynamic=dynamic)(x, w)
            (graph,) = trace.graphs
            view = graph.aten.lower(operators)
            verify(view.graph, functional=True)
            inputs = [{"x": x, "w": w}[p.name] for p in view.graph.placeholders]
            torch.testing.assert_close(view(*inputs)[0], PROGRAMS[name](x, w))
        called = {
            n.target for n in view.nodes if n.op == "call_function" and n.target is not operator.getitem
        }
        outside = {str(op) for op in called if not is_member(op, operators)}
        assert outside <= STAY, outside


def trained():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1))


@pytest.mark.parametrize("operators", SETS)
def test_forward_and_backward_are_lowered(operators):
    trace = smelt.trace(trained())(rand(6, 8).requires_grad_())
    for graph in (trace.forward, trace.backward, trace.joint):
        view = graph.lower(operators)
        inputs = [torch.randn(p.spec.shape, dtype=p.spec.dtype) for p in graph.graph.placeholders]
        inputs = [
            torch.empty_strided(p.spec.shape, p.spec.stride).copy_(t)
            for p, t in zip(view.graph.placeholders, inputs)
        ]
        for got, want in zip(view(*inputs), graph(*inputs), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


def test_no_result_shares_memory_with_an_input():
    x = rand(6, 8)
    with torch.no_grad():
        graph = smelt.trace(lambda x: x.expand(6, 8).clone())(x).aten
    for operators in SETS:
        (result,) = graph.lower(operators)(x)
        assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()


def test_programs_are_lowered():
    model, x = trained().eval(), rand(6, 8)
    rows = smelt.Dim("rows", min=2, max=64)
    program = smelt.export(model, (x,), dynamic_shapes=({0: rows},))
    view = program.lower("prims")
    y = rand(11, 8)
    state = {name: program.state[name] for name in program.state}
    inputs = iter(state.values())
    got = view(
        *(
            y
            if p.spec.shape[-1:] == (8,) and len(p.spec.shape) == 2 and p.spec.shape[0] != 16
            else next(inputs)
            for p in view.graph.placeholders
        )
    )
    torch.testing.assert_close(got[0], model(y))
    assert all(
        n.target.namespace == "prims"
        for n in view.nodes
        if n.op == "call_function" and "mm" not in str(n.target)
    )


def test_wrong_arguments():
    trace = smelt.trace(torch.sin)(rand(3))
    with pytest.raises(OptionError, match=r"unknown operators 'prim'; did you mean 'prims'\?"):
        trace.aten.lower("prim")
    with pytest.raises(SmeltError, match="only aten-level graphs"):
        trace.torch.lower("core")
