"""The order in which hooks run: on leaves, on results and inputs, on nodes, after accumulation, of modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.training import both, leaf


class Seen:
    """Hooks that note their names, and that something came."""

    def __init__(self):
        self.names = []

    def on(self, **tensors):
        """Hooks on tensors; on leaves also what runs when their gradient has been accumulated."""
        for name, t in tensors.items():
            t.register_hook(lambda g, name=name: self.names.append(name))
            if t.is_leaf:
                t.register_post_accumulate_grad_hook(lambda p, name=name: self.names.append(f"{name} done"))

    def on_parameters(self, *modules):
        for k, m in enumerate(modules):
            self.on(**{f"{k}.{name}": p for name, p in m.named_parameters()})


@both()
@pytest.mark.parametrize("order", ["xabc", "xcba", "cbax", "bcxa"])
def test_leaves_of_a_chain(compile, order):
    f = compile(lambda x, a, b, c: (((x * a).tanh() * b).tanh() * c).sum())
    seen, given = Seen(), {name: leaf(3) for name in "xabc"}
    seen.on(**given)
    f(*(given[name] for name in order)).backward()
    return seen.names


@both()
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 40])
def test_parameters_of_many_layers(compile, n):
    layers, seen = nn.ModuleList(nn.Linear(3, 3) for _ in range(n)), Seen()

    def run(x):
        for layer in layers:
            x = x + layer(x).relu()
        return x.sum()

    f, x = compile(run), leaf(2, 3)
    seen.on(x=x)
    seen.on_parameters(layers)
    f(x).backward()
    return seen.names


MODULES = {
    "shared": lambda: (lambda m: lambda x: m(m(x).relu()), nn.Linear(8, 8)),
    "attention": lambda: (
        lambda m: m,
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    ),
    "dropout and norm": lambda: (
        lambda m: m,
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2)),
    ),
}


@both()
@pytest.mark.parametrize("name", MODULES)
def test_parameters_of_modules(compile, name):
    make, m = MODULES[name]()
    f, x, seen = compile(make(m)), leaf(2, 3, 8), Seen()
    seen.on(x=x)
    seen.on_parameters(m)
    f(x).square().sum().backward()
    return seen.names


@both()
def test_convolutions(compile):
    m = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    f, seen = compile(m), Seen()
    seen.on_parameters(m)
    f(torch.randn(2, 1, 4, 4)).sum().backward()
    return seen.names


@both()
@pytest.mark.parametrize("tied", [False, True])
def test_embeddings(compile, tied):
    e, head, seen = nn.Embedding(5, 3), nn.Linear(3, 5), Seen()
    if tied:
        head.weight = e.weight
    f = compile(lambda i: head(e(i)).sum())
    seen.on_parameters(e, head)
    f(torch.tensor([1, 2])).backward()
    return seen.names


@both()
def test_inputs_that_were_computed(compile):
    f, seen = compile(lambda x, y, w: (x.exp() * y * w).sum()), Seen()
    a, b, w = leaf(3), leaf(3), leaf(3)
    x, y = a * 2, b * 3
    seen.on(x=x, y=y, a=a, b=b, w=w)
    x.grad_fn.register_hook(lambda given, taken: seen.names.append("behind x"))
    y.grad_fn.register_prehook(lambda taken: seen.names.append("before y"))
    f(x, y, w).backward()
    return seen.names


@both()
def test_results(compile):
    def run(x, y):
        h = x * y
        return h, h.exp() * y

    f, x, y, seen = compile(run), leaf(3), leaf(3), Seen()
    u, v = f(x, y)
    seen.on(x=x, y=y, u=u, v=v)
    u.grad_fn.register_hook(lambda given, taken: seen.names.append("behind u"))
    v.grad_fn.register_prehook(lambda taken: seen.names.append("before v"))
    (u.sum() + v.sum()).backward()
    return seen.names


@both()
def test_two_graphs_one_behind_the_other(compile):
    a, b, seen = nn.Linear(3, 3), nn.Linear(3, 3), Seen()
    f, g, x = compile(lambda x: a(x).tanh()), compile(lambda x: b(x).tanh()), leaf(2, 3)
    seen.on(x=x)
    seen.on_parameters(a, b)
    h = f(x)
    seen.on(h=h)
    g(h).sum().backward()
    return seen.names


@both(whole=False)
@pytest.mark.parametrize("hook", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_of_modules(compile, hook):
    m, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Seen()
    for name, layer in m.named_children():
        getattr(layer, hook)(lambda *given, name=name: seen.names.append(name))
    seen.on_parameters(m)
    f = compile(m)
    f(leaf(2, 3)).sum().backward()
    return seen.names


@both()
def test_an_optimizer_that_steps_as_gradients_come(compile):
    m, order = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), []

    def step(p):
        with torch.no_grad():
            p.sub_(0.1 * p.grad)
        order.append(tuple(p.shape))
        p.grad = None

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)
    f = compile(lambda x: m(x).square().sum())
    for _ in range(3):
        f(torch.ones(2, 3)).backward()
    return order, list(m.parameters())


@both()
@pytest.mark.parametrize("order", ["abcde", "edcba", "cebda"])
def test_results_in_another_order_than_computed(compile, order):
    @compile
    def f(x, w):
        made = {"a": x * 2, "b": w * 3, "c": x.sin() + w}
        made["d"] = made["b"].exp()
        made["e"] = (x * w).sum()
        return [made[name] for name in order if name != "b"]

    seen, x, w = Seen(), leaf(3), leaf(3)
    results = f(x, w)
    seen.on(**dict(zip(order.replace("b", ""), results)))
    sum(r.sum() for r in results).backward()
    return seen.names
