"""Memory that inputs, results and saved tensors share: aliases, writes inside, writes after the call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.harness.training import both, gradients, leaf, raised


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


# ---------------------------------------------------------------------------------------- inputs alias each other


@both()
def test_an_input_and_a_view_of_it(compile):
    f, x, found = compile(lambda a, b: (a.sum(0) * b.sin()).sum()), leaf(2, 3), []
    for make in (lambda x: x[0], lambda x: x.t()[:, 1].contiguous(), lambda x: x.detach()[1]):
        f(x, make(x)).backward()
        found.append(gradients(x))
    return found


@both()
def test_an_input_and_its_transpose(compile):
    f, w = compile(lambda a, b: a @ b), leaf(3, 3)
    f(w, w.t()).pow(2).sum().backward()
    return gradients(w)


@both()
def test_views_of_one_base(compile):
    f, base = compile(lambda q, k, v: (q @ k.t()).softmax(-1) @ v), leaf(6, 4)
    f(*base.chunk(3)).sin().sum().backward()
    f(base[:2], base[1:3], base[1:3]).sin().sum().backward()
    return gradients(base)


@both(whole=False, ahead=False)
def test_an_input_is_written_whose_alias_is_read(compile):
    def fn(a, b):
        a.mul_(2)
        return b.sin() * a.sum()

    f, x, found = compile(fn), leaf(2, 3), []
    for take in (lambda h: h[0], lambda h: h.view(-1), lambda h: h):
        h = x * 1
        y = f(h, take(h))
        (y.sum() + h.sum()).backward()
        found.append((y, h.detach().clone(), gradients(x)))
    return found


@both(whole=False, ahead=False)
def test_an_input_is_written_and_only_later_calls_alias_it(compile):
    def fn(a, b):
        a += b * 2
        return (a + b).sum()

    f, x, w, found = compile(fn), leaf(2, 3), leaf(2, 3), []
    for make in (lambda h: w * 1, lambda h: h, lambda h: h.view(2, 3), lambda h: w * 2):
        h = x * 1
        y = f(h, make(h))
        (y + h.exp().sum()).backward()
        found.append((y.detach(), h.detach(), gradients(x, w)))
    return found


@both()
def test_a_leaf_and_its_data(compile):
    f, w = compile(lambda w, d: (w * d).sum()), leaf(3)
    f(w, w.data).backward()
    f(w, w.detach()).backward()
    return gradients(w)


# ------------------------------------------------------------------------------------------ outputs alias inputs

VIEWS = {
    "view": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "row": lambda x: x[0],
    "narrow": lambda x: x.narrow(1, 0, 2),
    "expand": lambda x: x.unsqueeze(0).expand(4, *x.shape),
    "unbind": lambda x: x.unbind(0)[1],
    "diagonal": lambda x: x.diagonal(),
    "view of a view": lambda x: x.t()[1:].t(),
    "view as complex": lambda x: torch.view_as_complex(x.view(3, 2)).real,
    "detach": lambda x: x.detach(),
    "alias": lambda x: x.view_as(x),
    "itself": lambda x: x,
}


@both()
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_an_output_is_a_view_of_an_input(compile, name, computed):
    view = VIEWS[name]
    f, x = compile(lambda x: (view(x), x.sin())), leaf(2, 3)
    h = x * 2 if computed else x
    y, z = f(h)
    facts = [y is h, shares(y, h), y.requires_grad, z.requires_grad]
    if y.requires_grad:
        (y.exp().sum() + z.sum()).backward()
    return facts, y, gradients(x)


@both()
@pytest.mark.parametrize(
    "name", sorted(VIEWS.keys() - {"unbind"})
)  # eager refuses to write one of several views
def test_a_view_that_came_out_is_written(compile, name):
    view = VIEWS[name]
    f, x = compile(lambda x: (view(x), x * 2)), leaf(2, 3)
    h = x * 2
    y, z = f(h)
    error = raised(lambda: y.mul_(3))
    back = raised(lambda: (h.sin().sum() + z.sum()).backward())
    return error, back, y, h.detach(), gradients(x)


@both()
def test_a_view_of_a_leaf_that_came_out_is_written(compile):
    f, w = compile(lambda w: (w[0], w * 2)), leaf(2, 3)
    row, y = f(w)
    error = raised(lambda: row.mul_(2))
    with torch.no_grad():
        row.add_(1)
    y.sum().backward()
    return error, w, gradients(w)


@both()
def test_outputs_alias_each_other(compile):
    def fn(x):
        h = x * 2
        return h, h.view(-1), h[0], h.t()

    f, x = compile(fn), leaf(2, 3)
    results = f(x)
    facts = [shares(results[0], r) for r in results]
    sum(r.pow(k + 1).sum() for k, r in enumerate(results)).backward()
    return facts, results, gradients(x)


@both()
@pytest.mark.parametrize("written", [0, 1, 2])
def test_one_of_outputs_that_alias_is_written(compile, written):
    def fn(x):
        h = x * 2
        return h, h.view(-1), h[0]

    f, x = compile(fn), leaf(2, 3)
    results = f(x)
    error = raised(lambda: results[written].mul_(3))
    back = raised(lambda: sum(r.sum() for r in results).backward())
    return error, back, [r.detach() for r in results], gradients(x)


@both()
def test_the_same_output_twice(compile):
    def fn(x):
        h = x.sin()
        return h, x, h, {"h": h}, h * 1

    f, x = compile(fn), leaf(2, 3)
    a, same_x, b, held, other = f(x)
    (a.sum() + b.pow(2).sum() + held["h"].exp().sum() + other.sum()).backward()
    return a is b, held["h"] is a, other is a, same_x is x, gradients(x)


@both()
def test_an_output_and_its_detached_alias(compile):
    def fn(x):
        h = x.exp()
        return h, h.detach()

    f, x = compile(fn), leaf(3)
    y, d = f(x)
    facts = shares(y, d), y.requires_grad, d.requires_grad
    d.add_(1)
    return facts, raised(lambda: y.sum().backward()), y, gradients(x)


@both()
def test_a_buffer_comes_out(compile):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x):
            self.state.add_(1)
            return self.linear(x) + self.state, self.state

    model = Net()
    f = compile(model)
    for _ in range(3):
        y, state = f(torch.randn(2, 3))
        y.sum().backward()
        assert state is model.state
    return state, gradients(*model.parameters())


# --------------------------------------------------------------------------------------------- inputs are written


@both(ahead=False)
def test_a_computed_input_is_written(compile):
    def fn(h, w):
        h.mul_(w)
        return h.sin()

    f, x, w, found = compile(fn), leaf(2, 3), leaf(3), []
    for use in ("result", "input", "both"):
        h = x * 2
        y = f(h, w)
        total = sum(([y.sum()] if use != "input" else []) + ([h.exp().sum()] if use != "result" else []))
        total.backward()
        found.append((h.detach(), y.detach(), h._version, gradients(x, w)))
    return found


@both(ahead=False)
def test_a_computed_input_is_written_and_its_view_from_before(compile):
    f, x = compile(lambda h: h.add_(1).mul_(3) * 2), leaf(2, 3)
    h = x * 2
    row = h[0]
    y = f(h)
    (y.sum() + row.exp().sum()).backward()
    return row.detach(), gradients(x)


@both(whole=False)
def test_a_value_written_through_a_view_is_written_after_a_break(compile):
    def fn(x):
        x = x * 1
        x.view(-1)[1:3].zero_()
        smelt.graph_break()
        x += x
        return x

    f, x = compile(fn), leaf(2, 3)
    y = f(x)
    y.sum().backward()
    return y.detach(), gradients(x)


@both(ahead=False)
def test_a_row_of_a_computed_input_is_written(compile):
    def fn(h, w):
        h[0] = w
        h[1].mul_(w)
        return h.sum(0)

    f, x, w = compile(fn), leaf(2, 3), leaf(3)
    h = x * 2
    y = f(h, w)
    (y.sin().sum() + h.exp().sum()).backward()
    return h.detach(), gradients(x, w)


@both(ahead=False)
def test_an_input_without_gradients_gets_them(compile):
    def fn(buffer, w):
        buffer.add_(w)
        return buffer * 2

    f, w = compile(fn), leaf(3)
    buffer = torch.zeros(3)
    y = f(buffer, w)
    facts = buffer.requires_grad, buffer.is_leaf
    (y.sum() + buffer.exp().sum()).backward()
    return facts, buffer.detach(), gradients(w)


@both(ahead=False)
def test_an_input_loses_its_history(compile):
    def fn(h, w):
        h.zero_()
        return (h + w).sin()

    f, x, w = compile(fn), leaf(3), leaf(3)
    h = x * 2
    y = f(h, w)
    (y.sum() + h.sum()).backward()
    return h.requires_grad, gradients(x, w)


@both(whole=False)
def test_a_leaf_is_written_in_grad_mode(compile):
    f, w = compile(lambda w: w.mul_(2)), leaf(3)
    return raised(lambda: f(w)), w


@both()
def test_a_leaf_is_written_without_grad_mode(compile):
    def fn(w, x):
        y = w.exp() * x
        with torch.no_grad():
            w.mul_(0.5)
        return y

    f, w = compile(fn), leaf(3)
    for _ in range(3):
        f(w, torch.randn(3)).sum().backward()
    return w, w._version, gradients(w)


@both(ahead=False)
def test_a_leaf_is_written_that_backward_reads(compile):
    """Eager raises in the backward: the value that it saved is gone."""

    def fn(w, x):
        y = w * x
        with torch.no_grad():
            w.mul_(0.5)
        return y

    f, w, x = compile(fn), leaf(3), leaf(3)
    y = f(w, x)
    return raised(lambda: y.sum().backward()), w, gradients(w, x)


@both()
def test_a_leaf_is_written_before_it_is_used(compile):
    def fn(w, x):
        with torch.no_grad():
            w.clamp_(-1, 1)
        return (w * x).sin()

    f, w, x = compile(fn), leaf(3), leaf(3)
    for _ in range(2):
        f(w, x).sum().backward()
    return w, gradients(w, x)


@both()
def test_a_written_leaf_that_an_earlier_call_saved(compile):
    def fn(w, x):
        with torch.no_grad():
            w.mul_(0.5)
        return w * x

    f, w, x = compile(fn), leaf(3), leaf(3)
    first = f(w, x)
    second = f(w, x)
    return raised(lambda: first.sum().backward()), raised(lambda: second.sum().backward()), gradients(w, x)


@both()
def test_data_is_written(compile):
    def fn(w, x):
        w.data.mul_(0.5)
        return (w * x).sin()

    f, w, x = compile(fn), leaf(3), leaf(3)
    for _ in range(2):
        f(w, x).sum().backward()
    return w, gradients(w, x)


@both()
def test_a_cache_is_written(compile):
    def fn(cache, x, w, at):
        k = x @ w
        cache[at : at + 2] = k.detach()
        return (k @ cache.t()).softmax(-1)

    f, w = compile(fn), leaf(3, 3)
    cache = torch.zeros(4, 3)
    found = []
    for at in (0, 2):
        y = f(cache, torch.randn(2, 3), w, at)
        y.pow(2).sum().backward()
        found.append(cache.clone())
    return found, gradients(w)


@both()
def test_a_cache_is_written_that_backward_reads(compile):
    """As models with a cache train: the second call overwrites what the first saved, and eager says so."""

    def fn(cache, x):
        cache.copy_(x.detach())
        return cache * x

    f, x = compile(fn), leaf(3)
    cache = torch.zeros(3)
    first = f(cache, x)
    second = f(cache, x)
    return raised(lambda: second.sum().backward()), raised(lambda: first.sum().backward()), gradients(x)


@both(ahead=False)
def test_a_cache_with_history(compile):
    def fn(cache, x):
        cache[1:] = cache[:-1].clone()
        cache[0] = x.sin()
        return cache.sum(0)

    f, x = compile(fn), leaf(3)
    cache = torch.zeros(3, 3)
    total = sum(f(cache, x * k).pow(2).sum() for k in range(1, 4))
    total.backward()
    return cache.detach(), gradients(x)


# --------------------------------------------------------------------------------------------- writes after the call

FUNCTIONS = {
    "add": lambda x, w: x + w,
    "mul": lambda x, w: x * w,
    "mul by a number": lambda x, w: x * 3 + w,
    "exp": lambda x, w: x.exp() + w,
    "sin": lambda x, w: x.sin() + w,
    "tanh": lambda x, w: (x + w).tanh(),
    "sigmoid": lambda x, w: x.sigmoid() * w,
    "relu": lambda x, w: (x * w).relu(),
    "softmax": lambda x, w: (x * 2).softmax(-1) + w,
    "log_softmax": lambda x, w: x.log_softmax(-1) - w,
    "matmul": lambda x, w: x @ w.t(),
    "layer_norm": lambda x, w: F.layer_norm(x, (3,), w[0]),
    "gelu": lambda x, w: F.gelu(x) * 2 + w,
    "sum": lambda x, w: x.sum(0) * 2 + w.mean(),
    "max": lambda x, w: torch.maximum(x, w),
    "amax": lambda x, w: x.amax(-1) * w.amin(-1),
    "where": lambda x, w: torch.where(x > 0, x, w),
    "views": lambda x, w: x.t().reshape(3, 3) + w.view(-1)[:3],
    "cat": lambda x, w: torch.cat([x, w]),
    "div": lambda x, w: x / w,
    "sqrt": lambda x, w: (x * x + 1).sqrt() + w,
    "pow": lambda x, w: x**3 + w**2,
    "clamp": lambda x, w: x.clamp(-1, 1) + w,
    "square twice": lambda x, w: (x.square() + w).square(),
    "cosines": lambda x, w: x.cos().cos() + w,
    "exp of exp": lambda x, w: (x.exp() * 0.1).exp() + w.exp(),
    "index": lambda x, w: x[torch.tensor([0, 2, 2])] + w,
    "cumsum": lambda x, w: x.cumsum(0) * w.sum(),
}


@both()
@pytest.mark.parametrize("written", ["x", "w", "result", "none"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_write_after_the_call_raises_where_eager_does(compile, name, written):
    """Where eager does not raise, the gradients are those of the old values."""
    f, x, w = compile(FUNCTIONS[name]), leaf(3, 3), leaf(3, 3)
    y = f(x, w)
    with torch.no_grad():
        for target in {"x": [x], "w": [w], "result": [y], "none": []}[written]:
            target.add_(1)
    tangent = torch.randn(y.shape)
    error = raised(lambda: y.backward(tangent))
    return error, None if error else gradients(x, w)  # eager may have some gradients before it raises


@both()
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_result_is_written_with_gradients(compile, name):
    f, x, w = compile(FUNCTIONS[name]), leaf(3, 3), leaf(3, 3)
    y = f(x, w)
    y.mul_(2)
    tangent = torch.randn(y.shape)
    return raised(lambda: y.backward(tangent)), y.detach(), gradients(x, w)


@both()
def test_a_row_of_a_result_is_written_with_gradients(compile):
    f, x = compile(lambda x: x.sin() * 2), leaf(2, 3)
    y = f(x)
    y[0] = 0
    y[1].mul_(x[0])
    y.exp().sum().backward()
    return y.detach(), gradients(x)


@both()
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_result_is_written_that_only_gradients_of_another_read(compile, name):
    def fn(x, w):
        h = x * 1
        return h, FUNCTIONS[name](h, w).clamp(-1, 1)

    f, x, w = compile(fn), leaf(3, 3), leaf(3, 3)
    h, _ = f(x, w)
    h.add_(h)
    h.sum().backward()
    return h.detach(), gradients(x, w)


@both()
def test_an_optimizer_steps_between_forward_and_backward(compile):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    f, x = compile(model), torch.randn(5, 3)
    f(x).sum().backward()
    late = f(x).sum()
    optimizer.step()
    return raised(late.backward), gradients(*model.parameters())


@both()
def test_versions_of_what_was_not_written(compile):
    f, x, w = compile(lambda x, w: (x * w).sum()), leaf(3), leaf(3)
    versions = x._version, w._version
    y = f(x, w)
    y.backward()
    return versions == (x._version, w._version), y._version


@both()
def test_a_result_is_resized_and_reset_after_the_call(compile):
    f, x = compile(lambda x: x.sin()), leaf(3)
    y = f(x)
    y.data = torch.zeros(5)
    return raised(lambda: y.sum().backward()) is None, y.shape
