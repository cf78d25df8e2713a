"""How much of the device's memory calls take at most: compiled ones no more than eager ones."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt

pytestmark = pytest.mark.simulated_cuda

MIB = 1 << 20


class Residual(nn.Module):
    """Convolutions with batch norms, a branch beside each two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))
        self.last = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for k in (0, 2):
            h = self.norms[k](self.convolutions[k](x)).relu()
            x = (x + self.norms[k + 1](self.convolutions[k + 1](h))).relu()
        return self.last(x.mean((2, 3)))


class Block(nn.Module):
    """A transformer's."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def perceptron(width: int = 512) -> nn.Module:
    hidden = (layer for _ in range(3) for layer in (nn.GELU(), nn.Linear(width, width), nn.ReLU()))
    return nn.Sequential(nn.Linear(width // 8, width), *hidden, nn.Linear(width, width // 8))


def logits() -> nn.Module:
    """What comes last is larger than all before."""
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 4000))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (4, 3, 96, 96)),
    "transformer": (lambda: nn.Sequential(Block(), Block()), (8, 256, 64)),
    "perceptron": (perceptron, (4096, 64)),
    "narrow perceptron": (lambda: perceptron(256), (2048, 32)),
    "logits": (logits, (2048, 64)),
}

# Eager multiplies bfloat16 for many seconds on CPUs without AVX-512; training has the narrow one.
SLOW = {("perceptron", True), ("narrow perceptron", False)}


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and the bytes that it takes at most beyond what is there before."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return call(), torch.cuda.max_memory_allocated() - before


def step(net: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Forward and backward; the result and all gradients."""
    net.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        y = call(x)
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad.clone() for p in net.parameters())]


def inference(net: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        return [call(x)]


@pytest.mark.parametrize(
    ("name", "training"),
    [(name, training) for name in NETS for training in (False, True) if (name, training) not in SLOW],
)
def test_a_call_takes_no_more_memory_than_eager(name: str, training: bool) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net = make().cuda().train(training)
    x = torch.randn(shape, device="cuda")
    run = step if training else inference
    compiled = smelt.compile(net, fullgraph=True)
    run(net, compiled, x)
    run(net, net, x)
    got, taken = peak(lambda: run(net, compiled, x))
    want, taken_by_eager = peak(lambda: run(net, net, x))
    assert taken <= taken_by_eager
    torch.testing.assert_close(got, want, atol=0.05, rtol=0.05)


def check(fn: Callable[..., Any], *args: Any) -> int:
    """Compiled and eager agree; the bytes that the compiled call takes at most."""
    compiled = smelt.compile(fn, fullgraph=True)
    compiled(*args)
    got, taken = peak(lambda: compiled(*args))
    torch.testing.assert_close(got, fn(*args))
    return taken


def square() -> Tensor:
    return torch.randn(1024, 1024, device="cuda") / 32


def test_a_result_takes_the_place_of_what_an_operator_gave() -> None:
    x = square()
    assert check(lambda x: (x @ x).relu() * 2, x) == 4 * MIB
    assert check(lambda x: (x @ x).sin() @ x, x) == 8 * MIB


def test_not_of_what_is_read_again() -> None:
    x = square()

    def fn(x: Tensor) -> Tensor:
        y = x @ x
        return (y.sin() @ x) + y

    assert check(fn, x) == 12 * MIB


def test_nor_of_what_is_returned_or_given() -> None:
    x = square()
    copy = x.clone()

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ x
        return y, y.sin() + x

    assert check(fn, x) == 8 * MIB
    assert torch.equal(x, copy)


def test_nor_where_it_is_read_at_another_place() -> None:
    x = square()
    check(lambda x: (x @ x).flip(0) + 1, x)
    check(lambda x: (lambda y: y + y.t())(x @ x), x)
    check(lambda x: (x @ x).softmax(-1), x)
    check(lambda x: (x @ x)[:, None, :512] + 1, x)


def test_nor_in_fewer_bytes() -> None:
    check(lambda x: (x @ x).half(), square())
    check(lambda x: (x @ x) > 0, square())
    check(lambda x: (x @ x).view(torch.int32) + 1, square())


def test_two_results_of_two_operands() -> None:
    x = square()

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x @ x, x @ x.t()
        return a + b, a - b

    assert check(fn, x) == 8 * MIB


def test_a_convolution_gives_its_memory_on() -> None:
    x, w = torch.randn(4, 8, 128, 128, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    nbytes = x.numel() * 4
    assert check(lambda x, w: F.conv2d(x, w, padding=1).relu(), x, w) == nbytes
    assert (
        check(lambda x, w: F.conv2d(F.conv2d(x, w, padding=1).relu(), w, padding=1) + x, x, w) == 2 * nbytes
    )


def test_memory_that_somebody_else_holds_is_left_alone() -> None:
    """A backward that runs twice reads the same saved values twice."""
    x = square().requires_grad_()
    weight = square().requires_grad_()

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).sin() @ w).cos()

    compiled = smelt.compile(fn, fullgraph=True)
    y, z = fn(x, weight), compiled(x, weight)
    for _ in range(2):
        got = torch.autograd.grad(z.sum(), (x, weight), retain_graph=True)
        torch.testing.assert_close(got, torch.autograd.grad(y.sum(), (x, weight), retain_graph=True))
    got = torch.autograd.grad(z.sum(), (x, weight))
    torch.testing.assert_close(got, torch.autograd.grad(y.sum(), (x, weight)))
    torch.testing.assert_close(z, y)


