"""Derivatives of derivatives: what runs how often, in what order, with which gradient, where `create_graph=True`."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import smelt
from tests.harness.agreement import check_no_failure
from tests.harness.catalogue import ON_GPU
from tests.harness.training import both, gradients, leaf, raised


def double(*shape):
    return leaf(*shape, dtype=torch.float64)


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
def test_an_input_that_is_a_view_without_gradients_of_a_computed_tensor(compile):
    """Such a view requires a gradient, but autograd has no node for it."""
    x, w = leaf(3), leaf(3)
    base, scaled = x * 2, w * 3
    with torch.no_grad():
        view = base[:]
    (a,) = grad(cube(compile(lambda v, w: v * w)(view, scaled)), w, create_graph=True)
    return view.requires_grad, a, grad(a.sum(), w)


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


def test_through_a_checkpoint_of_an_input_and_what_it_is_computed_from():
    """The checkpoint reads the tensors of the program, so the replay cannot tell the gradients of the two apart."""
    f = smelt.compile(lambda y, x: checkpoint(lambda y, x: (y * x).sin(), y, x, use_reentrant=False).sum())
    x, y = leaf(3), leaf(3)
    for a, b in ((x * 2, x), (x, x), (x * 2, y)):
        (gradient,) = grad(f(a, b), x, retain_graph=True)
        try:
            (got,) = grad(f(a, b), x, create_graph=True)
        except RuntimeError as error:
            assert "an input that another input is computed from" in str(error) and b is x
        else:
            assert b is y
            torch.testing.assert_close(got.detach(), gradient)


@both()
def test_an_input_and_what_it_is_computed_from(compile):
    f, x, y = compile(lambda a, b: (a * a * b).sum()), leaf(3), leaf(3)
    return [penalty(f(a, b), x) for a, b in ((y, x), (x * 2, x), (x, x))], gradients(x, y)


# ------------------------------------------------------------------------------------ what has more than one plain result


def penalty(loss, *inputs):
    """Gradients, and the gradients of their squares."""
    first = grad(loss, inputs, create_graph=True, allow_unused=True)
    loss = sum(g.square().sum() for g in first if g is not None)
    loss.backward()
    return [None if g is None else g.detach() for g in first]


@both()
def test_independent_results_one_after_the_other(compile):
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    f = compile(lambda x: (a(x).tanh(), b(x).exp()))
    x = leaf(4, 3)
    u, v = f(x)
    first = penalty(u.square().sum(), x, *a.parameters())
    second = penalty(v.square().sum(), x, *b.parameters())
    return first, second, gradients(x, *a.parameters(), *b.parameters())


@both()
@pytest.mark.parametrize("seen", ["both", "last", "first"])
def test_a_result_that_others_are_computed_from(compile, seen):
    def f(x, w):
        h = (x * w).tanh()
        return h, (h.exp() * w).sum()

    g, x, w = compile(f), leaf(3), leaf(3)
    h, y = g(x, w)
    loss = {"both": lambda: y * h.square().sum(), "last": lambda: y, "first": lambda: h.square().sum()}[
        seen
    ]()
    if seen == "last":
        del h
    return penalty(loss, x, w), gradients(x, w)


@both()
def test_the_gradient_of_a_result_that_others_are_computed_from(compile):
    def f(x, w):
        h = (x * w).tanh()
        return h, (h.exp() * h * w).sum()

    g, x, w = compile(f), leaf(3), leaf(3)
    h, y = g(x, w)
    (a,) = grad(y, h, create_graph=True)
    (b,) = grad(a.sum(), h, retain_graph=True)
    return a, b, grad(a.square().sum(), [x, w])


@both()
def test_hooks_on_a_result_that_others_are_computed_from(compile):
    def f(x, w):
        h = (x * w).tanh()
        k = h.exp() + x
        return h, k, (k * h * w).sum()

    g, x, w, watch = compile(f), leaf(3), leaf(3), Watch()
    h, k, y = g(x, w)
    k.register_hook(watch.scaling("k", 3))
    k.retain_grad()
    first = penalty(y, x, w)
    return first, gradients(x, w, k), [g for _, g in watch.seen]


# ------------------------------------------------------------------------------- results that eager's formulas read


@both()
def test_a_second_derivative_into_a_result_with_hooks(compile):
    f, x, watch = compile(torch.tanh), leaf(3), Watch()
    y = f(x)
    y.register_hook(watch.scaling("y"))
    y.retain_grad()
    (a,) = grad(y.sum(), x, create_graph=True)
    a.sum().backward()
    return a, y.grad, x.grad, watch.seen


@both()
def test_a_second_derivative_by_a_result_that_eager_saves(compile):
    f, x = compile(torch.sigmoid), leaf(3)
    y = f(x)
    (a,) = grad(y.sum(), x, create_graph=True)
    by_both = grad(a.sum(), [x, y], retain_graph=True)
    return a, by_both, grad(a.sum(), y, retain_graph=True), grad((a * y).sum(), x)


@both()
def test_higher_derivatives_by_a_result_that_eager_saves(compile):
    f, x = compile(torch.tanh), leaf(3)
    y = f(x)
    found = [y.square().sum()]
    for by in (x, y, x, y):
        found += grad(found[-1].sum(), by, create_graph=True)
    return found, grad(found[-1].sum(), x)


def of_one_node(x, w):
    values, vectors = torch.linalg.eigh(x @ x.t())
    return values, vectors.abs()


def of_several(x, w):
    y = (x * w).sigmoid()
    return y, (y * y).exp(), y[0].sqrt()


def a_written_view(x, w):
    y = x * w
    v = y[0]
    v.tanh_()
    return y, v


def a_written_view_that_is_read(x, w):
    y = x * w
    v = y[0]
    v.exp_()
    return y, v, v * y


def a_written_view_that_others_are_computed_from(x, w):
    y = x * w
    v = y[0]
    v.sqrt_()
    return v.exp(), y


def a_written_input(x, w):
    x.sigmoid_()


def a_view_of_a_written_input(x, w):
    v = x[0]
    v.tanh_()
    return v, (x * w).exp()


@both()
@pytest.mark.parametrize(
    "program",
    [
        of_one_node,
        of_several,
        a_written_view,
        a_written_view_that_is_read,
        a_written_input,
        a_view_of_a_written_input,
    ],
)
def test_second_derivatives_by_each_result(compile, program):
    f, found = compile(program), []
    x, w = double(3, 3), double(3, 3)
    for i in range(4):
        given = x * 1.5
        seen = [given, *(f(given, w) or ())]
        if i >= len(seen):
            break
        first = grad(seen[i].square().sum(), [x, w], create_graph=True, allow_unused=True)
        loss = sum(g.square().sum() for g in first if g is not None)
        found += [grad(loss, t, retain_graph=True, allow_unused=True) for t in (x, w, *seen)]
    return found


@both()
def test_an_observed_result_that_is_gone(compile):
    def f(x):
        h = x.tanh()
        return h, (h.exp() * x).sum()

    g, x, seen = compile(f), leaf(3), []
    h, y = g(x)
    h.register_hook(lambda g: seen.append(1))
    (a,) = grad(y, x, create_graph=True)
    return a, seen


@both()
def test_results_that_are_views(compile):
    f, x, w = compile(lambda x, w: (lambda y: (y[0], y.t(), x[1]))((x * w).sin())), leaf(2, 3), leaf(2, 3)
    a, b, c = f(x, w)
    return penalty(a.sum() + (b * c.sum()).square().sum(), x, w), gradients(x, w)


@both()
@pytest.mark.parametrize("hidden", [True, False])
def test_dropout(compile, hidden):
    m = nn.Sequential(
        nn.Linear(3, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 2)
    )

    def f(x):
        y = m(x)
        return (y, y.square().sum()) if hidden else (y.square().sum(),)

    g, x = compile(f), leaf(5, 3)
    loss = g(x)[-1]
    state = torch.get_rng_state()
    first = penalty(loss, x, *m.parameters())
    same = bool((torch.get_rng_state() == state).all())
    return first, same, gradients(x, *m.parameters()), torch.rand(3)


@both()
def test_noise_of_several_kinds(compile):
    def f(x):
        n = torch.randn_like(x) + torch.rand(3) + torch.empty(3).uniform_(0, 2)
        return (torch.nn.functional.dropout(x * n) * x.exp()).sum()

    g, x = compile(f), leaf(3)
    one = g(x)
    other = g(x)
    return penalty(other, x), penalty(one, x), x.grad


@both()
@pytest.mark.parametrize("again", [False, True])
def test_batch_norm_in_training(compile, again):
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    f, x = compile(m), leaf(6, 3, dtype=torch.float64)
    loss = f(x).square().sum()
    if again:
        f(x.detach() * 2)
    first = penalty(loss, x, *m.parameters())
    return first, gradients(x, *m.parameters()), dict(m[1].named_buffers())


@both()
def test_a_gradient_penalty_of_a_critic(compile):
    """The loss of a WGAN-GP with batch norm and dropout."""
    m = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(6, 1))
    critic = compile(m)
    real, made = torch.randn(5, 3), leaf(5, 3)
    mixed = (real * 0.3 + made * 0.7).detach().requires_grad_()
    (g,) = grad(critic(mixed).sum(), mixed, create_graph=True)
    loss = critic(made).mean() - critic(real).mean() + 10 * ((g.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    return loss, gradients(made, mixed, *m.parameters()), dict(m.named_buffers())


@both()
def test_an_input_that_is_written_and_read(compile):
    def f(x, n):
        n.add_(1)
        return (x**3 * n).sum()

    g, x, n = compile(f), leaf(3), torch.ones(3)
    (a,) = grad(g(x, n), x, create_graph=True)
    return a


@both()
def test_an_input_that_is_written_and_not_read(compile):
    def f(x, n):
        n.copy_(x.detach())
        return (x**3).sum()

    g, x, n = compile(f), leaf(3), torch.ones(3)
    y = g(x, n)
    n.zero_()
    return penalty(y, x), x.grad, n


@both()
def test_under_autocast(compile):
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    f, x = compile(m), leaf(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x)
    return [g.dtype for g in penalty(y.float().sum(), x, *m.parameters())]


@both()
def test_numbers_that_change(compile):
    f, x = compile(lambda x, n: (x**3 * n).sum()), leaf(3)
    return [penalty(f(x, n), x) for n in (0.5, 1.5, 2.5)], x.grad


@both()
def test_third_derivatives_of_several_results(compile):
    def f(x):
        h = x.sin() * x
        return h, (h.exp() * x).sum()

    g, x = compile(f), leaf(3)
    h, y = g(x)
    (a,) = grad(y + h.sum(), x, create_graph=True)
    (b,) = grad(a.sum(), x, create_graph=True)
    return a, b, grad(b.sum(), x)


@both()
def test_some_results_without_gradients(compile):
    def f(x, w):
        h = (x * w).tanh()
        with torch.no_grad():
            n = h.sum()
        return n, h.detach(), h, (h * w * n).sum()

    g, x, w = compile(f), leaf(3), leaf(3)
    n, d, h, y = g(x, w)
    return penalty(y, x, w), gradients(x, w), n, d


@both()
@pytest.mark.parametrize(
    "norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm], ids=["hook", "parametrization"]
)
def test_spectral_norm(compile, norm):
    """The vectors of the power iteration are written at each call, and read."""
    m = nn.Sequential(norm(nn.Linear(3, 4)), nn.Tanh(), norm(nn.Linear(4, 2)))
    f, x = compile(m), leaf(5, 3)
    y = f(x).pow(2).sum()
    f(x.detach())
    return penalty(y, x), gradients(x, *m.parameters()), [b.clone() for b in m.buffers()]


@both()
def test_a_running_mean_that_is_read(compile):
    mean = torch.ones(3)

    def f(x):
        mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return ((x - mean) ** 3).sum()

    g, x = compile(f), leaf(4, 3)
    y = g(x)
    g(x)
    return penalty(y, x), x.grad, mean


@both()
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_checkpoint_that_draws(compile, dropout):
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3))

    def f(x):
        x = nn.functional.dropout(x, 0.3)
        return checkpoint(lambda y: layers(y).tanh(), x, use_reentrant=False).square().sum()

    g, x = compile(f), leaf(2, 4)
    y = g(x)
    torch.rand(3)
    return penalty(y, x, *layers.parameters()), gradients(x, *layers.parameters()), torch.rand(2)


@both()
def test_a_large_input_that_is_written_and_read(compile):
    def f(x, n):
        n.add_(1)
        return (x**3 * n[:3]).sum()

    g, x, n = compile(f), leaf(3), torch.ones(100_000)
    (a,) = grad(g(x, n), x, create_graph=True)
    return a


@both()
def test_sizes_that_change(compile):
    """One graph for all: the run again is for the sizes of each, and a large input is not copied for it."""

    def f(x, n):
        n.add_(1)
        return (x.view(-1, 2) ** 3 * n.view(-1, 2)).sum() * x.shape[0]

    g, found = compile(f), []
    for size in (4, 6, 100_000, 8, 100, 6):
        x = leaf(size)
        (a,) = grad(g(x, torch.ones(size)), x, create_graph=True)
        found.append(a)
        if size <= 100:
            found += grad(a.square().sum(), x)
    return found


@both()
def test_gradients_between_the_results_of_many_layers(compile):
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def f(x):
        found = []
        for layer in layers:
            x = layer(x).tanh()
            found.append(x)
        return found

    g, x = compile(f), leaf(2, 3)
    a, _, c = g(x)
    (first,) = grad(c.square().sum(), a, create_graph=True)
    (second,) = grad(first.square().sum(), a, create_graph=True)
    return first, second, grad(second.sum(), [x, *layers.parameters()], allow_unused=True)


@both()
def test_a_result_that_is_detached_from_the_others(compile):
    def f(x, w):
        h = (x * w).tanh()
        return h, (h.detach() * w * h).sum()

    g, x, w = compile(f), leaf(3), leaf(3)
    h, y = g(x, w)
    return penalty(y * h.sum(), x, w), gradients(x, w)


@both()
def test_a_step_inside_of_a_loss(compile):
    """MAML: the second call is given what was computed from the first one's gradients."""
    layer = nn.Linear(3, 3)
    f = compile(lambda x, w, b: nn.functional.dropout((x @ w + b).tanh(), 0.3).square().sum())
    x, (w, b) = torch.randn(2, 3), layer.parameters()
    of_w, of_b = grad(f(x, w, b), [w, b], create_graph=True)
    f(x, w - 0.1 * of_w, b - 0.1 * of_b).backward()
    return gradients(w, b)


