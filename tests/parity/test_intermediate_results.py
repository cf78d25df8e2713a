"""Gradients of functions that return results and what they are computed from.

A model's loss beside its logits, keys and values of each layer, hidden states: gradients that reach one of them from
elsewhere add up as in eager, hooks see what eager's hooks see, and what precedes a result is not differentiated once
for each result.
"""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn
from torch.profiler import profile

import smelt
from tests.harness.agreement import same

LAYERS = 3


class Layered(nn.Module):
    """Returns the keys and values of each layer, the logits, and a loss of them."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
        self.values = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        cache = []
        for key, value in zip(self.keys, self.values, strict=True):
            k, v = key(x), value(x).tanh()
            cache += [k, v]
            x = x + torch.softmax(k, -1) * v
        logits = self.head(x)
        return (logits.log_softmax(-1)[:, 0].mean(), logits, *cache)


def loss_alone(loss, logits, *cache):
    return loss


def loss_and_logits(loss, logits, *cache):
    return loss + logits.square().mean()


def logits_alone(loss, logits, *cache):
    return logits.sin().sum()


def logits_and_first_keys(loss, logits, *cache):
    return logits.sin().sum() + cache[0].sum()


def loss_and_middle(loss, logits, *cache):
    return loss + cache[2].cos().sum() + cache[3].sum()


def everything(loss, logits, *cache):
    return loss * 2 + sum((t * t).sum() for t in (logits, *cache))


OBJECTIVES = (loss_alone, loss_and_logits, logits_alone, logits_and_first_keys, loss_and_middle, everything)


def twins():
    torch.manual_seed(0)
    eager, compiled = Layered(), Layered()
    compiled.load_state_dict(eager.state_dict())
    return eager, smelt.compile(compiled, fullgraph=True)


def gradients(model, x, objective, hooked=(), **how):
    """Gradients of all parameters and of the input, and what hooks on the results `hooked` saw."""
    seen = []
    x = x.clone().requires_grad_()
    results = model(x)
    for i in hooked:
        results[i].register_hook(lambda g, i=i: seen.append((i, g.clone())))
    objective(*results).backward(**how)
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [x.grad, *found, *(g for _, g in seen)], [i for i, _ in seen]


@pytest.mark.parametrize("hooked", [(), (1,), (2,), (0, 1), (1, 3, 4)], ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
def test_gradients_from_elsewhere_add_up(objective, hooked):
    eager, compiled = twins()
    for _ in range(2):
        x = torch.randn(4, 8)
        (want, hooks), (got, own_hooks) = (gradients(m, x, objective, hooked) for m in (eager, compiled))
        assert own_hooks == hooks
        same(got, want)


@pytest.mark.parametrize("seen", [(1,), (2,), (1, 2), (3, 4)], ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
def test_retained_gradients(objective, seen):
    eager, compiled = twins()
    x = torch.randn(4, 8)

    def run(model):
        results = model(x)
        for i in seen:
            results[i].retain_grad()
        objective(*results).backward()
        found = [*(results[i].grad for i in seen), *(p.grad for p in model.parameters())]
        model.zero_grad(set_to_none=True)
        return found

    for _ in range(2):
        same(run(compiled), run(eager))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_graphs_that_are_differentiated_again(kept):
    """First with respect to one result, then all of it, and then it is freed."""
    eager, compiled = twins()
    x = torch.randn(4, 8)

    def run(model):
        results = model(x)
        first = torch.autograd.grad(results[0], results[1], retain_graph=True)
        partial = torch.autograd.grad(
            results[kept].sum(), list(model.keys.parameters()), retain_graph=True, allow_unused=True
        )
        loss_and_logits(*results).backward()
        found = [p.grad for p in model.parameters()]
        with pytest.raises(RuntimeError, match="second time"):
            results[0].backward()
        model.zero_grad(set_to_none=True)
        return [*first, *partial, *found]

    same(run(compiled), run(eager))


def products(model, objective):
    """How many matrix products a step calls, after one to warm up."""
    x = torch.randn(4, 8)
    gradients(model, x, objective)
    with profile() as events:
        gradients(model, x, objective)
    return collections.Counter(e.name for e in events.events())["aten::mm"]


@pytest.mark.parametrize(
    "objective", [loss_alone, loss_and_logits, logits_alone, logits_and_first_keys], ids=lambda f: f.__name__
)
def test_what_precedes_a_result_is_differentiated_once(objective):
    eager, compiled = twins()
    linears = 2 * LAYERS + 1
    assert linears * 2 <= products(eager, objective)
    # The layer before the first keys runs for the logits and for the keys.
    twice = 2 if objective is logits_and_first_keys else 0
    assert products(compiled, objective) <= linears * 3 + twice


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (w * w, x.unbind(0)[1] * 2),
        lambda x, w: (w * w, *(t + 1 for t in torch.split(x, 1)[1:])),
        lambda x, w: (w * w, x * 1.5, (x * 1.5).unbind(0)[0] * 2),
        lambda x, w: (w.sin(), torch.stack([w, x])[1] * 3),
    ],
    ids=range(4),
)
def test_what_no_gradient_reaches_has_none(function):
    """Zeros would make an optimizer with momentum or weight decay step."""

    def run(f):
        torch.manual_seed(0)
        x, w = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
        f(x, w)[0].sum().backward()
        return x.grad, w.grad

    same(run(smelt.compile(function)), run(function))