def test_weights_are_cast_beside_their_use() -> None:
    """Not all at the start: one layer's at a time, whatever could be one launch."""
    net = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12))).cuda()
    x = torch.randn(512, 1024, device="cuda")
    compiled = smelt.compile(net, fullgraph=True)
    inference(net, compiled, x)
    _, taken = peak(lambda: inference(net, compiled, x))
    assert taken <= 6 * MIB


def test_memory_is_free_after_a_call() -> None:
    x = square()
    compiled = smelt.compile(lambda x: ((x @ x).relu() @ x).sum(), fullgraph=True)
    for _ in range(3):
        result, _ = peak(lambda: compiled(x))
        del result
    before = torch.cuda.memory_allocated()
    result = compiled(x)
    assert torch.cuda.memory_allocated() - before == 512  # the least that is allocated
    assert result.numel() == 1


class WithKeys(nn.Module):
    """Layers whose inner values are results, too, from which what follows is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        keys = []
        for layer in self.layers:
            x = layer(x.sin()).tanh()
            keys.append(x)
        return (x.cos() * 2, *keys)


@pytest.fixture
def with_keys() -> tuple[nn.Module, Callable[..., Any], Tensor]:
    torch.manual_seed(0)
    net = WithKeys().cuda()
    return net, smelt.compile(net, fullgraph=True), torch.randn(4096, 256, device="cuda", requires_grad=True)


def test_what_pieces_of_a_backward_would_read_is_freed_as_it_is_read(with_keys) -> None:
    """Nothing flows into the inner results but what the one backward sends there itself."""
    net, compiled, x = with_keys

    def taken(call: Callable[..., Any]) -> int:
        net.zero_grad()
        x.grad = None
        y, *keys = call(x)
        keys.clear()
        return peak(lambda: y.backward(torch.ones_like(y)))[1]

    taken(compiled)
    assert taken(compiled) <= taken(net)


USES: dict[str, Callable[[Tensor, Tensor, list[Tensor]], Any]] = {
    "a function of one": lambda x, y, keys: (y.sum() + (keys[2] * 3).square().sum()).backward(),
    "one is a root": lambda x, y, keys: torch.autograd.backward(
        [y, keys[3]], [torch.ones_like(y), torch.full_like(y, 0.5)]
    ),
    "a function of one, dropped": lambda x, y, keys: torch.autograd.backward(
        [y.sum(), [keys.pop(1).square().sum(), keys.clear()][0]]
    ),
    "a node is a root": lambda x, y, keys: torch.autograd.backward(
        [y.sum(), keys[2].square().sum().view(1)], [None, torch.ones(1, device="cuda")]
    ),
    "one after the other": lambda x, y, keys: [
        y.sum().backward(retain_graph=True),
        keys[2].sum().backward(),
    ],
    "a part first": lambda x, y, keys: [
        torch.autograd.grad(y.sum(), keys[4]),
        keys[3].square().sum().backward(),
    ],
}


@pytest.mark.parametrize("use", USES)
def test_but_not_what_flows_into_inner_results_needs(with_keys, use) -> None:
    net, compiled, x = with_keys

    def gradients(call: Callable[..., Any]) -> list[Tensor | None]:
        net.zero_grad()
        x.grad = None
        y, *keys = call(x)
        USES[use](x, y, keys)
        return [x.grad, *(p.grad for p in net.parameters())]

    for _ in range(2):
        for got, want in zip(gradients(compiled), gradients(net), strict=True):
            assert (got is None) == (want is None)
            assert want is None or (got - want).abs().max() <= 1e-4 * want.abs().max()


def test_a_second_backward_raises_as_in_eager(with_keys) -> None:
    for call in with_keys[:2]:
        y, *keys = call(with_keys[2])
        y.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            keys[3].sum().backward()