# ------------------------------------------------------------------------------------------------- what is written


def a_value(x, w):
    y = x * 2
    y.add_(1)
    return y, y[0]


def a_row(x, w):
    y = x.sin()
    y[0] = w[0] * w[1]
    return y, y[0], y.t()[1:]


def through_a_view(x, w):
    y = x * 2
    v = y[0]
    v.exp_()
    return y, v, y.sin()


def read_before_and_after(x, w):
    y = x * w
    v = y[0]
    before = v.exp()
    y.mul_(3)
    z = v + before
    y[1].add_(z)
    return y, v, z, z.exp().sum() * y, before


def views_from_before(x, w):
    y = x.exp() + 1
    a, b = y[:, 1:], y.t()
    y.mul_(w)
    return y, a, b, a * a, b.sin()


def without_gradients(x, w):
    y = x * w
    z = y.exp()
    with torch.no_grad():
        y.mul_(2)
    return y, z, y[0] * 3


def a_detached_alias(x, w):
    y = x * 2
    y.mul_(w)
    z = (y + 1).exp()
    y.detach().add_(1)
    return y, z


def unnamed_memory(x, w):
    y = x.t().reshape(-1)
    y.mul_(2)
    z = torch.nn.functional.pad(x, (1, 1))
    z[0] = w[0, 0]
    return y, y[0], y.exp(), z, z[1:], z.sin()


