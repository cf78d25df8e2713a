"""Dropout's mask on a GPU is not kept: the backward draws it again, from where the generator stood.

The simulated device has no generator of ATen's, so one is put in its place here.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.autograd import rng_replay
from smelt.autograd.partition import partition
from smelt.config import DEFAULT
from smelt.graph.graph_printer import code
from smelt.graph.ir import TensorSpec
from smelt.ops import philox_order
from smelt.targets import cuda as target
from tests.harness import simulated
from tests.harness.joints import check_valid, joint_of

ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if ELSEWHERE else [pytest.mark.skip("of the simulated device")]
BLOCKS = 3
PLACE = [1234, 0]  # of the generator


def place(offsets, device):
    result = tuple(torch.tensor(x) for x in PLACE)
    PLACE[1] += offsets
    return result


def place_in_memory(offsets, device):
    """As within a capture, where the offset is a sum."""
    seed, offset = (x.to(device) for x in place(offsets, device))
    return seed, offset - 20, torch.tensor(20)


@pytest.fixture(autouse=True)
def _generator(monkeypatch):
    for module in (rng_replay, target, philox_order):
        monkeypatch.setattr(module, "blocks_that_draw", lambda device: BLOCKS)
    library = torch.library.Library("smelt", "IMPL")
    key = "CompositeImplicitAutograd"
    library.impl("philox_offset", place, key, allow_override=True)
    library.impl("philox_in_memory", place_in_memory, key, allow_override=True)
    library.impl("has_philox_in_memory", lambda: True, key, allow_override=True)
    PLACE[:] = 1234, 0
    yield
    library._destroy()


def tensor(*shape, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()


def test_two_numbers_are_kept_instead_of_a_mask():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(50, 400))
    parts = partition(joint, DEFAULT)
    check_valid(joint, parts)
    assert parts.nbytes == 16
    assert "philox_offset" in code(parts.forward) and "dropout_mask" in code(parts.backward)


def test_what_was_dropped_follows_from_the_mask():
    """The result of the activation and that of the dropout are made again, of what the activation read."""
    joint, _ = joint_of(lambda x, w: F.dropout(F.gelu(x), 0.3) @ w, tensor(50, 400), tensor(400, 8))
    parts = partition(joint, DEFAULT)
    check_valid(joint, parts)
    assert parts.nbytes == 16


def test_not_where_the_mask_is_smaller():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(3))
    assert partition(joint, DEFAULT).nbytes == 3


def dropped_twice(x):
    return F.dropout(F.dropout(x, 0.3) * 2, 0.5)


@pytest.mark.parametrize("shape", ((50, 400), (7, 3), (6, 10), (5,)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_the_backward_has_the_forwards_masks(shape, dtype):
    x = torch.ones(shape, device="cuda", dtype=dtype, requires_grad=True)
    compiled = smelt.compile(dropped_twice)
    for _ in range(3):
        x.grad = None
        y = compiled(x)
        at = PLACE[1]
        y.sum().backward()
        torch.testing.assert_close(x.grad * 1, y.detach())
        assert PLACE[1] == at  # the backward draws nothing
    turns = -(-x.numel() // (4 * 256 * min(BLOCKS, -(-x.numel() // 256))))
    assert at == 3 * 2 * 4 * turns


def test_graphs_that_are_kept_and_gradients_later():
    x = torch.ones(40, 50, device="cuda", requires_grad=True)
    compiled = smelt.compile(dropped_twice)
    first, second = compiled(x), compiled(x)
    for y in (second, first, first):
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(gradient, y.detach())
    assert not torch.equal(first, second)


def test_layouts():
    x = torch.ones(2, 6, 4, 5, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
    for view in (lambda x: x, lambda x: x.permute(3, 0, 1, 2), lambda x: x[:, 1:3], lambda x: x[1]):
        compiled = smelt.compile(lambda x: dropped_twice(view(x)))
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(view(gradient), y.detach())


def test_models_are_trained():
    layers = [
        nn.Linear(40, 64),
        nn.Dropout(0.4),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Dropout(0.2),
        nn.Linear(64, 3),
    ]
    model = nn.Sequential(*layers).cuda()
    compiled = smelt.compile(model)
    x = tensor(30, 40).detach()
    PLACE[1] = 0
    compiled(x).square().sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    PLACE[1] = 0
    reference(model, x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()])


def reference(model, x):
    """The model with the masks that `smelt::dropout_mask` gives by torch's operators."""
    for layer in model:
        if isinstance(layer, nn.Dropout):
            made = philox_order.Draws.near(TensorSpec(x.shape, x.stride(), x.dtype, x.device), BLOCKS)
            seed, offset = place(made.offsets, x.device)
            args = list(x.shape), list(x.stride()), 0, x.dtype, x.device, BLOCKS, layer.p
            x = x * torch.ops.smelt.dropout_mask(seed, offset, *args) / (1 - layer.p)
        else:
            x = layer(x)
    return x


def test_with_cuda_graphs_the_mask_is_atens():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(50, 400))
    assert partition(joint, replace(DEFAULT, cuda_graphs=True)).nbytes == 50 * 400


def test_plans_that_are_captured_read_the_place_from_memory():
    """The same numbers, in a plan that may be captured, although its kernels are given the third number by value."""
    x = torch.ones(40, 50, device="cuda")
    results = []
    for options in ({}, {"cuda_graphs": True}):
        PLACE[1] = 8
        compiled = smelt.compile(lambda x: (dropped_twice(x), torch.randn_like(x)), options=options)
        with spied(target, "cannot_be_replayed") as why_not:
            results.append((compiled(x), PLACE[1]))
    assert why_not == [None]
    torch.testing.assert_close(*results, rtol=0, atol=0)


@contextlib.contextmanager
def spied(module, name):
    """What a function gives meanwhile."""
    function, given = getattr(module, name), []

    def spy(*args):
        given.append(function(*args))
        return given[-1]

    setattr(module, name, spy)
    yield given
    setattr(module, name, function)
