"""Numbers that kernels draw, to the last bit those of eager, and where the generator stands afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.report import inspect
from tests.harness import simulated

if not torch.cuda.is_available() or simulated.inside():
    pytest.skip("needs a GPU", allow_module_level=True)

f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
SIZES = (1, 7, 255, 256, 1000, 300_001, 1 << 20, 5_000_003)
DRAWS = {
    "rand": lambda n, dtype: torch.rand(n, device="cuda", dtype=dtype),
    "rand_like": lambda n, dtype: torch.rand_like(torch.empty(n, device="cuda", dtype=dtype)),
    "uniform_": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).uniform_(-1.5, 3.25),
    "randn": lambda n, dtype: torch.randn(n, device="cuda", dtype=dtype),
    "randn_like": lambda n, dtype: torch.randn_like(torch.empty(n, device="cuda", dtype=dtype)),
    "normal_": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).normal_(0.7, 2.3),
    "bernoulli_": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).bernoulli_(0.3),
    "exponential_": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).exponential_(),
    "exponential_ of a rate": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).exponential_(1.7),
    "random_": lambda n, dtype: torch.empty(n, device="cuda", dtype=dtype).random_(3, 150),
    "dropout": lambda n, dtype: F.dropout(torch.ones(n, device="cuda", dtype=dtype), 0.3),
    "dropout2d": lambda n, dtype: F.dropout2d(torch.ones(1, n, 1, 2, device="cuda", dtype=dtype), 0.3),
    "alpha_dropout": lambda n, dtype: F.alpha_dropout(torch.ones(n, device="cuda", dtype=dtype), 0.3, True),
}
INTEGERS = {
    "randint": lambda n: torch.randint(-5, 1000, (n,), device="cuda"),
    "randint of int32": lambda n: torch.randint(100, (n,), device="cuda", dtype=torch.int32),
    "randint of many": lambda n: torch.randint(1 << 40, (n,), device="cuda"),
    "randint_like": lambda n: torch.randint_like(torch.empty(n, device="cuda"), 77),
    "bernoulli_ of bools": lambda n: torch.empty(n, device="cuda", dtype=torch.bool).bernoulli_(0.4),
}


def compiled(fn, **options):
    return smelt.compile(fn, options=options)


def alike(fn, *args):
    """Twice, with a draw before and behind, from the same state: the same bits, and the same state afterwards."""
    made = compiled(fn)
    for seed in (0, 1 << 40):
        got = []
        for f in (made, fn):
            torch.manual_seed(seed)
            torch.rand(3, device="cuda")
            got.append((f(*args), torch.rand(5, device="cuda"), torch.cuda.get_rng_state()))
        for a, b in zip(*got):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert inspect.graph_count(made) == 1
    return made


@pytest.mark.parametrize("dtype", (f32, f64, f16, bf16))
@pytest.mark.parametrize("name", DRAWS)
def test_floats(name, dtype):
    for n in SIZES:
        alike(lambda n=n: DRAWS[name](n, dtype))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    for n in SIZES:
        alike(lambda n=n: INTEGERS[name](n))


def test_layouts():
    images = torch.randn(3, 5, 7, 9, device="cuda").to(memory_format=torch.channels_last)
    for x in (images, images.permute(2, 0, 3, 1), torch.randn(6, 9, device="cuda").t()):
        alike(
            lambda x: (
                torch.rand_like(x),
                torch.randn_like(x),
                x.clone().uniform_(),
                torch.bernoulli(x, 0.3),
            ),
            x,
        )
        alike(lambda x: x.clone().bernoulli_(0.3), x)
        alike(lambda x: F.dropout(x, 0.5), x)


def test_draws_keep_their_order():
    def fn(x, p):
        a = torch.rand_like(x)
        b = torch.bernoulli(p)  # ATen's
        c = F.dropout(x, 0.2)
        d = torch.randperm(40, device="cuda")  # ATen's
        return a, b, c, d, torch.randn_like(x) * a + c

    alike(fn, torch.randn(300, 40, device="cuda"), torch.rand(300, 40, device="cuda"))


def test_rows_that_are_dropped():
    """A softmax and its dropout, a layer norm and its: rows of one block."""
    for columns in (64, 512, 1000, 1001, 12_000):
        x = torch.randn(33, columns, device="cuda")
        made = compiled(lambda x: F.dropout(x.softmax(-1), 0.1))
        torch.manual_seed(3)
        got = made(x)
        torch.manual_seed(3)
        torch.testing.assert_close(got, F.dropout(x.softmax(-1), 0.1))


def model(dtype):
    torch.manual_seed(0)
    layers = [nn.Linear(96, 96), nn.Dropout(0.3), nn.GELU(), nn.LayerNorm(96), nn.Dropout(0.1)]
    return nn.Sequential(*layers, *layers[:3]).cuda().to(dtype)


@pytest.mark.parametrize("dtype", (f32, bf16, f64))
def test_training(dtype):
    net = model(dtype)
    x = torch.randn(50, 96, device="cuda", dtype=dtype)
    found = []
    for f in (compiled(net), net):
        torch.manual_seed(5)
        grads = []
        for _ in range(2):
            net.zero_grad()
            out = f(x)
            out.square().mean().backward()
            grads += [out.detach(), *(p.grad.clone() for p in net.parameters())]
        found.append((grads, torch.cuda.get_rng_state()))
    close = {f64: 1e-9, f32: 1e-4, bf16: 5e-2}[dtype]
    torch.testing.assert_close(found[0], found[1], rtol=close, atol=close)


def test_the_mask_is_not_kept():
    x = torch.ones(4096, 4096, device="cuda", requires_grad=True)
    made = compiled(lambda x: F.dropout(x, 0.5) * 2)
    made(x).sum().backward()
    before = torch.cuda.memory_allocated()
    y = made(x)
    assert torch.cuda.memory_allocated() - before < y.nbytes + (1 << 20)
    x.grad = None
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def of_both(fn, *args):
    """Gradients of the first and the second order, of compiled and eager code from the same state."""
    found = []
    for f in (compiled(fn), fn):
        torch.manual_seed(7)
        y = f(*args)
        first = torch.autograd.grad(y.square().sum(), args, create_graph=True)
        again = torch.autograd.grad(y.square().sum(), args, retain_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), args)
        found.append((y.detach(), [g.detach() for g in first], again, second, torch.cuda.get_rng_state()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_graphs_that_are_kept_and_second_derivatives():
    x, w = (torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2))
    of_both(lambda x, w: F.dropout(F.gelu(x @ w / 8), 0.3), x, w)


def test_checkpoints():
    net = model(f32)
    x = torch.randn(50, 96, device="cuda", requires_grad=True)
    found = []
    for f in (
        compiled(lambda x: checkpoint(net, x, use_reentrant=False)),
        lambda x: checkpoint(net, x, use_reentrant=False),
    ):
        torch.manual_seed(5)
        net.zero_grad()
        x.grad = None
        f(x).square().mean().backward()
        found.append(([x.grad, *(p.grad.clone() for p in net.parameters())], torch.cuda.get_rng_state()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def captured(fn, *args):
    """Results of eight calls in a row, and where the generator stands; the later ones replay a CUDA graph."""
    torch.manual_seed(11)
    results = []
    for _ in range(8):
        given = fn(*args)
        results.append(given.clone())
        del given
    return results, torch.cuda.get_rng_state()


@pytest.mark.parametrize(
    "fn",
    (
        lambda x: F.dropout(x * 2, 0.3) + torch.randn_like(x),
        lambda x: F.dropout(x, 0.3) * torch.rand(x.shape, device="cuda"),
        lambda x: F.dropout(x, 0.3) * torch.bernoulli(x.sigmoid()) + F.dropout(x, 0.1),  # ATen draws between
    ),
)
def test_replays_of_a_graph_draw_on(fn, caplog):
    x = torch.randn(300, 70, device="cuda")
    got, want = captured(smelt.compile(fn, mode="reduce-overhead"), x), captured(fn, x)
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(got[1], want[1]) and "not captured" not in caplog.text
    assert not torch.equal(got[0][6], got[0][7])


def test_training_by_graphs():
    net, x = model(f32), torch.randn(50, 96, device="cuda")
    found = []
    for f in (smelt.compile(net, mode="reduce-overhead"), net):
        torch.manual_seed(5)
        steps = []
        for _ in range(8):
            net.zero_grad(set_to_none=True)
            f(x).square().mean().backward()
            steps.append([p.grad.clone() for p in net.parameters()])
        found.append((steps, torch.cuda.get_rng_state()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
