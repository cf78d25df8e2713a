"""A dropout mask on a GPU is not saved: the backward replays it from the generator's seed and offset.

The simulated device has no ATen generator, so a fake one is installed here.
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

HAS_NO_GPU = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if HAS_NO_GPU else [pytest.mark.skip("of the simulated device")]
BLOCKS = 3
SEED_AND_OFFSET = [1234, 0]  # of the generator


def seed_and_offset(offsets, device):
    result = tuple(torch.tensor(x) for x in SEED_AND_OFFSET)
    SEED_AND_OFFSET[1] += offsets
    return result


def seed_and_offset_in_memory(offsets, device):
    """As during a CUDA graph capture, where the offset is a sum."""
    seed, offset = (x.to(device) for x in seed_and_offset(offsets, device))
    return seed, offset - 20, torch.tensor(20)


@pytest.fixture(autouse=True)
def _generator(monkeypatch):
    for module in (rng_replay, target, philox_order):
        monkeypatch.setattr(module, "blocks_that_draw", lambda device: BLOCKS)
    library = torch.library.Library("smelt", "IMPL")
    key = "CompositeImplicitAutograd"
    library.impl("philox_offset", seed_and_offset, key, allow_override=True)
    library.impl("philox_in_memory", seed_and_offset_in_memory, key, allow_override=True)
    library.impl("has_philox_in_memory", lambda: True, key, allow_override=True)
    SEED_AND_OFFSET[:] = 1234, 0
    yield
    library._destroy()


def tensor(*shape, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()


def test_two_numbers_are_saved_instead_of_a_mask():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(50, 400))
    parts = partition(joint, DEFAULT)
    check_valid(joint, parts)
    assert parts.nbytes == 16
    assert "philox_offset" in code(parts.forward) and "dropout_mask" in code(parts.backward)


def test_the_dropout_result_is_recomputed_from_the_mask():
    """The results of the activation and of the dropout are recomputed from the input of the activation."""
    joint, _ = joint_of(lambda x, w: F.dropout(F.gelu(x), 0.3) @ w, tensor(50, 400), tensor(400, 8))
    parts = partition(joint, DEFAULT)
    check_valid(joint, parts)
    assert parts.nbytes == 16


def test_a_mask_smaller_than_two_numbers_is_saved():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(3))
    assert partition(joint, DEFAULT).nbytes == 3


def dropped_twice(x):
    return F.dropout(F.dropout(x, 0.3) * 2, 0.5)


@pytest.mark.parametrize("shape", ((50, 400), (7, 3), (6, 10), (5,)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_the_backward_replays_the_forward_masks(shape, dtype):
    x = torch.ones(shape, device="cuda", dtype=dtype, requires_grad=True)
    compiled = smelt.compile(dropped_twice)
    for _ in range(3):
        x.grad = None
        y = compiled(x)
        at = SEED_AND_OFFSET[1]
        y.sum().backward()
        torch.testing.assert_close(x.grad * 1, y.detach())
        assert SEED_AND_OFFSET[1] == at  # the backward draws nothing
    turns = -(-x.numel() // (4 * 256 * min(BLOCKS, -(-x.numel() // 256))))
    assert at == 3 * 2 * 4 * turns


def test_retained_graphs_and_backwards_in_another_order():
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


def test_training_a_model():
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
    SEED_AND_OFFSET[1] = 0
    compiled(x).square().sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    SEED_AND_OFFSET[1] = 0
    reference(model, x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()])


def reference(model, x):
    """The model with the masks of `smelt::dropout_mask`, computed by torch operators."""
    for layer in model:
        if isinstance(layer, nn.Dropout):
            made = philox_order.Draws.near(TensorSpec(x.shape, x.stride(), x.dtype, x.device), BLOCKS)
            seed, offset = seed_and_offset(made.offsets, x.device)
            args = list(x.shape), list(x.stride()), 0, x.dtype, x.device, BLOCKS, layer.p
            x = x * torch.ops.smelt.dropout_mask(seed, offset, *args) / (1 - layer.p)
        else:
            x = layer(x)
    return x


def test_with_cuda_graphs_aten_draws_the_mask():
    joint, _ = joint_of(lambda x: F.dropout(x, 0.3), tensor(50, 400))
    assert partition(joint, replace(DEFAULT, cuda_graphs=True)).nbytes == 50 * 400


def test_capturable_plans_read_the_offset_from_memory():
    """The same numbers in a plan that may be captured, although its kernels receive the third number by value."""
    x = torch.ones(40, 50, device="cuda")
    results = []
    for options in ({}, {"cuda_graphs": True}):
        SEED_AND_OFFSET[1] = 8
        compiled = smelt.compile(lambda x: (dropped_twice(x), torch.randn_like(x)), options=options)
        with recorded_results(target, "cannot_be_replayed") as why_not:
            results.append((compiled(x), SEED_AND_OFFSET[1]))
    assert why_not == [None]
    torch.testing.assert_close(*results, rtol=0, atol=0)


@contextlib.contextmanager
def recorded_results(module, name):
    """The results of a function during the context."""
    function, given = getattr(module, name), []

    def spy(*args):
        given.append(function(*args))
        return given[-1]

    setattr(module, name, spy)
    yield given
    setattr(module, name, function)
