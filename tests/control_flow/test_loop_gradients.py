"""Gradients of loops which a tensor ends: eager's, by a backward that runs the steps in reverse order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.catalogue import program
from tests.harness.loop_programs import BREAK, UP, loop


@loop(grad=True)
def steps_of_one_variable(x):
    while x.abs().sum() < 50:
        x = x * 1.5
    return x


@loop(grad=True)
def newtons_method(x):
    a = x.abs() + 1
    y = a
    while (y * y - a).abs().max() > 1e-4:
        y = 0.5 * (y + a / y)
    return y


@loop(grad=True)
def an_equation_of_motion(x):
    v, t = torch.zeros_like(x), 0.0
    while x.abs().sum() < 80 and t < 3.0:
        x = x + v * 0.1
        v = v - torch.sin(x) * 0.1 + x * t
        t += 0.1
    return x


@loop(grad=True)
def both_results_have_gradients(x):
    y, n = x * 2, 1
    while x.abs().sum() < 50:
        x, y = x * 1.2 + y * 0.1, y.cos() + x * n
        n += 1
    return x, y, n


@loop(grad=True)
def a_previous_value(x):
    before = x + 1
    while x.abs().sum() < 50:
        before = x
        x = x * 1.5
    return before * x


@loop(grad=True)
def a_variable_without_gradients(x):
    rate = torch.ones(())
    while x.abs().sum() < 50:
        x = x * 1.5 + rate
        rate = rate * 0.5
    return x, rate


@loop(grad=True)
def a_detached_variable(x):
    y = x.detach() * 1
    while x.abs().sum() < 50:
        x = x * 1.5 + y
        y = y.detach() * 0.5
    return x, y


@loop(grad=True)
def an_unused_variable_with_an_infinite_derivative(x):
    y, gap = x.abs() + 1, x.abs().sum() + 1
    while gap > 1e-3:
        new = y * 0.5 + 0.5
        gap = (new - y).clamp(min=0).pow(2).sum().sqrt() + (new - y).abs().max()
        y = new
    return y


@loop(grad=True)
def a_condition_on_a_returned_invariant(x):
    y, z, n = torch.zeros_like(x), x.sin(), 0
    while n < 4 and (z - y * 0.5).abs().max() > 0.05:
        y = (x * 0.9).cos()
        n += 1
    return y, z


@loop(grad=True)
def only_some_variables_change_before_the_last_test(x):
    y = x * 1
    for i in range(30):
        y = y * 1.1 + i * 0.01
        if y.abs().sum() > 50:
            break
        x = x + y.tanh() * 0.1
    return x, y


@loop(2, later=1, grad=True, breaks=BREAK * 2)
def an_infinite_derivative_after_a_test(x):
    y = x * 1
    for _ in range(30):
        y = (y * y).sqrt() * 1.1
        if y.abs().sum() > 50:
            break
        x = x + y * 0.1
    return x, y


@loop(grad=True)
def no_gradients_inside(x):
    y = x * 2
    with torch.no_grad():
        z = x
        while z.abs().sum() < 50:
            z = z * 1.5
    return y + z


@loop(grad=True)
def two_loops(x):
    while x.abs().sum() < 30:
        x = x * 1.5
    y = x.sin()
    while y.abs().sum() < 50:
        y = y * 1.3 + x * 0.1
    return y


@loop(grad=True)
def a_branch_in_a_loop(x):
    while x.abs().sum() < 50:
        if x.sum() > 0:
            x = x * 1.5
        else:
            x = x * 1.7 - 1
    return x


@loop(grad=True)
def a_range_with_a_break(x):
    for i in range(40):
        x = x * 1.1 + 0.01 * i
        if x.abs().sum() > 50:
            break
    return x


@loop(grad=True)
def products(x):
    m = x @ x.T / 10
    while m.abs().max() < 100:
        m = m @ m + 1
    return m


@loop(4, breaks=[*BREAK * 3, "unsupported-call"], grad=True)
def a_step_of_autograd(x):
    while x.abs().sum() < 50:
        (g,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
        x = x + 0.3 * g
    return x


class Equilibrium(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)
        with torch.no_grad():
            self.inner.weight.mul_(0.5)

    def forward(self, x):
        z, gap, steps = torch.zeros_like(x), x.abs().max() + 1, 0
        while gap > 1e-5 and steps < 50:
            new = torch.tanh(self.inner(z) + x)
            gap = (new - z).abs().max()
            z = new
            steps += 1
        return self.outer(z), steps


@program(1)
def a_layer_in_equilibrium():
    return Equilibrium(), [(UP,), (UP * 4,), (-UP,)]


@program(1)
def gradients_of_invariants_alone():
    torch.manual_seed(0)
    weight = torch.randn(6, 6, requires_grad=True)

    def fn(x):
        total = torch.zeros_like(x)
        while total.abs().sum() < 20:
            total = total + x @ weight
        return total

    return fn, [(UP,), (UP * 4,), (-UP,)]


def test_a_loop_without_a_step_has_eagers_gradients():
    """The graph checks that some step reads the weight; where none does, it has no gradient."""
    weight = torch.ones(6, requires_grad=True)

    def fn(x):
        while x.sum() < 30:
            x = x * weight * 1.5
        return x

    compiled = smelt.compile(fn)
    for x, has in ((UP, True), (UP * 9, False), (UP, True)):
        weight.grad = None
        x = x.clone().requires_grad_()
        compiled(x).sum().backward()
        assert (weight.grad is not None) is has
    assert inspect.graph_count(compiled) == 1


def test_a_backward_may_run_twice_and_late():
    def fn(x):
        while x.sum() < 50:
            x = x * 1.1 + x.sin() + 0.5
        return x

    compiled = smelt.compile(fn)
    inputs = [(UP * k).requires_grad_() for k in (0.5, 1.0, 1.5)]
    losses = [compiled(x).sum() for x in inputs]
    for x, loss in reversed([*zip(inputs, losses)]):
        expected = torch.autograd.grad(fn(x).sum(), x)
        for _ in range(2):
            assert torch.allclose(torch.autograd.grad(loss, x, retain_graph=True)[0], expected[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_gradients_of_a_loop_with_each_backend(backend):
    def fn(x):
        n = 1
        while x.abs().sum() < 50:
            x = x * 1.2 + x.sin() * n
            n += 1
        return x

    compiled = smelt.compile(fn, backend=backend)
    for scale in (1.0, 3.0, -1.0):
        x, y = (UP * scale).requires_grad_(), (UP * scale).requires_grad_()
        fn(x).sum().backward()
        compiled(y).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
