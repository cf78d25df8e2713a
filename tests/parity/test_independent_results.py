"""Results that are differentiated one after the other: what is freed, what runs behind the inputs, and how often."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.training import both, gradients, leaf, raised


def every_gradient(*modules):
    return gradients(*(p for m in modules for p in m.parameters()))


class Noting(torch.autograd.Function):
    """Notes that its backward ran."""

    @staticmethod
    def forward(ctx, x, name, seen):
        ctx.name, ctx.seen = name, seen
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.seen.append((ctx.name, g.clone()))
        return g * 2, None, None


# ---------------------------------------------------------------------------------------------- one after the other


@both()
def test_two_layers(compile):
    a, b, x = nn.Linear(3, 4), nn.Linear(3, 4), leaf(2, 3)
    u, v = compile(lambda x: (a(x), b(x)))(x)
    u.sum().backward()
    first = every_gradient(a, b)
    v.sum().backward()
    return first, every_gradient(a, b), gradients(x)


@both()
def test_the_two_losses_of_an_adversary(compile):
    make, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    f = compile(lambda real, made: (judge(real).sigmoid(), judge(made).sigmoid()))
    real, made = f(torch.randn(4, 3), make(torch.randn(4, 3)).tanh())
    real.log().mean().backward()
    (1 - made).log().mean().backward()
    return every_gradient(make, judge)


@both()
def test_two_of_three_and_then_the_third(compile):
    parts = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(3)]
    x = leaf(4, 3)
    u, v, w = compile(lambda x: [part(x) for part in parts])(x)
    (u.sum() + v.sum()).backward()
    w.sum().backward()
    return every_gradient(*parts), gradients(x)


@both()
def test_results_that_share_what_saves_nothing(compile):
    def f(x):
        h = x + 1
        return h.exp(), h.sin()

    x = leaf(3)
    u, v = compile(f)(x)
    u.sum().backward()
    v.sum().backward()
    return gradients(x)


@both()
def test_results_that_share_what_is_freed(compile):
    def f(x):
        h = x.exp()
        return h * 2, h * 3

    x = leaf(3)
    u, v = compile(f)(x)
    u.sum().backward()
    return gradients(x), raised(v.sum().backward)


@both()
def test_a_result_between_two_that_share_nothing(compile):
    def f(x, w):
        h, k = x.exp(), w.exp()
        return h * 2, h + k, k * 2

    x, w = leaf(3), leaf(3)
    first, both_, last = compile(f)(x, w)
    first.sum().backward()
    last.sum().backward()
    return gradients(x, w), raised(both_.sum().backward)


@both()
def test_what_saves_nothing_is_differentiated_again(compile):
    x = leaf(3)
    y, z = compile(lambda x: (x + 1, (x * 2).sum()))(x)
    y.sum().backward()
    y.sum().backward()
    z.backward()
    return gradients(x), raised(z.backward)


@both()
def test_a_result_beside_one_that_another_is_computed_from(compile):
    def f(x, w):
        y = x * w
        return y, y.exp(), x.sin()

    x, w = leaf(3), leaf(3)
    y, z, other = compile(f)(x, w)
    other.sum().backward()
    z.sum().backward()
    return gradients(x, w), raised(y.sum().backward)


@both()
@pytest.mark.parametrize("retain", [False, True])
def test_a_gradient_that_ends_at_a_result_frees_nothing_before_it(compile, retain):
    """Eager's engine does not run what the result itself was computed from."""

    def f(x, w):
        h = (x * w).exp()
        return h, h.sin(), h.cos()

    x, w = leaf(3), leaf(3)
    h, u, v = compile(f)(x, w)
    (seen,) = torch.autograd.grad(u.sum(), h, retain_graph=retain)
    again = raised(lambda: torch.autograd.grad(u.sum(), h))
    v.sum().backward()
    return seen, again, gradients(x, w), raised(h.sum().backward), raised(v.sum().backward)


@both()
def test_a_penalty_of_the_logits_before_the_loss(compile):
    body, head, x = nn.Linear(3, 3), nn.Linear(3, 2), leaf(4, 3)

    def f(x):
        hidden = body(x).tanh()
        logits = head(hidden)
        return hidden, logits, torch.nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))

    hidden, logits, loss = compile(f)(x)
    (by_hidden,) = torch.autograd.grad(logits.sum(), hidden)
    later = raised((loss + by_hidden.sum()).backward)
    hidden.sum().backward()
    return by_hidden, later, every_gradient(body, head), gradients(x)