def an_input(x, w):
    x.mul_(w)
    return x * x, x[0]


def an_input_through_a_view(x, w):
    v = x[1:]
    v.mul_(2)
    y = v + w[1:]
    x[0] = y[0].exp()
    return y, v, x.sin()


def an_input_without_gradients(x, w):
    with torch.no_grad():
        w.mul_(2)
    y = x * w
    return y, y[0], (y * w).sum()


WRITTEN = {
    f.__name__: f
    for f in (
        *(a_value, a_row, through_a_view, read_before_and_after, views_from_before, without_gradients),
        *(a_detached_alias, unnamed_memory, an_input, an_input_through_a_view, an_input_without_gradients),
    )
}
written = pytest.mark.parametrize("program", WRITTEN)


@written
@both()
def test_all_results_of_what_is_written(compile, program):
    f, x, w = compile(WRITTEN[program]), double(3, 3), double(3, 3)
    given = x * 1
    results = f(given, w)
    first = grad(sum(r.square().sin().sum() for r in results), [x, w], create_graph=True, allow_unused=True)
    sum(g.square().sum() for g in first if g is not None).backward()
    return [None if g is None else g.contiguous().detach() for g in first], gradients(x, w)


refused_by_eager = pytest.mark.skipif(
    ON_GPU, reason="on a GPU eager takes it for a second backward, and raises"
)


