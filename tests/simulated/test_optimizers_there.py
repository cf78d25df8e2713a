"""Steps of torch's optimizers on a GPU: one graph, few launches, numbers by value; and what scales and clips gradients."""

import inspect as signatures

import pytest
import torch
from torch import nn, optim

import smelt
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda

OPTIMIZERS = (
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (optim.AdamW, {}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.Adagrad, {"lr_decay": 0.1}),
    (optim.Adadelta, {}),
    (optim.Adamax, {}),
    (optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.ASGD, {"t0": 3, "lr": 1e-2}),
    (optim.Rprop, {}),
)
MODES = (
    {},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"capturable": True},
    {"capturable": True, "foreach": False},
)
CASES = [
    pytest.param(
        cls, {**options, **mode}, id=f"{cls.__name__}-{'-'.join(f'{k}={v}' for k, v in mode.items())}"
    )
    for cls, options in OPTIMIZERS
    for mode in MODES
    if mode.keys() <= signatures.signature(cls).parameters.keys()
]


def tensors(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, generator=generator).to("cuda") for n in sizes]


def after_steps(make, compile, sizes=(5, 16, 2), steps=8):
    """What parameters and state are after some steps, and what the last one launched. RAdam and ASGD branch within 8."""
    weights = [nn.Parameter(t) for t in tensors(sizes, 0)]
    optimizer = make(weights)
    step = compile(optimizer.step)
    for seed in range(1, 1 + steps):
        for p, grad in zip(weights, tensors(sizes, seed), strict=True):
            p.grad = grad
        cuda.forget_launches()
        step()
    return [(p.detach(), optimizer.state[p]) for p in weights], cuda.launches()


def fullgraph(fn):
    return smelt.compile(fn, fullgraph=True)


@pytest.mark.parametrize("cls, options", CASES)
def test_a_step_is_one_graph(cls, options):
    def make(weights):
        return cls(weights, **options)

    want, _ = after_steps(make, lambda f: f)
    got, _ = after_steps(make, fullgraph)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6)
    for (_, mine), (_, eager) in zip(got, want, strict=True):
        assert all(mine[k].device == v.device for k, v in eager.items() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize(
    "cls, options, most",
    (
        (optim.AdamW, {}, 2),
        (optim.AdamW, {"foreach": False}, 2),
        (optim.AdamW, {"fused": True}, 3),
        (optim.AdamW, {"capturable": True}, 4),
        (optim.RAdam, {}, 2),
        (optim.SGD, {"momentum": 0.9}, 2),
    ),
)
def test_forty_parameters_take_few_launches(cls, options, most):
    """Of sizes that are multiples of 16, and others; step counters on the GPU are a launch of their own."""
    _, launches = after_steps(lambda weights: cls(weights, lr=1e-2, **options), fullgraph, range(1, 41))
    assert 0 < len(launches) <= most


def test_another_learning_rate_is_another_number():
    def make(compile):
        weights = [nn.Parameter(t) for t in tensors((4, 5), 0)]
        optimizer = optim.AdamW(weights, lr=1e-2)
        step = compile(optimizer.step)
        for i in range(6):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + i)
            for p, grad in zip(weights, tensors((4, 5), i), strict=True):
                p.grad = grad
            step()
        return step, [p.detach() for p in weights]

    (_, want), (compiled, got) = make(lambda f: f), make(fullgraph)
    torch.testing.assert_close(got, want)
    assert (
        inspect.graph_count(compiled) <= 3
    )  # the state is made, the rate is a constant, the rate is a number


def test_a_number_on_the_gpu_is_read_before_the_graph():
    def fn(x, t):
        return x * t.item() if t.item() > 2 else x - float(t)

    compiled, x = fullgraph(fn), torch.randn(6, device="cuda")
    for value in (1.0, 1.5, 3.0, 4.0, 0.25):
        t = torch.tensor(value, device="cuda")
        torch.testing.assert_close(compiled(x, t), fn(x, t), rtol=0, atol=0)
    assert inspect.graph_count(compiled) == 2


def test_a_number_that_was_computed_is_the_gpus():
    """A GPU divides by multiplying: the graph computes the number rather than Python."""

    def fn(x, t):
        t.add_(1)
        return x * (t * 0.1).item(), x * (t / 3.0).item()

    compiled, x = smelt.compile(fn), torch.randn(6, device="cuda")
    mine, eager = (torch.tensor(0.3, device="cuda") for _ in range(2))
    for _ in range(4):  # what is eager here divides, as a CPU does
        torch.testing.assert_close(compiled(x, mine), fn(x, eager), rtol=1e-6, atol=0)
        assert torch.equal(mine, eager)
    assert inspect.reasons(compiled) == ()


def test_a_condition_that_only_raises_is_checked_by_the_graph():
    def fn(x):
        y = x * 2
        if not torch.isfinite(y).all():
            raise ValueError("not finite")
        return x.add_(1) + y

    compiled = fullgraph(fn)
    for _ in range(3):
        x = torch.randn(5, device="cuda")
        mine, eager = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), fn(eager))
        assert torch.equal(mine, eager)
    mine[2] = torch.inf
    before = mine.clone()
    with pytest.raises(ValueError, match="not finite"):
        compiled(mine)
    assert torch.equal(mine, before)


@pytest.mark.parametrize("foreach", (None, False))
def test_gradients_are_clipped_and_refused(foreach):
    def fn(weights):
        return nn.utils.clip_grad_norm_(weights, 1.0, error_if_nonfinite=True, foreach=foreach)

    def weights():
        made = [nn.Parameter(t) for t in tensors((4, 7, 3), 0)]
        for p, grad in zip(made, tensors((4, 7, 3), 1), strict=True):
            p.grad = grad
        return made

    mine, eager, compiled = weights(), weights(), fullgraph(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(mine), fn(eager))
        torch.testing.assert_close([p.grad for p in mine], [p.grad for p in eager])
    mine[1].grad[0, 0] = torch.nan
    before = [p.grad.clone() for p in mine]
    with pytest.raises(RuntimeError, match="non-finite"):
        compiled(mine)
    torch.testing.assert_close([p.grad for p in mine], before, equal_nan=True)


@pytest.mark.parametrize("unscaled", ("within", "before", "by step"))
def test_a_scaler_steps_or_not(unscaled):
    """The graph breaks where it reads whether a gradient was infinite, unless that was found before."""

    def steps(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda")
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=2)

        def step():
            if unscaled == "within":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)

        run, scales = compile(step), []
        for i in range(10):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i)).to("cuda")
            loss = model(x).square().sum() * (1e30 if i % 3 == 0 else 1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscaled == "before":
                scaler.unscale_(optimizer)
            run()
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [p.detach() for p in model.parameters()], run

    *want, _ = steps(lambda f: f)
    *got, compiled = steps(smelt.compile)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert len(inspect.reasons(compiled)) == (0 if unscaled == "before" else 1)