@both()
def test_a_written_input_between_two_results(compile):
    def f(z, w):
        z.mul_(w)
        return z.cos(), (z * w).sum()

    a, w = leaf(3), leaf(3)
    z = a * 1.5
    u, v = compile(f)(z, w)
    (seen,) = torch.autograd.grad(v, z)
    u.sum().backward()
    return seen, gradients(a, w), raised(z.sum().backward)


@both()
def test_inputs_that_are_written_one_by_one(compile):
    @compile
    def f(a, b):
        a[:, 1].neg_()
        b[:, 1].neg_()

    a, b = leaf(2, 3), leaf(2, 3)
    u, v = a * 1, b * 1
    f(u, v)
    u.sum().backward()
    (v * 2).sum().backward()
    return gradients(a, b)


@both()
def test_the_graph_is_kept(compile):
    a, b, x = nn.Linear(3, 4), nn.Linear(3, 4), leaf(2, 3)
    u, v = compile(lambda x: (a(x).tanh(), b(x).tanh()))(x)
    u.sum().backward(retain_graph=True)
    (u.sum() + v.sum()).backward()
    return every_gradient(a, b), gradients(x), raised(u.sum().backward), raised(v.sum().backward)


# --------------------------------------------------------------------------------------------- behind the inputs


@both()
def test_hooks_of_parameters_that_a_result_does_not_depend_on(compile):
    trunk, a, b, seen = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(3, 4), []
    for name, m in {"trunk": trunk, "a": a, "b": b}.items():
        m.weight.register_hook(lambda g, name=name: (seen.append(name), g * 2)[1])
        m.bias.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name + " bias"))

    @compile
    def f(x):
        h = trunk(x).tanh()
        return a(h), b(h)

    u, v = f(leaf(2, 3))
    u.sum().backward(retain_graph=True)
    first = sorted(seen)
    v.sum().backward()
    return first, sorted(seen), every_gradient(trunk, a, b)


@both()
def test_functions_behind_inputs_that_a_result_does_not_depend_on(compile):
    def f(x, y, w):
        h = (x * w).exp()
        return h.sin(), (h * y).exp()

    p, q, w, seen = leaf(3), leaf(3), leaf(3), []
    u, v = compile(f)(Noting.apply(p, "p", seen), Noting.apply(q, "q", seen), w)
    u.sum().backward(retain_graph=True)
    first = list(seen)
    v.sum().backward()
    return first, seen[1:2] and sorted(name for name, _ in seen[1:]), gradients(p, q, w)


@both()
def test_what_is_behind_an_input_runs_once_for_all_results(compile):
    p, seen = leaf(3), []
    u, v, w = compile(lambda x: (x.sin(), x.cos(), x.exp()))(Noting.apply(p, "p", seen))
    (u + v + w).sum().backward()
    return seen, gradients(p)


@both()
def test_what_a_dropped_result_saved_is_not_in_the_way(compile):
    a, b, x = nn.Linear(3, 4), nn.Linear(3, 4), leaf(2, 3)
    u, v = compile(lambda x: (a(x).tanh(), b(x).tanh()))(x)
    del u
    v.sum().backward()
    return every_gradient(a, b), gradients(x)


@both()
def test_chosen_inputs_of_several_results(compile):
    a, b, x = nn.Linear(3, 4), nn.Linear(3, 4), leaf(2, 3)
    u, v = compile(lambda x: (a(x).tanh(), b(x).tanh()))(x)
    chosen = torch.autograd.grad((u + v).sum(), [b.weight], retain_graph=True)
    unused = torch.autograd.grad(v.sum(), [x, a.weight], allow_unused=True, retain_graph=True)
    return chosen, unused, raised(lambda: torch.autograd.grad(u.sum(), [b.weight]))


@both()
def test_second_derivatives_of_several_results(compile):
    x, w = leaf(3), leaf(3)
    u, v = compile(lambda x, w: (x.pow(3), (x * w).exp()))(x, w)
    (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(v.sum(), x, create_graph=True)
    return g, h, torch.autograd.grad((g * h).sum(), [x, w])
