"""Derivatives of derivatives: what runs how often, in what order, with which gradient, where `create_graph=True`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

from tests.harness.training import both, gradients, leaf, raised


def cube(x):
    return (x**3).sum()


class Watch:
    """Hooks that note the gradients that they are given, and scale them."""

    def __init__(self):
        self.seen = []

    def scaling(self, name, factor=2):
        return lambda g: (self.seen.append((name, g.detach().clone())), g * factor)[1]

    def noting(self, name):
        return lambda g: self.seen.append((name, g.detach().clone()))


# --------------------------------------------------------------------------------------------------- hooks on inputs


@both()
def test_a_hook_on_a_leaf_runs_once(compile):
    f, x, w = compile(cube), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    (a,) = grad(f(x), x, create_graph=True)
    return a, grad(a.sum(), x), w.seen


@both()
def test_a_hook_on_a_leaf_whose_gradient_accumulates(compile):
    f, x, w = compile(cube), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    f(x).backward(create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward()
    return first, x.grad, w.seen


@both()
def test_hooks_on_parameters(compile):
    m, w = nn.Linear(3, 2), Watch()
    f = compile(lambda x: m(x).tanh().sum())
    for name, p in m.named_parameters():
        p.register_hook(w.scaling(name))
    x = leaf(4, 3)
    found = grad(f(x), [x, *m.parameters()], create_graph=True)
    sum(g.pow(2).sum() for g in found).backward()
    return found, sorted(w.seen, key=lambda s: s[0]), gradients(x, *m.parameters())


@both()
@pytest.mark.parametrize("wanted", ["leaf", "input"])
def test_a_hook_on_an_input_that_was_computed(compile, wanted):
    f, w, watch = compile(cube), leaf(3), Watch()
    x = w * 2
    x.register_hook(watch.scaling("x"))
    (a,) = grad(f(x), {"leaf": w, "input": x}[wanted], create_graph=True)
    return a, grad(a.sum(), w), watch.seen


@both()
def test_the_gradient_of_an_input_that_was_computed_is_kept(compile):
    f, w = compile(cube), leaf(3)
    x = w * 2
    x.retain_grad()
    f(x).backward(create_graph=True)
    first, at_leaf, w.grad = x.grad.clone(), w.grad, None
    x.grad.sum().backward()
    return first, at_leaf, x.grad, w.grad


@both()
def test_hooks_after_accumulation(compile):
    f, x, seen = compile(cube), leaf(3), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.detach().clone()))
    f(x).backward(create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward()
    return first, x.grad, seen


@both()
def test_hooks_on_the_node_that_made_an_input(compile):
    f, w, watch = compile(cube), leaf(3), Watch()
    x = w * 2
    x.grad_fn.register_hook(lambda given, taken: watch.seen.append((given[0].detach(), taken[0].detach())))
    x.grad_fn.register_prehook(lambda taken: (watch.scaling("before", 3)(taken[0]),))
    (a,) = grad(f(x), w, create_graph=True)
    return a, grad(a.sum(), w), watch.seen


@both()
def test_hooks_on_several_inputs_and_on_what_they_come_from(compile):
    f, a, b, w, watch = (
        compile(lambda x, y, w: ((x * w).tanh() * y).sum()),
        leaf(3),
        leaf(3),
        leaf(3),
        Watch(),
    )
    x, y = a * 2, b * 3
    for name, t in {"x": x, "y": y, "w": w, "a": a, "b": b}.items():
        t.register_hook(watch.noting(name))
    first = grad(f(x, y, w), [a, b, w], create_graph=True)
    once = len(watch.seen)
    second = grad(sum(g.sum() for g in first), [a, b, w])
    return (
        first,
        second,
        sorted(watch.seen[:once], key=lambda s: s[0]),
        sorted(s[0] for s in watch.seen[once:]),
    )


@both()
def test_a_hook_on_an_input_that_is_given_twice(compile):
    f, x, w = compile(lambda x, y: (x * y * y).sum()), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    (a,) = grad(f(x, x), x, create_graph=True)
    return a, grad(a.sum(), x), w.seen


@both()
def test_hooks_on_inputs_that_share_memory(compile):
    f, w, watch = compile(lambda x, y: (x * y.exp()).sum()), leaf(4), Watch()
    whole = w * 1
    x, y = whole[:3], whole[1:]
    x.register_hook(watch.scaling("x"))
    y.register_hook(watch.scaling("y", 3))
    (a,) = grad(f(x, y), w, create_graph=True)
    return a, grad(a.sum(), w), watch.seen


@both()
def test_a_hook_that_the_function_registers_on_its_input(compile):
    watch = Watch()

    @compile
    def f(x):
        x.register_hook(watch.scaling("x"))
        return cube(x)

    x = leaf(3)
    (a,) = grad(f(x), x, create_graph=True)
    return a, grad(a.sum(), x), watch.seen


@both(whole=False)
def test_hooks_of_a_module(compile):
    m, watch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Watch()
    f = compile(m)
    m.register_full_backward_pre_hook(lambda m, taken: (watch.scaling("before")(taken[0]),))
    m.register_full_backward_hook(lambda m, given, taken: (watch.scaling("behind", 3)(given[0]),))
    x = leaf(5, 3)
    (a,) = grad(f(x).pow(2).sum(), x, create_graph=True)
    a.pow(2).sum().backward()
    return a, watch.seen, gradients(x, *m.parameters())


# ----------------------------------------------------------------------------------------- more than once, and chosen


@both()
def test_third_derivatives_through_a_hook(compile):
    f, x, w = compile(lambda x: (x**4).sum()), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    (a,) = grad(f(x), x, create_graph=True)
    (b,) = grad(a.sum(), x, create_graph=True)
    return a, b, grad(b.sum(), x), w.seen


@both()
def test_a_gradient_is_given_to_the_same_function(compile):
    f, x, w = compile(cube), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    (a,) = grad(f(x), x, create_graph=True)
    (b,) = grad(f(a), x, create_graph=True)
    return a, b, grad(b.sum(), x), w.seen


@both()
def test_the_graph_is_kept_and_used_again(compile):
    f, x, w = compile(cube), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    y = f(x)
    (a,), (b,) = grad(y, x, create_graph=True), grad(y, x, create_graph=True)
    y.backward(retain_graph=True)
    y.backward(create_graph=True)
    (c,) = grad((a * b).sum(), x, retain_graph=True)
    (d,) = grad((a * b).sum(), x)
    return a, b, c, d, x.grad, w.seen


@both()
def test_gradients_of_chosen_inputs(compile):
    f, x, w, watch = compile(lambda x, w: ((x * w) ** 2).sum()), leaf(3), leaf(3), Watch()
    x.register_hook(watch.scaling("x"))
    w.register_hook(watch.scaling("w", 3))
    f(x, w).backward(inputs=[x], create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward(inputs=[w])
    return first, x.grad, w.grad, watch.seen


@both()
def test_several_results(compile):
    f, x, w = compile(lambda x: (x**3, x.exp())), leaf(3), Watch()
    x.register_hook(w.scaling("x"))
    u, v = f(x)
    (a,) = grad(u.sum() + v.sum(), x, create_graph=True)
    return a, grad(a.sum(), x), w.seen


# -------------------------------------------------------------------------------------------------- custom functions


class Scaled(torch.autograd.Function):
    """Reads an attribute of the tensor that it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = x.scale
        return x**3 * x.scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * ctx.scale


@both()
@pytest.mark.parametrize(
    "make", [lambda: leaf(3), lambda: nn.Parameter(torch.randn(3))], ids=["leaf", "parameter"]
)
def test_a_custom_function_finds_what_is_on_a_tensor(compile, make):
    f, x, w = compile(lambda x: Scaled.apply(x).sum()), make(), Watch()
    x.scale = 2.0
    x.register_hook(w.scaling("x"))
    (a,) = grad(f(x), x, create_graph=True)
    return a, grad(a.sum(), x), w.seen


@both()
def test_an_input_is_written_between(compile):
    f, x = compile(cube), leaf(3)
    (a,) = grad(f(x), x, create_graph=True)
    with torch.no_grad():
        x.mul_(2)
    return a, raised(lambda: grad(a.sum(), x))


@both()
def test_through_a_checkpoint(compile):
    """What runs inside has parameters of its own, which are differentiated too."""
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    f = compile(lambda x: checkpoint(lambda y: layers(y).tanh(), x, use_reentrant=False).sum())
    x = leaf(2, 4)
    first = grad(f(x), [x, *layers.parameters()], create_graph=True)
    sum(g.square().sum() for g in first).backward()
    return [g.detach() for g in first], gradients(x, *layers.parameters())