@pytest.mark.parametrize(
    "program",
    [pytest.param(n, marks=refused_by_eager) if n == "through_a_view" else n for n in WRITTEN],
)
@both()
def test_one_result_of_what_is_written(compile, program):
    f, found = compile(WRITTEN[program]), []
    for i in range(len(WRITTEN[program](double(3, 3) * 1, double(3, 3)))):
        x, w = double(3, 3), double(3, 3)
        given = x * 1
        found.append((penalty(f(given, w)[i].sin().sum(), x, w), gradients(x, w)))
    return found


@written
@both()
def test_hooks_on_results_of_what_is_written(compile, program):
    f, x, w, watch = compile(WRITTEN[program]), double(3, 3), double(3, 3), Watch()
    given = x * 1
    results = f(given, w)
    for i, r in enumerate(results):
        assert r.grad_fn is not None  # torch crashes at a hook on a view that has not taken its history anew
        r.register_hook(watch.scaling(i, 1 + i))
    loss = sum(r.square().sum() for r in results)
    first = grad(loss, [x, w], create_graph=True, allow_unused=True)
    return [None if g is None else g.contiguous() for g in first], sorted(i for i, _ in watch.seen)


@both()
def test_a_result_of_what_is_written_is_gone(compile):
    """Where gradients of the input that is written are asked for, those of the result that is gone are not."""

    def f(x):
        x.exp_()
        return x.sin()

    g, w = compile(f), leaf(3)
    x = w * 1
    y = g(x)
    (a, b) = grad(y.sum(), [w, x], create_graph=True)
    return a, b, grad((a * b).sum(), w)


