"""Hooks on what a compiled function computes, registered in it, and what it says to autograd about its tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from tests.harness.training import both, gradients, leaf, raised

# --------------------------------------------------------------------------------------------- hooks on intermediates


@both()
def test_a_hook_that_records(compile):
    seen = []

    @compile
    def f(x, w):
        h = (x @ w).relu()
        h.register_hook(lambda g: seen.append(g.clone()))
        return (h * 2).sum()

    x, w = leaf(3, 4), leaf(4, 2)
    for _ in range(3):
        f(x, w).backward()
    return seen, gradients(x, w)


@both()
def test_a_hook_that_scales(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 10)
        return y.exp() + y

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both()
def test_a_hook_that_raises(compile):
    allowed = []

    def hook(g):
        if not allowed:
            raise KeyError("hook")

    @compile
    def f(x):
        y = x * 2
        y.register_hook(hook)
        return y.sin()

    x = leaf(3)
    y = f(x).sum()
    failure = raised(lambda: y.backward(retain_graph=True))
    allowed.append(True)
    y.backward()
    return failure, gradients(x)


@both()
def test_hooks_that_are_removed(compile):
    @compile
    def f(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 10)
        y.register_hook(lambda g: g + 1)
        with y.register_hook(lambda g: g * 100):
            z = y.sin()
        handle.remove()
        return z

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both(ahead=False)
def test_all_hooks_are_removed(compile):
    """What had one need not be known to autograd."""

    @compile
    def f(x):
        y = x.sin()
        handle = y.register_hook(lambda g: g * 10)
        handle.remove()
        handle.remove()
        return y * 2

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both(ahead=False)
def test_the_handle_of_a_removed_hook_leaves(compile):
    @compile
    def f(x):
        y = x.sin()
        handle = y.register_hook(lambda g: g * 10)
        other = y.register_hook(lambda g: g * 100)
        handle.remove()
        return y * 2, handle, other

    x = leaf(3)
    y, handle, other = f(x)
    numbers = other.id - handle.id
    handle.remove()
    y.sum().backward()
    return type(handle), numbers, gradients(x)


@both()
def test_several_hooks_run_in_order(compile):
    seen = []

    @compile
    def f(x):
        x.register_hook(lambda g: seen.append("x"))
        for i in range(3):
            x = x * 2
            x.register_hook(lambda g, i=i: (seen.append(i), g + i)[1])
            x.register_hook(lambda g, i=i: (seen.append(-i), g * 3)[1])
        return x

    x = leaf(3)
    f(x).sum().backward()
    return seen, gradients(x)


@both()
def test_hooks_of_two_branches_run_in_the_order_of_eager(compile):
    seen = []

    @compile
    def f(x, w):
        a, b = x.sin(), (x @ w).cos()
        b.register_hook(lambda g: seen.append("b"))
        a.register_hook(lambda g: seen.append("a"))
        c = a * b
        c.register_hook(lambda g: seen.append("c"))
        x.register_hook(lambda g: seen.append("x"))
        w.register_hook(lambda g: seen.append("w"))
        return c.exp().sum() + b.sum()

    x, w = leaf(3, 3), leaf(3, 3)
    f(x, w).backward()
    return seen, gradients(x, w)


@both()
def test_a_hook_on_a_result(compile):
    @compile
    def f(x):
        y = x.tanh()
        y.register_hook(lambda g: g * 3)
        return y, y.exp()

    x = leaf(3)
    y, z = f(x)
    y.register_hook(lambda g: g + 1)
    (y * 2).sum().backward(retain_graph=True)
    z.sum().backward()
    return gradients(x)


@both()
def test_a_hook_on_what_the_results_do_not_use(compile):
    seen = []

    @compile
    def f(x):
        (x * 2).register_hook(seen.append)
        return x.sin()

    x = leaf(3)
    f(x).sum().backward()
    return seen, gradients(x)


@both()
def test_a_hook_on_the_result_of_a_matrix_product_of_parameters(compile):
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = self.a(x).relu()
            if self.training:
                h.register_hook(lambda g: seen.append(g.norm()))
            return self.b(h)

    m = Net()
    f = compile(m)
    sgd = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(3):
        sgd.zero_grad()
        f(torch.randn(5, 4)).pow(2).mean().backward()
        sgd.step()
    return seen, [p.detach() for p in m.parameters()]


@both()
def test_a_gradient_that_is_reversed_by_a_hook(compile):
    @compile
    def f(x, w, v):
        features = x @ w
        domain = features * 1
        domain.register_hook(torch.neg)
        return (features @ v).sum() + (domain @ v).pow(2).sum()

    x, w, v = leaf(2, 3), leaf(3, 4), leaf(4, 1)
    f(x, w, v).backward()
    return gradients(x, w, v)


@both()
def test_a_hook_with_values_of_the_program(compile):
    @compile
    def f(x):
        y = x.sin()
        z = y.exp()
        mask = z > 1
        y.register_hook(lambda g: g * mask + z.detach())
        return z * y

    x = leaf(5)
    f(x).sum().backward()
    return gradients(x)


@both()
def test_a_hook_with_retained_graph(compile):
    seen = []

    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        return y.exp().sum()

    x = leaf(3)
    y = f(x)
    y.backward(retain_graph=True)
    y.backward()
    return seen, gradients(x), raised(y.backward)


@both()
def test_gradients_are_asked_for_beside_a_hook(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y, y.exp().sum()

    x = leaf(3)
    y, z = f(x)
    a = torch.autograd.grad(z, [x, y], retain_graph=True)
    b = torch.autograd.grad(z, y)
    return a, b


@both()
def test_a_hook_that_makes_a_gradient_of_gradients(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * g)
        return y.exp().sum()

    x = leaf(3)
    f(x).backward()
    return gradients(x)


@both()
def test_a_hook_on_a_parameter_after_accumulation(compile):
    m = nn.Linear(3, 2)
    seen = []

    @compile
    def f(x):
        m.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        h = m(x)
        h.register_hook(lambda g: g * 2)
        return h.sum()

    f(leaf(4, 3)).backward()
    return seen, gradients(*m.parameters())


@both()
def test_a_hook_under_hooks_of_saved_tensors(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y.exp() * y

    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [t.detach().clone()], lambda held: held[0]):
        z = f(x)
    z.sum().backward()
    return gradients(x)


@both(whole=False)
def test_a_hook_inside_a_checkpoint(compile):
    seen = []

    def region(x):
        y = x.sin()
        y.register_hook(lambda g: seen.append(g.clone()))
        return y.exp()

    @compile
    def f(x):
        return checkpoint(region, x, use_reentrant=False).sum()

    x = leaf(3)
    f(x).backward()
    return gradients(x), len(seen)


@both()
def test_a_hook_beside_a_checkpoint(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        z = checkpoint(lambda y: y.exp().cos(), y, use_reentrant=False)
        z.register_hook(lambda g: g + 1)
        return (z * y).sum()

    x = leaf(3)
    f(x).backward()
    return gradients(x)


@both(whole=False)
def test_a_hook_on_what_is_written_afterwards(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 10)
        y.mul_(3)
        return y.exp()

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both(whole=False)
def test_a_hook_on_a_view_of_what_is_written_afterwards(compile):
    @compile
    def f(x):
        y = x.sin()
        v = y[1:]
        v.register_hook(lambda g: g * 10)
        y.mul_(3)
        return y.exp() + v.sum()

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both()
def test_a_hook_on_what_was_written_before(compile):
    @compile
    def f(x):
        y = x.sin()
        y[0].mul_(3)
        y.register_hook(lambda g: g * 10)
        return y.exp()

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both()
def test_a_hook_on_a_view_of_an_intermediate(compile):
    @compile
    def f(x):
        y = x.sin()
        v = y.view(-1)
        v.register_hook(lambda g: g * 10)
        return v.exp()

    x = leaf(2, 2)
    f(x).sum().backward()
    return gradients(x)


@both(whole=False)
def test_a_hook_before_a_break(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 10)
        smelt.graph_break()
        return y.exp()

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


# ------------------------------------------------------------------------------------------------- retained gradients


@both()
def test_retained_gradients_of_results(compile):
    @compile
    def f(x):
        y = x.sin()
        y.retain_grad()
        z = y.exp()
        z.retain_grad()
        return y, z

    x = leaf(3)
    y, z = f(x)
    z.sum().backward()
    return gradients(x, y, z), y.retains_grad, z.retains_grad


@both()
def test_retained_gradients_of_a_view(compile):
    @compile
    def f(x):
        y = x.sin()
        v = y.view(-1)
        v.retain_grad()
        return y, v

    x = leaf(2, 2)
    y, v = f(x)
    (v * 2).sum().backward()
    return gradients(x, v), y.retains_grad


@both()
def test_retained_gradients_of_attributes(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            self.attention = self.a(x).softmax(-1)
            self.attention.retain_grad()
            return self.b(self.attention)

    m = Net()
    compile(m)(torch.randn(3, 4)).sum().backward()
    return m.attention.grad, gradients(*m.parameters())


@both()
def test_retained_gradients_of_an_input(compile):
    @compile
    def f(x):
        x.retain_grad()
        return x.sin()

    w = leaf(3)
    x = w * 2
    f(x).sum().backward()
    return gradients(x, w), x.retains_grad


@both()
def test_a_retained_gradient_and_a_hook(compile):
    @compile
    def f(x):
        y = x.sin()
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        return y, y.exp().sum()

    x = leaf(3)
    y, z = f(x)
    z.backward()
    return gradients(x, y)


# -------------------------------------------------------------------------------------------- requires_grad_ inside


@both()
def test_gradient_of_a_leaf_made_inside(compile):
    @compile
    def f(x, w):
        x = x.detach().requires_grad_()
        energy = (x @ w).pow(3).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -force

    x, w = torch.randn(3, 4), leaf(4, 4)
    for _ in range(2):
        energy, force = f(x, w)
        (energy + force.pow(2).sum()).backward()
    return energy, force, gradients(w)


@both()
def test_gradient_penalty_of_an_input(compile):
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    @compile
    def f(x):
        x.requires_grad_()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + ((g.norm(dim=1) - 1) ** 2).mean()

    results = []
    for _ in range(3):
        x = torch.randn(5, 3)
        loss = f(x)
        loss.backward()
        results.append((loss, x.grad, x.requires_grad))
    return results, gradients(*m.parameters())


@both()
def test_gradient_penalty_between_real_and_made(compile):
    m = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1))

    @compile
    def f(real, made, alpha):
        mixed = (alpha * real + (1 - alpha) * made).requires_grad_(True)
        score = m(mixed)
        (g,) = torch.autograd.grad(
            score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True, only_inputs=True
        )
        return 10 * ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()

    f(torch.randn(5, 3), torch.randn(5, 3), torch.rand(5, 1)).backward()
    return gradients(*m.parameters())


@both()
def test_adversarial_perturbation(compile):
    m = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    @compile
    def f(x):
        delta = torch.zeros_like(x, requires_grad=True)
        (g,) = torch.autograd.grad(m(x + delta).pow(2).sum(), delta)
        return m(x + 0.1 * g.sign()).pow(2).sum()

    x = torch.randn(4, 3)
    f(x).backward()
    return gradients(*m.parameters())


@both()
def test_a_parameter_made_inside(compile):
    @compile
    def f(x, w):
        p = nn.Parameter(x.detach() * 2)
        frozen = nn.Parameter(w * 3, requires_grad=False)
        (g,) = torch.autograd.grad((p * w).pow(3).sum(), p, create_graph=True)
        return g * x * frozen, frozen

    x, w = leaf(3), leaf(3)
    y, frozen = f(x, w)
    y.sum().backward()
    return gradients(x, w), frozen, type(frozen).__name__, frozen.is_leaf


@both()
def test_several_steps_of_an_attack(compile):
    m = nn.Linear(3, 2)

    @compile
    def f(x):
        attacked = x.clone().detach()
        for _ in range(3):
            attacked.requires_grad_(True)
            with torch.enable_grad():
                loss = m(attacked).exp().sum()
            (g,) = torch.autograd.grad(loss, attacked)
            attacked = (attacked.detach() + 0.01 * g.sign()).clamp(-1, 1)
        return m(attacked)

    f(torch.randn(4, 3)).sum().backward()
    return gradients(*m.parameters())


@both()
def test_an_inner_step_of_parameters(compile):
    @compile
    def f(x, w):
        fast = w.clone()
        for _ in range(2):
            (g,) = torch.autograd.grad((x @ fast).pow(2).sum(), fast, create_graph=True)
            fast = fast - 0.1 * g
        return (x @ fast).sum()

    x, w = torch.randn(4, 3), leaf(3, 2)
    f(x, w).backward()
    return gradients(w)


@both()
def test_an_input_is_switched_on(compile):
    @compile
    def f(x, w):
        a = x * w
        x.requires_grad_()
        return a, x * w

    x, w = torch.randn(3), leaf(3)
    a, b = f(x, w)
    (a * b).sum().backward()
    return a.requires_grad, b.requires_grad, x.requires_grad, gradients(x, w)


@both()
def test_an_input_is_switched_on_where_nothing_else_requires_a_gradient(compile):
    @compile
    def f(x):
        x.requires_grad = True
        return x.sin()

    x = torch.randn(3)
    y = f(x)
    y.sum().backward()
    return y.requires_grad, gradients(x), x.is_leaf


@both()
def test_an_input_is_switched_off(compile):
    @compile
    def f(x, w):
        a = x * w
        w.requires_grad_(False)
        return a, x * w

    x, w = leaf(3), leaf(3)
    a, b = f(x, w)
    (a * b).sum().backward()
    return a.requires_grad, b.requires_grad, w.requires_grad, gradients(x, w)


@both()
def test_an_input_that_was_switched_off_is_switched_on_by_the_caller(compile):
    @compile
    def f(x, w):
        a = x * w
        w.requires_grad_(False)
        return a

    x, w = leaf(3), leaf(3)
    a = f(x, w)
    w.requires_grad_()
    a.sum().backward()
    return gradients(x, w)


@both()
def test_an_input_is_switched_on_and_off(compile):
    @compile
    def f(x, w):
        x.requires_grad_()
        (g,) = torch.autograd.grad((x * w).pow(2).sum(), x, create_graph=True)
        x.requires_grad_(False)
        return g, x * w

    x, w = torch.randn(3), leaf(3)
    g, b = f(x, w)
    (g * b).sum().backward()
    return g.requires_grad, x.requires_grad, gradients(x, w)


@both()
def test_a_frozen_discriminator(compile):
    g, d = nn.Linear(3, 3), nn.Linear(3, 1)

    @compile
    def f(x):
        d.requires_grad_(False)
        loss = d(g(x)).exp().mean()
        d.requires_grad_(True)
        return loss

    for _ in range(2):
        f(torch.randn(2, 3)).backward()
    return gradients(*g.parameters(), *d.parameters()), [p.requires_grad for p in d.parameters()]


@both()
def test_only_flags_change(compile):
    m = nn.Linear(3, 3)

    @compile
    def f(flag):
        for p in m.parameters():
            p.requires_grad_(flag)

    seen = []
    for flag in (False, True, False):
        f(flag)
        seen.append([p.requires_grad for p in m.parameters()])
    return seen


@both(whole=False)
def test_flags_around_a_break(compile):
    @compile
    def f(x, w):
        w.requires_grad_(False)
        a = x * w
        smelt.graph_break()
        w.requires_grad_(True)
        return a * w

    x, w = leaf(3), leaf(3)
    f(x, w).sum().backward()
    return gradients(x, w)


@both(ahead=False)  # the view requires a gradient as well, afterwards, without a history
def test_a_view_of_an_input_whose_flag_changes(compile):
    @compile
    def f(x):
        a = x.view(-1)
        x.requires_grad_()
        return a, x.view(-1)

    x = torch.randn(2, 2)
    a, b = f(x)
    b.sum().backward()
    return a.requires_grad, b.requires_grad, gradients(x)


@both()
def test_a_leaf_without_grad_mode_is_written(compile):
    @compile
    def f(x, w):
        w.requires_grad_(False)
        w.mul_(2)
        w.requires_grad_(True)
        return x * w

    x, w = leaf(3), leaf(3)
    f(x, w).sum().backward()
    return w.detach(), gradients(x, w)


@both()
def test_detached_in_place(compile):
    @compile
    def f(x, w):
        y = x * w
        y.detach_()
        return y * w, y

    x, w = leaf(3), leaf(3)
    z, y = f(x, w)
    z.sum().backward()
    return gradients(x, w), y.requires_grad


@both(whole=False)
def test_an_input_is_detached_in_place(compile):
    @compile
    def f(hidden, w):
        before = hidden + w
        hidden.detach_()
        return before, hidden * w

    x, w = leaf(3), leaf(3)
    hidden = x.sin()
    a, b = f(hidden, w)
    (a + b).sum().backward()
    return gradients(x, w), hidden.is_leaf, hidden.requires_grad


@both(whole=False, ahead=False)
def test_an_input_is_detached_and_written(compile):
    @compile
    def f(hidden, w):
        before = hidden + w
        hidden.detach_()
        hidden.mul_(w)
        return before, hidden.exp()

    x, w = leaf(3), leaf(3)
    hidden = x.sin()
    a, b = f(hidden, w)
    (a + b).sum().backward()
    return gradients(x, w), hidden


@both()
def test_parts_without_grad_mode(compile):
    @compile
    def f(x, w):
        torch.set_grad_enabled(False)
        scale = (x * w).mean()
        torch.set_grad_enabled(True)
        with torch.no_grad():
            y = x * 2
            with torch.enable_grad():
                z = y * w
        y.requires_grad_()
        return z * scale * y

    x, w = leaf(3), leaf(3)
    f(x, w).sum().backward()
    return gradients(x, w)


@both()
def test_a_layer_of_an_equilibrium(compile):
    """The hook that a deep equilibrium model puts on its fixed point."""

    @compile
    def f(x, w):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(5):
                z = torch.tanh(z @ w + x)
        z = torch.tanh(z @ w + x)
        z0 = z.clone().detach().requires_grad_()
        f0 = torch.tanh(z0 @ w + x)
        (g,) = torch.autograd.grad(f0.sum(), z0, retain_graph=True)
        z.register_hook(lambda grad: grad + g)
        return z

    x, w = leaf(2, 3), leaf(3, 3)
    f(x, w).sum().backward()
    return gradients(x, w)


# ------------------------------------------------------------------ what is taken or written outside of the graph's node


@both()
@pytest.mark.parametrize("look", ["hook", "retain"])
def test_a_view_beside_what_it_looks_at(compile, look):
    """What flows into the view reaches what it looks at by way of the view."""
    seen = []

    @compile
    def f(x):
        y = x.sin()
        v = y.view(-1)
        if look == "hook":
            v.register_hook(lambda g: (seen.append(g.clone()), g * 10)[1])
        else:
            v.retain_grad()
        return y, v, v.exp()

    x = leaf(2, 2)
    y, v, z = f(x)
    (y.sum() + v.sum() + z.sum()).backward()
    return seen, gradients(x), v.grad if look == "retain" else None


@both()
def test_a_hook_on_a_view_of_an_input(compile):
    @compile
    def f(x):
        v = x.view(-1)
        v.register_hook(lambda g: g * 10)
        return v.exp()

    x = leaf(2, 2)
    f(x).sum().backward()
    return gradients(x)


@both()
def test_a_hook_on_a_view_of_a_view(compile):
    @compile
    def f(x):
        y = x.sin()
        v = y.view(-1)
        v.register_hook(lambda g: g * 10)
        return y, v[1:]

    x = leaf(2, 2)
    f(x)[1].sum().backward()
    return gradients(x)


@both()
def test_a_hook_on_an_input_that_was_written(compile):
    @compile
    def f(h):
        h.mul_(2)
        h.register_hook(lambda g: g * 10)
        return h.exp()

    x = leaf(3)
    f(x.sin()).sum().backward()
    return gradients(x)


# --------------------------------------------------------------------------------------------- derivatives of derivatives


@both()
def test_a_second_derivative_of_a_gradient_taken_inside(compile):
    @compile
    def f(x, w):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((x @ w).pow(3).sum(), x, create_graph=True)
        return g.sum()

    x, w = leaf(3, 3), leaf(3, 3)
    (g,) = torch.autograd.grad(f(x, w), w, create_graph=True)
    return g, torch.autograd.grad(g.sum(), w)


@both()
def test_a_gradient_is_taken_inside_beside_a_hook(compile):
    seen = []

    @compile
    def f(x, w):
        y = x.sin()
        y.register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        w.register_hook(lambda g: g * 3)
        start = y.detach().requires_grad_()
        (g,) = torch.autograd.grad((start**2).sum(), start)
        return y * g * w

    x, w = leaf(3), leaf(3)
    f(x, w).sum().backward()
    return seen, gradients(x, w)


@both(whole=False, ahead=False)
@pytest.mark.parametrize("on", ["result", "leaf", "between"])
def test_a_gradient_taken_inside_goes_through_a_hook(compile, on):
    seen = []

    @compile
    def f(x):
        y = x.sin()
        z = y.exp().sum()
        {"result": z, "leaf": x, "between": y}[on].register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        return torch.autograd.grad(z, x)[0]

    x = leaf(3)
    return f(x), seen


@both(whole=False, ahead=False)
def test_a_gradient_is_taken_inside_after_a_hook(compile):
    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        z = y.exp()
        (g,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        return g + z

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x)


@both(ahead=False)
def test_a_gradient_is_taken_inside_after_retain_grad(compile):
    @compile
    def f(x):
        y = x.sin()
        y.retain_grad()
        (g,) = torch.autograd.grad(y.exp().sum(), x, create_graph=True)
        return g, y

    x = leaf(3)
    g, y = f(x)
    g.sum().backward()
    return gradients(x, y)


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
def test_a_second_derivative_through_a_hook_says_what_to_do(backend):
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y.exp().sum()

    x = leaf(3)
    (g,) = torch.autograd.grad(smelt.compile(f, backend=backend)(x), x, create_graph=True)
    (want,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(g.detach(), want)
    with pytest.raises(RuntimeError, match="smelt.disable"):
        g.sum().backward()


@both(ahead=False)
@pytest.mark.parametrize("how", ["made", "detached", "hooked"])
def test_a_leaf_made_inside_leaves(compile, how):
    kept = []

    @compile
    def f(x):
        leaf = torch.ones(3, requires_grad=True) if how == "made" else x.detach().requires_grad_()
        if how == "hooked":
            leaf.register_hook(lambda g: g * 3)
        kept.append(leaf)
        return (leaf * x).exp()

    x = leaf(3)
    f(x).sum().backward()
    return gradients(x, *kept), kept[0].is_leaf


@both(ahead=False)
@pytest.mark.parametrize("of", ["input", "result"])
def test_a_view_that_another_result_is_computed_from(compile, of):
    @compile
    def f(x):
        y = x if of == "input" else x.sin()
        v = y.view(-1)
        return y, v, v.exp()

    _, v, z = f(leaf(2, 2))
    return torch.autograd.grad(z.sum(), v, allow_unused=True)


@both(ahead=False)
def test_a_written_input_that_a_result_is_computed_from(compile):
    @compile
    def f(h):
        h.mul_(2)
        return h.exp()

    h = leaf(3).sin()
    return torch.autograd.grad(f(h).sum(), h, allow_unused=True)
