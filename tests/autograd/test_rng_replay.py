"""Replay of random numbers in the backward: they equal those of the forward, and the generator's state does not
change."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import smelt
from smelt.autograd.partition import partition
from smelt.config import DEFAULT
from smelt.graph.graph_printer import code
from tests.harness.joints import check, joint_of

LEAST = replace(DEFAULT, activation_memory_budget=0.0)
STATE = torch.get_rng_state().numel()  # bytes


def dropout(x):
    return F.dropout(x, 0.3)


def two_dropouts(x):
    return F.dropout(F.dropout(x, 0.3).sin(), 0.5).cos()


def alpha_dropout(x):
    return F.alpha_dropout(x, 0.4, training=True)


def bernoulli_of_probabilities(x):
    return x * torch.bernoulli(x.detach().sigmoid())


def noise(x):
    return x * torch.empty_like(x).uniform_(0.5, 2.0) * torch.empty_like(x).exponential_(2.0)


def normal_noise(x):
    return x.exp() * x.new_empty(x.shape).normal_(1.0, 0.5)


def channels_last(x):
    return F.dropout(x.unflatten(1, (8, 5, 10)).to(memory_format=torch.channels_last), 0.3).flatten(1)


PROGRAMS = [
    dropout,
    two_dropouts,
    alpha_dropout,
    bernoulli_of_probabilities,
    noise,
    normal_noise,
    channels_last,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_equal_eager(program):
    x = torch.randn(50, 400, requires_grad=True)
    check(program, x, config=LEAST)


def test_the_generator_state_is_saved_instead_of_the_mask():
    joint, _ = joint_of(dropout, torch.randn(50, 400, requires_grad=True))
    mask, least = partition(joint, DEFAULT), partition(joint, LEAST)
    assert mask.nbytes == 50 * 400
    assert least.nbytes == STATE
    assert "smelt.generator_state" in code(least.forward)
    assert "bernoulli_p_replayed" in code(least.backward)


def test_a_mask_smaller_than_the_state_is_saved():
    joint, _ = joint_of(dropout, torch.randn(50, 4, requires_grad=True))
    assert partition(joint, LEAST).nbytes == 50 * 4


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled(program, backend):
    compiled = smelt.compile(program, backend=backend, options={"activation_memory_budget": 0.0})
    x = torch.randn(50, 400, requires_grad=True)
    for seed in range(2):
        found = []
        for run in (program, compiled):
            torch.manual_seed(seed)
            out = run(x)
            torch.rand(3)  # the generator advances between forward and backward
            (gradient,) = torch.autograd.grad(out.sum(), x)
            found.append((out, gradient, torch.get_rng_state()))
        for expected, got in zip(*found):
            torch.testing.assert_close(got, expected)
