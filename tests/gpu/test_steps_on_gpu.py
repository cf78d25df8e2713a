"""Optimizers, conditions, draws and several GPUs on a GPU beside eager. Where torch has no CUDA, on the simulated device."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import smelt
from smelt.report import inspect
from tests.harness import simulated

ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if ELSEWHERE else []

fullgraph = functools.partial(smelt.compile, fullgraph=True)

OPTIMIZERS = {
    "Adam": (optim.Adam, {"amsgrad": True}),
    "AdamW": (optim.AdamW, {}),
    "AdamW, one by one": (optim.AdamW, {"foreach": False}),
    "AdamW, fused": (optim.AdamW, {"fused": True}),
    "AdamW, capturable": (optim.AdamW, {"capturable": True}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {}),
    "Adagrad": (optim.Adagrad, {}),
    "Adamax": (optim.Adamax, {}),
    "SGD": (optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "RMSprop": (optim.RMSprop, {}),
    "ASGD": (optim.ASGD, {"t0": 3}),
    "Rprop": (optim.Rprop, {}),
}


@pytest.mark.parametrize("mode", (None, "reduce-overhead"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_an_optimizer_is_one_graph(name, mode):
    cls, options = OPTIMIZERS[name]
    if mode and ELSEWHERE:
        pytest.skip("simulated graphs hold launches alone")

    def steps(compile):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(n, 7, device="cuda")) for n in (3, 16, 50, 4)]
        optimizer = cls(weights, **options)
        step = compile(optimizer.step)
        for number in range(9):
            for p in weights:
                p.grad = torch.cos(p.detach() + number)
            step()
        return [p.detach() for p in weights]

    torch.testing.assert_close(
        steps(functools.partial(fullgraph, mode=mode)), steps(lambda f: f), rtol=1e-5, atol=1e-6
    )


def test_a_check_that_fails_leaves_the_generator_to_eager():
    def fn(x, y):
        dropped = F.dropout(x, 0.5)
        z = y + torch.rand_like(y)
        if not torch.isfinite(z).all():
            raise ValueError("not finite")
        return dropped + z * torch.rand(3, device="cuda")

    compiled, x = fullgraph(fn), torch.randn(3, device="cuda")
    for bad in (False, True, False, True):
        y = torch.full((3,), torch.inf if bad else 1.0, device="cuda")
        outcomes = []
        for function in (fn, compiled):
            torch.cuda.manual_seed(1)
            torch.manual_seed(1)
            try:
                outcomes.append([function(x, y)])
            except ValueError:
                outcomes.append([])
            outcomes[-1].append(torch.cuda.get_rng_state())
        torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize("side", (False, True))
def test_training_on_two_gpus(side):
    """Backwards begin on the engine's threads while the forward's work is still under way, on streams of its own or not."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    streams = [torch.cuda.Stream(d) if side else torch.cuda.default_stream(d) for d in (0, 1)]

    def steps(compile):
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Dropout(0.1)).to("cuda:0")
        second = nn.Sequential(nn.Linear(512, 64), nn.GELU(), nn.Dropout(0.1)).to("cuda:1")
        weights = [*first.parameters(), *second.parameters()]

        def fn(x):
            h = first(x)
            y = second(h.to("cuda:1", non_blocking=True)).softmax(-1) + 1
            return y, (y * 2).to("cuda:0", non_blocking=True) * h[:, :64].sin()

        call, grads = compile(fn), []
        for seed in range(10):
            x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(seed)).to("cuda:0")
            torch.manual_seed(seed)
            for d in (0, 1):
                torch.cuda.synchronize(d)
            with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
                for d in () if ELSEWHERE else (0, 1):
                    with torch.cuda.device(d):
                        torch.cuda._sleep(20_000_000)
                a, b = call(x)
                a, b = a.square().mean(), b.square().mean()
            torch.autograd.backward([a, b])
            grads.append([p.grad.clone() for p in weights])  # on the default streams, where they are ready
            for d in (0, 1):
                torch.cuda.synchronize(d)
        return grads

    compiled = []

    def compile(fn):
        compiled.append(fullgraph(fn))
        return compiled[0]

    torch.testing.assert_close(steps(compile), steps(lambda fn: fn), rtol=1e-3, atol=1e-5)
    assert inspect.graph_count(compiled[0]) == 1 and torch.cuda.current_device() == 0


def test_a_model_on_two_gpus_on_streams_of_their_own():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512)).to("cuda:0").eval()
    second = nn.Sequential(nn.Linear(512, 64), nn.ReLU()).to("cuda:1").eval()

    def fn(x):
        h = first(x)
        y = second(h.to("cuda:1", non_blocking=True)).softmax(-1) + 1
        return y, (y * 2).to("cuda:0", non_blocking=True) + x, h.sin()

    compiled, streams = fullgraph(fn), [torch.cuda.Stream(d) for d in (0, 1)]
    with torch.no_grad():
        for seed in range(20):
            x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(seed)).to("cuda:0")
            want = fn(x)
            for d in (0, 1):
                torch.cuda.synchronize(d)
            with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
                got = compiled(x)
            for d in (0, 1):
                torch.cuda.synchronize(d)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert inspect.graph_count(compiled) == 1 and torch.cuda.current_device() == 0
