"""Random numbers in branches: the generator advances only in the branch that runs, as in eager."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.harness.branching import DOWN, UP, Model, assert_same, branch, gradients, trained
from tests.harness.catalogue import program

BREAK = ["data-dependent-condition"]


@branch()
def noise_in_one_branch(x):
    if x.sum() > 0:
        x = x + torch.randn(4, 6)
    return x * torch.rand(6)


@branch()
def draws_before_between_and_after(x):
    x = x + torch.rand(6)
    if x.sum() > 0:
        x = x * torch.rand_like(x)
    else:
        x = x - torch.randperm(6) + torch.randint(9, (4, 6))
    y = torch.rand(4, 6)
    if y.sum() > 12:
        y = y + torch.normal(0.0, 1.0, (4, 6))
    return x + y, torch.rand(3)


@branch()
def a_draw_whose_result_is_dropped(x):
    if x.sum() > 0:
        torch.rand(5)
    return x * 2


@branch()
def nested_draws(x):
    if x.sum() > -20:
        x = x + torch.rand(4, 6)
        if x.max() > 3:
            x = F.dropout(x, 0.5)
    return x.sin()


@branch()
def an_in_place_draw(x):
    y = torch.empty(4, 6)
    if x.sum() > 0:
        y.normal_()
    else:
        y.zero_()
    return x + y


@branch()
def draws_in_a_loop(x):
    for _ in range(4):
        if x.sum() > 0:
            x = x - torch.rand(4, 6) * 9
    return x * 1


@branch()
def one_draw_in_each_branch(x):
    if torch.rand(()) > 0.5:
        return x + torch.rand(6)
    return x - torch.randn(6)


@branch(2, later=1, breaks=BREAK)
def a_seed(x):
    if x.sum() > 0:
        torch.manual_seed(5)
    return torch.rand(6) + x


@branch(2, later=1, breaks=BREAK)
def a_number_of_python_s_generator(x):
    if x.sum() > 0:
        x = x * random.random()
    return x + 1


@branch(2, later=1, breaks=BREAK)
def a_number_of_numpy_s_generator(x):
    if x.sum() > 0:
        x = x * float(np.random.rand())
    return x + 1


# ---- gradients


@trained()
def dropout_in_one_branch(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h = F.dropout(h, 0.5)
    return h @ m.w2


@trained()
def dropout_in_both_branches(m, x):
    if x.sum() > 0:
        h = F.dropout(x @ m.w1, 0.3) @ m.w3
    else:
        h = F.dropout(x @ m.w2, 0.7, inplace=True).relu()
    return F.dropout(h, 0.5)


@trained()
def nested_dropout(m, x):
    h = x @ m.w1
    if x.sum() > -20:
        h = F.dropout(h, 0.2)
        if x.max() > 3:
            h = F.dropout(h @ m.w2, 0.5)
    else:
        h = F.dropout(h @ m.w3, 0.5)
    return h.sin()


@trained()
def noise_that_gradients_read(m, x):
    if x.sum() > 0:
        h = (x @ m.w1) * torch.randn(4, 6).exp()
    else:
        h = (x @ m.w2) + torch.rand(6)
    return h * torch.rand(6)


class Stochastic(nn.Module):
    """A block that is skipped at random (stochastic depth), and attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv = nn.Linear(6, 6), nn.Linear(6, 18)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = self.embed(x)
        if torch.rand(()) < 0.6:
            q, k, v = self.qkv(x).chunk(3, -1)
            x = x + self.dropout((q @ k.T).softmax(-1) @ v)
        return self.dropout(x)


@program(1)
def stochastic_depth():
    model = Stochastic()
    return model, [(UP.clone(),) for _ in range(6)], lambda: [p.grad for p in model.parameters()]


@program(1)
def stochastic_depth_in_evaluation():
    model = Stochastic().eval()
    return model, [(UP.clone(),) for _ in range(6)], lambda: [p.grad for p in model.parameters()]


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_a_memory_budget_draws_the_same_mask(budget: float) -> None:
    eager, model = Stochastic(), Stochastic()
    compiled = smelt.compile(model, fullgraph=True, options={"activation_memory_budget": budget})
    for seed in range(4):
        for m in (eager, compiled):
            torch.manual_seed(seed)
            m(UP).sum().backward()
        assert_same(gradients(model), gradients(eager))


def test_gradients_of_gradients_see_the_same_mask() -> None:
    def fn(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = x @ m.w1
        if x.sum() > 0:
            h = F.dropout(h.exp(), 0.5) @ m.w2
        return h.sin() * torch.rand(6)

    eager, model = Model(fn), Model(fn)
    compiled = smelt.compile(model, fullgraph=True)
    for x in (UP, DOWN):
        found = []
        for m, call in ((model, compiled), (eager, eager)):
            torch.manual_seed(3)
            first = torch.autograd.grad(call(x).sum(), [m.w1], create_graph=True)
            m.zero_grad()
            (first[0] ** 2).sum().backward()
            found.append([*first, *gradients(m), torch.rand(3)])
        assert_same(*found)


def test_a_failed_check_draws_again_from_the_same_state() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + torch.rand(4, 6)
        assert x.max() < 5, "large"
        return x + torch.rand(6)

    compiled = smelt.compile(fn, fullgraph=True)
    for x in (UP, -UP, UP + 5):
        states = []
        for call in (fn, compiled):
            torch.manual_seed(1)
            try:
                result = call(x)
            except AssertionError as error:
                result = torch.tensor(str(error) == "large")
            states.append((result, torch.get_rng_state()))
        torch.testing.assert_close(states[0], states[1])
