"""Backends that compile the graph they get with smelt: custom functions and checkpoints keep their gradients."""

import functools

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import smelt
from tests.harness.agreement import same


class Unused(torch.autograd.Function):
    """The forward does not read `y`, whose gradient is that of a constant."""

    @staticmethod
    def forward(ctx, x, y, scale=2.0, names=("a",)):
        ctx.save_for_backward(x)
        ctx.scale = scale * len(names)
        return x * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.scale, torch.full_like(x, 5.0), None, None


class Straight(torch.autograd.Function):
    """Two results; the gradient is not that of the forward."""

    @staticmethod
    def forward(x, y):
        return x.round(), y.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g * 3, g * 7


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x.sin() * self.by


SCALE = Scale(2.0)
PROGRAMS = {
    "an unused input": lambda x, y: Unused.apply(x, y),
    "an unused input, computed": lambda x, y: Unused.apply(x.sin(), y * 3) + x,
    "applied twice": lambda x, y: Unused.apply(Unused.apply(x, y), y),
    "other arguments": lambda x, y: Unused.apply(x, y, 3.0, ("a", "b")),
    "two results": lambda x, y: sum(Straight.apply(x, y)),
    "a checkpoint": lambda x, y: checkpoint(lambda a: (a * y).sin(), x, use_reentrant=False),
    "a checkpoint of a function": lambda x, y: checkpoint(Unused.apply, x, y, use_reentrant=False),
    "a checkpoint of an object": lambda x, y: checkpoint(SCALE, x * y, use_reentrant=False),
}
BACKENDS = {
    "forward": lambda graph, inputs: smelt.compile(graph.forward),
    "the module": lambda graph, inputs: smelt.compile(graph),
    "a lambda": lambda graph, inputs: smelt.compile(lambda *args: graph(*args)),
    "eager within": lambda graph, inputs: smelt.compile(graph.forward, backend="eager"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program, backend):
    def gradients(fn):
        x, y = torch.tensor([0.5, 1.5, -2.0], requires_grad=True), torch.ones(3, requires_grad=True)
        found = []
        for _ in range(2):
            out = fn(x, y)
            found += [out.detach(), *torch.autograd.grad(out.sum(), (x, y), allow_unused=True)]
        return found

    fn = PROGRAMS[program]
    same(gradients(smelt.compile(fn, backend=BACKENDS[backend])), gradients(fn))


def _saves_products(context, operator, *args, **kwargs):
    kept = operator is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.MUST_RECOMPUTE


def _two_checkpoints(x, w):
    contexts = functools.partial(create_selective_checkpoint_contexts, _saves_products)
    for _ in range(2):
        x = checkpoint(lambda t: torch.sigmoid(t @ w) * t, x, use_reentrant=False, context_fn=contexts)
    return x


def test_selective_checkpoints_are_numbered():
    nodes = []

    def forward(gm, examples):
        nodes.extend(n for n in gm.graph.nodes if n.op == "call_function")
        return gm

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda gm, examples: gm,
        partition_fn=min_cut_rematerialization_partition,
    )
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    want = torch.autograd.grad(_two_checkpoints(x, w).sum(), (x, w))
    y = smelt.compile(_two_checkpoints, backend=backend, fullgraph=True)(x, w)
    for found, eager in zip(torch.autograd.grad(y.sum(), (x, w)), want):
        torch.testing.assert_close(found, eager)
    numbers = {n.meta["ac_graph_id"] for n in nodes if "ac_graph_id" in n.meta}
    assert len(numbers) == 2 and None not in numbers
