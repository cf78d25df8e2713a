"""Results that are views, and inputs that are written, from which other results are computed: all that flows goes through
them, where hooks see it, `torch.autograd.grad` asks for it and writes change it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.training import both, gradients, leaf, raised


def part(x, w):
    y = x[:, 1:]
    return y, (y * w).sum()


def of_a_result(x, w):
    h = x @ torch.ones(4, 4) * w[0, 0]
    y = h[:, 1:]
    return h, y, (y * w).sin()


def of_a_view(x, w):
    h = x * 2
    y = h.t()
    z = y[1:]
    return y, z, z.t() * w, y.exp()


def behind_a_write(x, w):
    h = x * 2
    y = h[:, 1:]
    h.mul_(3)
    z = y.t()
    return h, y, z, z.t() * w, z[1:].exp(), z[1:]


def pieces(x, w):
    a, b = x.exp().split([1, 3], 1)
    return a, b, b * w + a


def one_piece_is_read(x, w):
    a, b = x.exp().split([1, 3], 1)
    return a, b, b * w


def two_calls(x, w):
    h = x.exp()
    a, _ = h.split([1, 3], 1)
    b, c = h.split([1, 3], 1)
    return a, b, c * w + a * b


def heads(x, w):
    q, k = (x * 2).view(3, 2, 2).transpose(0, 1).unbind(0)
    return q, k, (q @ k.t()).softmax(-1), w * 2


def one_after_the_other(x, w):
    y = x[:, 1:]
    a = y * w
    b = a.view(9)
    c = b.exp()
    d = c.view(3, 3)
    return y, a, b, c, d, d.sum(0)


def kinds_of_views(x, w):
    wide, rows = x[:1].expand(3, 4), w.t()
    diagonal, windows = x.diagonal(), x.unfold(1, 2, 1)
    return wide, rows, diagonal, windows, (wide * x).sum(), rows @ w, diagonal.exp(), windows * 2


PROGRAMS = {
    f.__name__: f
    for f in (
        *(part, of_a_result, of_a_view, behind_a_write, pieces, one_piece_is_read, two_calls, heads),
        *(one_after_the_other, kinds_of_views),
    )
}
programs = pytest.mark.parametrize("program", PROGRAMS)
inside = pytest.mark.parametrize("of", ["leaf", "result"])


def inputs(of):
    x, w = leaf(3, 4), leaf(3, 3)
    return (x, w, x, w) if of == "leaf" else (x, w, x * 1, w * 1)


def noted(seen, gradient, *more):
    """What a hook does: doubles what flows, where it is not None."""
    seen.append((gradient if gradient is None else gradient.contiguous().clone(), *more))
    return gradient if gradient is None else gradient * 2


def values(gradients):
    """Gradients laid out densely: how they lie follows from which were added up first."""
    return [None if g is None else g.contiguous() for g in gradients]


def loss(results):
    return sum((r * r).sum() for r in results if r.requires_grad)


@inside
@programs
@both()
def test_gradients(compile, program, of):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs(of)
    results = f(*given)
    loss(results).backward()
    views = [(r._is_view(), r.is_leaf, r._base is given[0]) for r in results]
    return results, views, values(gradients(x, w))


@inside
@programs
@both()
def test_hooks_see_all_that_flows(compile, program, of):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs(of)
    seen = []
    results = f(*given)
    for i, r in enumerate(results):
        r.register_hook(lambda g, i=i: noted(seen, g, i))
    results[-1].sum().backward(retain_graph=True)
    first = gradients(x, w)
    loss(results).backward()
    return seen, values(first), values(gradients(x, w))


@inside
@programs
@both()
def test_gradients_by_each_result(compile, program, of):
    f = compile(PROGRAMS[program])
    found, i, n = [], 0, 1
    while i < n:
        x, w, *given = inputs(of)
        results = f(*given)
        wanted = [*(r for k, r in enumerate(results) if k != i), x, w]
        found.append(values(torch.autograd.grad((results[i] ** 2).sum(), wanted, allow_unused=True)))
        i, n = i + 1, len(results)
    return found


@programs
@both()
def test_only_the_last_result_lives(compile, program):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs("result")
    last = f(*given)[-1]
    found = torch.autograd.grad((last * last).sum(), (x, w), retain_graph=True, allow_unused=True)
    many = torch.stack([torch.ones_like(last), torch.full_like(last, 2.0)])
    return values(found), values(
        torch.autograd.grad(last, (x, w), many, is_grads_batched=True, allow_unused=True)
    )


@programs
@both()
def test_kept_gradients(compile, program):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs("result")
    results = f(*given)
    for r in results:
        r.retain_grad()
    loss(results).backward()
    return values(gradients(*results, x, w))


@inside
@programs
@both()
def test_second_derivatives(compile, program, of):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs(of)
    results = f(*given)
    found = torch.autograd.grad(loss(results), (x, w), create_graph=True)
    sum((g * g).sum() for g in found).backward()
    return values(found), values(gradients(x, w))


@pytest.mark.parametrize("which", [0, 1, 2])
@programs
@both()
def test_writes_before_the_backward(compile, program, which):
    f = compile(PROGRAMS[program])
    x, w, *given = inputs("result")
    results = f(*given)
    error = raised(lambda: results[which % len(results)].mul_(2))
    return results, error or raised(loss(results).backward) or gradients(x, w)


@both()
def test_hooks_inside(compile):
    seen = []

    def fn(x, w):
        y = x[:, 1:]
        y.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        z = y * w
        y.t().register_hook(lambda g: seen.append(g.clone()))
        return z.sum()

    x, w = leaf(3, 4), leaf(3, 3)
    compile(fn)(x, w).backward()
    return seen, gradients(x, w)


@both()
def test_only_a_view_is_taken_of_what_has_a_hook(compile):
    def fn(x):
        y = x.sin()
        v = y.view(-1)
        v.register_hook(lambda g: g * 10)
        return y, v[1:]

    x = leaf(2, 2)
    y, rest = compile(fn)(x)
    rest.sum().backward(retain_graph=True)
    first = gradients(x)
    y.sum().backward()
    return first, gradients(x)


@both()
def test_without_gradients(compile):
    f = compile(part)
    with torch.no_grad():
        y, total = f(leaf(3, 4), leaf(3, 3))
    z, more = f(torch.randn(3, 4), torch.randn(3, 3))
    return y, total, y._is_view(), z, more, z._is_view()


@both()
def test_only_one_input_needs_gradients(compile):
    f, w = compile(part), leaf(3, 3)
    y, total = f(torch.randn(3, 4), w)
    total.backward()
    return y, y._is_view(), gradients(w)


@both(whole=False)
def test_a_view_that_lives_over_a_break(compile):
    layer = nn.Linear(4, 4)

    def fn(x):
        h = layer(x)
        y = h[:, 1:]
        z = y.sin()
        print(end="")
        return y * z, h

    x = leaf(3, 4)
    loss(compile(fn)(x)).backward()
    return gradients(x, *layer.parameters())


# ------------------------------------------------------------------------------------------- inputs that are written


def added(buffer, x):
    buffer.add_(x)
    return buffer * 2


def a_row(buffer, x):
    buffer[1] = x[1] * x[0]
    return buffer.sin(), x * 2


def shown(buffer, x):
    buffer.mul_(2).add_(x)
    y = buffer[1:]
    return y, y * 2, x * y[0], buffer[0]


def twice(buffer, x):
    buffer.add_(x)
    z = buffer * 2
    buffer.add_(z)
    return z, buffer.exp(), buffer[1].exp(), buffer[1]


def only_shown(buffer, x):
    buffer.add_(x)
    return buffer[1:], buffer[1:].t()


WRITES = {f.__name__: f for f in (added, a_row, shown, twice, only_shown)}
writes = pytest.mark.parametrize("program", WRITES)
before = pytest.mark.parametrize("requires_grad", [False, True])


@before
@writes
@both()
def test_a_written_input(compile, program, requires_grad):
    f = compile(WRITES[program])
    start, x = torch.randn(3, 4).requires_grad_(requires_grad), leaf(3, 4)
    buffer = start * 1
    results = f(buffer, x)
    results = results if isinstance(results, tuple) else (results,)
    seen = []
    buffer.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    loss((*results, buffer)).backward()
    return buffer, results, seen, gradients(start, x)


@writes
@both()
def test_gradients_by_what_was_written(compile, program):
    f = compile(WRITES[program])
    buffer, x = torch.randn(3, 4), leaf(3, 4)
    results = f(buffer, x)
    results = results if isinstance(results, tuple) else (results,)
    return torch.autograd.grad(loss(results), (buffer, x))


@both()
def test_a_buffer_of_a_module(compile):
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(2, 4))

        def forward(self, x):
            self.state.mul_(0.5).add_(self.layer(x))
            return self.layer(self.state)

    memory, x = Memory(), leaf(2, 4)
    f = compile(memory)
    found = []
    for _ in range(3):
        f(x).sum().backward()
        found.append((memory.state.detach().clone(), gradients(x, *memory.parameters())))
        memory.state.detach_()
    return found
