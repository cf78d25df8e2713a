"""Which results and inputs share a version counter, which writes it counts, and what autograd says of those it notices."""

from __future__ import annotations

import pytest
import torch

from tests.harness.training import both, leaf, raised


def data_written(x):
    x.data.add_(1)
    return x * 2


def data_written_and_returned(x):
    d = x.data
    d.add_(1)
    return d, d[0], x * 2


def data_and_views_of_it(x):
    d = x.data
    return d[0], d, d.view(-1), x.data, x.detach()


def data_of_computed(x):
    y = x.exp()
    return y, y.data, y.detach(), y[0].data, y.data[0]


def data_of_what_is_saved(x):
    y = x.exp()
    return y.data, y.sum()


def detached_of_what_is_saved(x):
    y = x.exp()
    return y.detach(), y.sum()


def written_without_gradients(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def view_without_gradients(x):
    with torch.no_grad():
        a = x[0]
    return a, x * 2


def unsafe_chunk_of_computed(x):
    y = x * 2
    return (*y.unsafe_chunk(2), y)


PROGRAMS = {
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "data twice": lambda x: (x.data, x.data),
    "data of a view": lambda x: x[0].data,
    "a view of data": lambda x: x.data[0],
    "data of detach": lambda x: x.detach().data,
    "data of what is the input": lambda x: (x.contiguous().data, x.to(torch.float32).data),
    "data copied": lambda x: x.data.copy_(x.data * 2),
    "an alias": lambda x: x.view_as(x),
    "views": lambda x: (x[0], x.view(-1), x.t()),
    "chunk": lambda x: x.chunk(2),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2),
    "detached written": lambda x: x.detach().add_(1),
    **{f.__name__: f for f in (
        data_written, data_written_and_returned, data_and_views_of_it, data_of_computed, data_of_what_is_saved,
        detached_of_what_is_saved, written_without_gradients, view_without_gradients, unsafe_chunk_of_computed,
    )},
}  # fmt: skip


def numbers(requires_grad=False):
    return (torch.arange(24.0).reshape(6, 4) / 10).requires_grad_(requires_grad)


INPUTS = {
    "plain": numbers,
    "leaf": lambda: numbers(True),
    "computed": lambda: numbers(True) * 1,
    "view": lambda: numbers()[1:5],
    "view with gradients": lambda: (numbers(True) * 1)[1:5],
}


def counted_together(tensors):
    """Which counters go up when one of them does."""
    found = []
    for t in tensors:
        before = [u._version for u in tensors]
        torch.autograd.graph.increment_version([t])
        found.append([u._version - b for u, b in zip(tensors, before)])
    return found


@both()
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("given", INPUTS)
def test_who_shares_a_counter(compile, name, given):
    f, x = compile(PROGRAMS[name]), INPUTS[given]()
    found = f(x)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    flags = [(r.requires_grad, r.is_leaf, r is x) for r in results]
    values = [t.detach().clone() for t in (x, *results)]
    return x._version, flags, values, counted_together([x, *results])


@both()
@pytest.mark.parametrize("name", ["data", "detach", "a view of data", "data_and_views_of_it"])
def test_a_write_through_a_result_is_noticed_where_eager_notices_it(compile, name):
    f, x = compile(PROGRAMS[name]), leaf(4, 4)
    y = x.exp()
    found = f(y)
    first = found if isinstance(found, torch.Tensor) else found[0]
    first.detach().mul_(2)
    return raised(y.sum().backward), x.grad


@both()
@pytest.mark.parametrize("name", ["data_of_what_is_saved", "detached_of_what_is_saved"])
def test_a_write_of_what_the_graph_saved(compile, name):
    f, x = compile(PROGRAMS[name]), leaf(4, 4)
    seen, loss = f(x)
    seen.mul_(2)
    return (raised(loss.backward) or ("",))[0], x.grad


@both()
def test_a_write_of_data_is_not_noticed_by_those_who_saved_it(compile):
    w, x = leaf(3), leaf(3)

    def step(w):
        w.data.sub_(0.5)

    f = compile(step)
    loss = (w * x).sum()
    f(w)
    loss.backward()
    return w, w._version, w.grad, x.grad


@both()
def test_a_write_of_data_that_the_graph_saves_itself(compile):
    def layer(x, w):
        w.data.add_(1)
        return (x * w).sum()

    f, x, w = compile(layer), leaf(3), leaf(3)
    f(x, w).backward()
    f(x, w).backward()
    return x.grad, w.grad, w, w._version


@both()
def test_data_written_between_two_uses(compile):
    def layer(x):
        y = x.exp()
        y.data.add_(1)
        return y * y, y.data

    f, x = compile(layer), leaf(3)
    a, d = f(x)
    d.mul_(2)
    a.sum().backward()
    return a, d, x.grad


@both()
def test_a_counted_write_of_what_was_saved_raises(compile):
    w, x = leaf(3), leaf(3)

    def step(w):
        w.data.sub_(0.5)
        with torch.no_grad():
            w.mul_(2)

    f = compile(step)
    loss = (w * x).sum()
    f(w)
    return raised(loss.backward), w


@both()
def test_chunks_that_may_be_written(compile):
    f, x = compile(lambda x: (x * 2).unsafe_chunk(2)), leaf(4, 2)
    a, b = f(x)
    a.mul_(3)
    (a.sum() + b.sum()).backward()
    return x.grad


@both()
def test_inference_tensors_have_no_counter(compile):
    f = compile(lambda x: (x.data, x.detach(), x * 2))
    with torch.inference_mode():
        found = f(torch.ones(3))
    return [t.is_inference() for t in found], [raised(lambda t=t: t._version) for t in found]


@both(ahead=False)
def test_a_view_of_a_view_that_was_taken_without_gradients(compile):
    def f(x):
        with torch.no_grad():
            y = x[0]
        return y[0]

    g, x = compile(f), leaf(3, 3)
    z = g(x)
    z.backward()
    return z.requires_grad, z.is_leaf, x.grad


@both()
def test_views_taken_without_gradients(compile):
    def f(x):
        y = x * 2
        with torch.no_grad():
            return x[0], y[0], y.t()[1], x.view(-1)[2:], y

    g, x = compile(f), leaf(3, 3)
    found = g(x)
    flags = [(z.requires_grad, z.is_leaf, z._is_view()) for z in found]
    with torch.no_grad():
        found[1].zero_()
    found[4].sum().backward()
    found[0].sum().backward()
    return flags, [z.detach() for z in found], x.grad, found[0].grad