@both()
def test_a_view_from_before_the_write_is_read_beside_the_input(compile):
    def f(x):
        v = x.view_as(x)
        v.tanh_()
        return v + x, v * 2

    g, w = compile(f), double(3)
    x = w * 1
    y, z = g(x)
    first = grad((y.square() + z).sum(), [w, x], create_graph=True)
    return first, grad(first[0].square().sum(), w)


def a_view(w):
    q = w * 1
    v = q[0]
    v.exp_()
    return q**3, v


def a_view_of_a_view(w):
    v = (w * 1).view(1, 3)
    u = v.t()[:2]
    u.sigmoid_()
    return (v * v * v).sin(), u


def written_beside_other_views(w):
    q = w * 1
    v = q[:1]
    v.exp_()
    a, b, _ = q.unbind()
    return q**3 * a * b, v, a


HIDDEN = {f.__name__: f for f in (a_view, a_view_of_a_view, written_beside_other_views)}


@pytest.mark.parametrize("program", HIDDEN)
@both()
def test_higher_derivatives_by_a_written_view_of_what_is_hidden(compile, program):
    f, found = compile(HIDDEN[program]), []
    for order in itertools.product(range(2), repeat=4):
        w = double(3)
        y, v, *_ = f(w)
        g = y.sum()
        for by in order:
            if g is not None:
                (g,) = grad(g.sum(), (w, v)[by], create_graph=True, allow_unused=True)
            found.append(g)
    return found


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, torch.sin, torch.neg])
@both()
def test_a_result_is_written_before_the_first_derivative(compile, function):
    """That raises where eager has saved the result."""
    f, x = compile(lambda x: function(x * 3)), double(3)
    y = f(x)
    y.mul_(2)
    try:
        (g,) = grad(y.sum(), x, create_graph=True)
    except RuntimeError as error:
        return "modified" in str(error)
    return g


def test_a_default_device_while_it_was_captured():
    """The graph runs again in the backward, where torch has no default device: a mode, and one of each thread."""

    def fn(x):
        return (x @ torch.ones(4, 4) * torch.arange(4.0)).sin()

    def observed(call):
        torch.manual_seed(0)
        x = torch.randn(3, 4, device="meta").requires_grad_()
        with torch.device("meta"):
            y = call(x)
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].square().sum()

    compiled = smelt.compile(fn, backend="aot_eager")
    assert observed(compiled).device == observed(fn).device == torch.device("meta")
    check_no_failure(compiled)
