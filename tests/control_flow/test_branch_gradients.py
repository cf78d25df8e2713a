"""Gradients of tensors that only one branch reads: None if the other branch ran, as in eager; zeros would let weight decay
move a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.branching import DOWN, INPUTS, UP, Model, assert_same, gradients, trained
from tests.harness.catalogue import program

BREAK = ["data-dependent-condition"]


@trained()
def a_layer_for_each_branch(m, x):
    if x.sum() > 0:
        return x @ m.w1 + m.bias
    return x @ m.w2


@trained()
def a_layer_that_one_branch_adds(m, x):
    h = x @ m.w1
    if h.mean() > 0:
        h = torch.relu(h @ m.w2 + m.bias)
    return h @ m.w3


@trained()
def a_layer_of_one_branch_and_of_the_rest(m, x):
    if x.sum() > 0:
        x = x @ m.w1
    else:
        x = x @ m.w2
    return (x @ m.w1).tanh()


@trained()
def nested_branches(m, x):
    if x.sum() > 0:
        if x.max() > 5:
            h = x @ m.w1
        else:
            h = x @ m.w2
        h = h + m.bias
    else:
        h = x @ m.w3
    return h.sin()


@trained()
def nested_branches_that_share_a_layer(m, x):
    if x.sum() > -20:
        h = x @ m.w1
        if h.sum() > 0:
            h = h @ m.w2
    else:
        h = x @ m.w2 @ m.w3
    return h


@trained()
def a_router(m, x):
    which = x.sum().clamp(-1, 1).long() + 1
    if which == 0:
        return x @ m.w1
    if which == 1:
        return x @ m.w2
    return x @ m.w3


@trained()
def an_early_exit(m, x):
    h = torch.relu(x @ m.w1)
    if h.sum() > 10:
        return h + m.bias
    h = torch.relu(h @ m.w2)
    if h.sum() > 1:
        return h
    return h @ m.w3


@trained()
def layers_that_are_skipped(m, x):
    x = x + m.bias
    for weight in (m.w1, m.w2, m.w3):
        if x.mean() > 0:
            x = x @ weight
    return x.sin()


@trained()
def one_layer_behind_two_conditions(m, x):
    x = x + m.bias
    if x.sum() > 0:
        x = x @ m.w1
    if x.max() > 3:
        x = x @ m.w1
    return x @ m.w2


@trained()
def a_condition_and_its_opposite(m, x):
    condition = x.sum() > 0
    x = x + m.bias
    if condition:
        x = x @ m.w1
    y = x @ m.w2
    if not condition:
        y = y @ m.w1
    return y.sin()


@trained()
def a_value_that_one_branch_reads(m, x):
    scaled = (m.w1 * 2).tanh()
    y = x @ m.w2
    if x.sum() > 0:
        y = y @ scaled
    return y


@trained()
def a_value_with_an_infinite_derivative_that_one_branch_reads(m, x):
    roots = (m.w1 * 0).abs().sqrt()  # the derivative of zero would be NaN
    y = x @ (m.w2 + m.w1)
    if x.sum() > 0:
        y = y @ m.w3
    else:
        y = y @ roots
    return y


@trained()
def a_value_with_an_infinite_derivative_that_no_call_reads(m, x):
    roots = (m.w1 * 0).abs().sqrt()
    y = x @ (m.w2 + m.w1)
    if x.sum() > 1e9:
        y = y @ roots
    return y + 1


@trained()
def two_results_of_the_same_tensors(m, x):
    if x.sum() > 0:
        h = x @ m.w1
        y, z = h * 2, h.sin()
    else:
        h = x @ m.w2
        y, z = h * 3, h.cos()
    return (y @ m.w3) * z


@trained()
def two_results_of_which_one_is_detached(m, x):
    if x.sum() > 0:
        h = x @ m.w1
        y, z = h * 2, h.sin()
    else:
        h = x @ m.w2
        y, z = h * 3, h.cos()
    return y @ m.w3 * z.detach()


@trained(2, later=1, breaks=BREAK)
def two_results_of_different_tensors(m, x):
    if x.sum() > 0:
        y, z = x @ m.w1, (x @ m.w2).sum()
    else:
        y, z = x @ m.w1 * 2, (x @ m.w3).sum()
    return y @ m.w3 * z


@trained()
def the_result_and_a_value_computed_from_it(m, x):
    if x.sum() > 0:
        logits = x @ m.w1
    else:
        logits = x @ m.w2
    return logits, (logits**2).mean()


@trained(2, breaks=BREAK)
def a_result_that_one_branch_reads(m, x):
    h = x @ m.w1
    y = x @ m.w3
    if x.sum() > 0:
        y = y @ m.w2 + h
    return h, y


@trained(2, later=1, breaks=BREAK)
def two_results_that_read_a_layer_under_different_conditions(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h = h @ m.w2
    return h, (x @ m.w2).sum()


@trained()
def one_layer_needs_no_gradients(m, x):
    w2 = m.w2.detach()
    if x.sum() > 0:
        h = x @ m.w1
    else:
        h = x @ w2 @ m.w3
    return h


@trained()
def layers_under_autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if x.sum() > 0:
            h = x @ m.w1
        else:
            h = x @ m.w2
    return h.float()


@trained(2, later=1, breaks=BREAK)
def the_result_requires_gradients_in_one_branch(m, x):
    if x.sum() > 0:
        h = x @ m.w1
    else:
        h = x * 2
    return h


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(6, 18), nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))

    def forward(self, x):
        if x.sum() > 0:
            return x + self.attention(x)
        return x + self.mlp(x)


@program(1)
def modules_of_several_operators():
    model = Mixed()
    return model, [(x.clone(),) for x in INPUTS], lambda: [p.grad for p in model.parameters()]


# ---- what the engine, hooks and optimizers see


def both(fn: Callable[..., Any]) -> tuple[Model, Model, Any]:
    """A model, an equal one, and the latter compiled."""
    eager, model = Model(fn), Model(fn)
    return eager, model, smelt.compile(model, fullgraph=True)


def branches(m: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return (x @ m.w1 + m.bias).tanh()
    return (x @ m.w2).tanh()


def test_an_optimizer_with_weight_decay_moves_only_what_was_used() -> None:
    eager, model, compiled = both(branches)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in (eager, model)]
    for x in (UP, UP, DOWN, UP):
        for m, optimizer in zip((eager, compiled), optimizers):
            optimizer.zero_grad()
            m(x).sum().backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert len(optimizers[1].state) == 3  # not w3


def test_hooks_run_for_what_was_used() -> None:
    seen: list[list[str]] = []
    for m, call in zip(*(lambda e, m, c: ((e, m), (e, c)))(*both(branches))):
        names: list[str] = []
        for name, p in m.named_parameters():
            p.register_hook(lambda g, name=name: names.append(f"hook of {name}"))
            p.register_post_accumulate_grad_hook(lambda p, name=name: names.append(f"{name} has it"))
        for x in (UP, DOWN):
            names.clear()
            call(x).sum().backward()
            seen.append(sorted(names))
    assert seen[:2] == seen[2:] and [*map(len, seen)] == [4, 2, 4, 2]


def test_gradients_that_are_asked_for() -> None:
    eager, model, compiled = both(branches)
    for x in (UP, DOWN):
        found, wanted = (
            torch.autograd.grad(call(x).sum(), [m.w1, m.w2, m.bias], allow_unused=True)
            for m, call in ((model, compiled), (eager, eager))
        )
        assert_same([*found], [*wanted])
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(compiled(UP).sum(), [model.w2])
    zeros = torch.autograd.grad(compiled(UP).sum(), [model.w2], materialize_grads=True)
    assert torch.equal(zeros[0], torch.zeros(6, 6))


def test_gradients_of_gradients() -> None:
    eager, model, compiled = both(branches)
    for x in (UP, DOWN):
        found = []
        for m, call in ((model, compiled), (eager, eager)):
            first = torch.autograd.grad(
                call(x).sum(), [*m.parameters()], create_graph=True, allow_unused=True
            )
            penalty = sum((g**2).sum() for g in first if g is not None)
            m.zero_grad()
            penalty.backward()
            found.append([*first, *gradients(m)])
        assert_same(*found)


def test_a_graph_is_retained() -> None:
    eager, model, compiled = both(branches)
    for x in (UP, DOWN):
        for call in (compiled, eager):
            loss = call(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        assert_same(gradients(model), gradients(eager))


def test_the_other_layer_may_change_between_forward_and_backward() -> None:
    """What the branch that ran did not read is saved all the same: autograd says so."""
    _, model, compiled = both(branches)
    loss = compiled(UP).sum()
    with torch.no_grad():
        model.w2.mul_(2)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        assert model.w2.grad is None


def test_a_training_step_in_one_function() -> None:
    """A gradient that the function itself reads must be known to be one: the graph breaks."""
    eager, model = Model(branches), Model(branches)

    def step(m: Model, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        loss = m(x).sum()
        loss.backward()
        return loss.detach(), m.w2.grad is None

    compiled = smelt.compile(step)
    for x in (UP, UP, DOWN):
        found, wanted = compiled(model, x), step(eager, x)
        torch.testing.assert_close(found, wanted)
        assert_same(gradients(model), gradients(eager))
    assert inspect.reasons(compiled)
