"""What people write when they train: each script runs eagerly and compiled, and both must see the same at every step.

    @script(graphs=1)
    def plain(compile):
        model = mlp(6, 16, 3)
        net, optimizer = compile(model), torch.optim.Adam(model.parameters(), 1e-2)
        while True:
            optimizer.zero_grad()
            ...
            yield loss, model

A script yields what it shows after each step (of a module: parameters, buffers and gradients). Beside the values, the table
says how many graphs are compiled for all of the script; after its first steps nothing may be compiled any more, no warning
may be given that eager does not give, and the objects alive may not become more. Numbers are float64, so that an optimizer
that divides by small gradients does not magnify how sums are rounded.
"""

from __future__ import annotations

import copy
import gc
import itertools
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import smelt
from smelt import events
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import same

STEPS, MORE = 12, 12
Script = Callable[[Callable[[Any], Any]], Iterator[Any]]


@dataclass(frozen=True)
class Row:
    script: Script
    graphs: int
    settled: int
    breaks: tuple[str, ...]


ROWS: dict[str, Row] = {}


def script(graphs: int = 1, settled: int = 2, breaks: tuple[str, ...] = ()) -> Callable[[Script], Script]:
    """Adds a script to the table.

    Args:
        graphs: compiled in all, backwards not counted.
        settled: steps after which nothing is compiled.
        breaks: kinds of the reasons why it is not whole.
    """

    def add(fn: Script) -> Script:
        ROWS[fn.__name__] = Row(fn, graphs, settled, breaks)
        return fn

    return add


def shown(value: Any) -> Any:
    """Copies of all that a step shows."""
    if isinstance(value, nn.Module):
        gradients = {f"{name}.grad": p.grad for name, p in value.named_parameters()}
        return {k: shown(v) for k, v in {**value.state_dict(), **gradients}.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, (list, tuple)):
        return [shown(v) for v in value]
    return value


def steps(row: Row, compile: Callable[[Any], Any]) -> Iterator[Any]:
    torch.manual_seed(0), random.seed(0)
    yield from map(shown, row.script(compile))


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _alive() -> int:
    gc.collect()
    return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# ------------------------------------------------------------------------------------------------- precision


@script(graphs=4, breaks=("data-dependent-condition",))  # whether all was finite
def a_step_with_a_gradient_scaler(compile):
    """The scaler makes its tensors in the first step, inside."""
    model = mlp(6, 16, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)

    def train(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    train = compile(train)
    while True:
        yield train(torch.randn(8, 6), torch.randint(0, 3, (8,))), scaler.get_scale(), model


# --------------------------------------------------------------------------------------- training and evaluation


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(x)
        return self.head(x + self.attention(h, h, h, need_weights=False)[0])


@script(graphs=3)
def evaluation_in_inference_mode(compile):
    model = Attention()
    net, optimizer = compile(model), torch.optim.AdamW(model.parameters(), 1e-3)
    while True:
        x = torch.randn(2, 5, 8)
        model.train()
        loss = net(x).pow(2).mean()
        descend(optimizer, loss)
        model.eval()
        with torch.no_grad():
            first = net(x)
        with torch.inference_mode():
            second = net(x)
        yield loss, first, second.clone(), model


@script(graphs=4, settled=8)
def a_backbone_is_thawed(compile):
    backbone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(backbone.requires_grad_(False), nn.Flatten(), nn.Linear(4, 3))
    net, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.05)
    x, y = torch.randn(8, 2, 6, 6), torch.randint(0, 3, (8,))
    for epoch in itertools.count():
        model.train()
        if epoch < 6:
            backbone.eval()
        if epoch == 6:
            backbone.requires_grad_(True)
        loss = F.cross_entropy(net(x), y)
        descend(optimizer, loss)
        model.eval()
        with torch.no_grad():
            yield loss, net(x).argmax(1), model


@script(graphs=2, settled=5)
def averaged_weights(compile):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    mean, decayed = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    evaluate = compile(decayed)
    data = [torch.randn(8, 6) for _ in range(2)]
    for epoch in itertools.count():
        for x in data:
            loss = net(x).pow(2).mean()
            descend(optimizer, loss)
            decayed.update_parameters(model)
        mean.update_parameters(model)
        if epoch == 4:
            update_bn(data, mean)
        with torch.no_grad():
            yield loss, evaluate(data[0]), model, mean, decayed


@script(graphs=1)
def the_average_of_a_compiled_module(compile):
    model = mlp(6, 8, 3)
    net = compile(model)
    average = AveragedModel(net)  # a deep copy
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        loss = net(torch.randn(8, 6)).pow(2).mean()
        descend(optimizer, loss)
        average.update_parameters(net)
        yield loss, model, average


# ------------------------------------------------------------------------------------------------- parameters


class Low(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, columns)), nn.Parameter(torch.zeros(rows, 2))

    def forward(self, weight):
        return weight + self.b @ self.a


def _normalized(kind):
    def make():
        return nn.Sequential(kind(nn.Linear(6, 8)), nn.LeakyReLU(0.2), kind(nn.Linear(8, 3)))

    return make


def _low_rank():
    model = mlp(6, 8, 3)
    for layer in (model[0], model[2]):
        parametrize.register_parametrization(layer, "weight", Low(*layer.weight.shape))
        layer.parametrizations.weight.original.requires_grad_(False)
    return model


PARAMETRIZED = {
    "low_rank": _low_rank,
    "weight_norm": _normalized(nn.utils.parametrizations.weight_norm),
    "spectral_norm": _normalized(nn.utils.parametrizations.spectral_norm),
    "spectral_norm_by_hook": _normalized(nn.utils.spectral_norm),
    "orthogonal": lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh()),
}


def _parametrized(make):
    def run(compile):
        model = make()
        net = compile(model)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
        while True:
            loss = net(torch.randn(8, 6)).pow(2).mean()
            descend(optimizer, loss)
            yield loss, model

    return run


ROWS.update(
    (f"parametrized_{name}", Row(_parametrized(make), 1, 2, ())) for name, make in PARAMETRIZED.items()
)

# ------------------------------------------------------------------------------------------- several networks


@script(graphs=3)  # the judge sees noise that needs gradients, and noise that does not
def two_networks_with_optimizers_of_their_own(compile):
    maker, judge = mlp(4, 8, 6), mlp(6, 8, 1)
    make, rate = compile(maker), compile(judge)
    first, second = (torch.optim.Adam(m.parameters(), 1e-3) for m in (maker, judge))
    real, false = torch.ones(8, 1), torch.zeros(8, 1)
    loss = F.binary_cross_entropy_with_logits
    while True:
        made = make(torch.randn(8, 4))
        judged = loss(rate(torch.randn(8, 6)), real) + loss(rate(made.detach()), false)
        descend(second, judged)
        fooled = loss(rate(made), real)
        descend(first, fooled)
        yield judged, fooled, maker, judge


@script()
def a_teacher_without_gradients(compile):
    teacher, student = mlp(6, 8, 4).eval(), mlp(6, 4, 4)

    def loss_of(x, y, temperature=2.0):
        with torch.no_grad():
            wanted = (teacher(x) / temperature).softmax(-1)
        given = student(x)
        soft = F.kl_div((given / temperature).log_softmax(-1), wanted, reduction="batchmean")
        return soft * temperature**2 + F.cross_entropy(given, y, label_smoothing=0.1)

    loss_of, optimizer = compile(loss_of), torch.optim.Adam(student.parameters(), 1e-2)
    while True:
        loss = loss_of(torch.randn(8, 6), torch.randint(0, 4, (8,)))
        descend(optimizer, loss)
        yield loss, student


# --------------------------------------------------------------------------------------- gradients in the loss


@script()
def steps_within_a_step(compile):
    model = mlp(3, 8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_after_two_steps(x, y, x_new, y_new):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), slopes)}
        return F.mse_loss(torch.func.functional_call(model, weights, (x_new,)), y_new)

    compiled = compile(loss_after_two_steps)
    while True:
        loss = compiled(*(torch.randn(5, n) for n in (3, 1, 3, 1)))
        descend(optimizer, loss)
        yield loss, model


@script()
def a_differential_equation(compile):
    model = mlp(2, 8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def residual(at):
        at = at.detach().requires_grad_(True)
        u = model(at)
        (first,) = torch.autograd.grad(u.sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
        return (first[:, 1] + u[:, 0] * first[:, 0] - 0.01 * second[:, 0]).pow(2).mean()

    residual = compile(residual)
    while True:
        loss = residual(torch.rand(8, 2))
        descend(optimizer, loss)
        yield loss, model


# ------------------------------------------------------------------------------------------------- batches


@script(graphs=2)
def accumulation_with_a_smaller_last_batch(compile):
    model = mlp(6, 8, 3)
    net, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = torch.randn(19, 6), torch.randint(0, 3, (19,))
    while True:
        optimizer.zero_grad()
        for a, b in zip(x.split(8), y.split(8)):
            loss = F.cross_entropy(net(a), b) / 3
            loss.backward()
        optimizer.step()
        yield loss, model


@script()
def noise_and_times_drawn_inside(compile):
    model, weights = mlp(8, 16, 6), torch.linspace(0.99, 0.1, 50)

    def loss_of(x):
        t = torch.randint(0, 50, (x.shape[0],))
        noise, kept = torch.randn_like(x), weights[t][:, None]
        embedded = torch.stack([(t / 50).sin(), (t / 50).cos()], -1)
        return F.mse_loss(
            model(torch.cat([kept.sqrt() * x + (1 - kept).sqrt() * noise, embedded], -1)), noise
        )

    loss_of, optimizer = compile(loss_of), torch.optim.AdamW(model.parameters(), 1e-2)
    while True:
        loss = loss_of(torch.randn(4, 6))
        descend(optimizer, loss)
        yield loss, model, torch.get_rng_state()


@script()
def a_copy_goes_on_by_itself(compile):
    net = compile(mlp(6, 8, 3))
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD([*net.parameters(), *twin.parameters()], 0.1)
    while True:
        loss = net(torch.randn(8, 6)).pow(2).mean()
        descend(optimizer, loss)
        yield loss, net, twin


# --------------------------------------------------------------------------------------------------- the test


@pytest.mark.parametrize("name", ROWS)
def test_steps(name: str) -> None:
    row, compiled, late, step = ROWS[name], [], [], 0

    def compile(target: Any) -> Any:
        compiled.append(smelt.compile(target))
        return compiled[-1]

    def note(event: events.Event) -> None:
        if step >= row.settled and event.kind in ("entry-installed", "backward-compiled"):
            late.append((step, event.kind, event.name))

    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        want = list(itertools.islice(steps(row, lambda target: target), STEPS))
    with warnings.catch_warnings(record=True) as given, events.subscribed(note):
        warnings.simplefilter("always")
        run = steps(row, compile)
        for step in range(STEPS):  # noqa: B007 (read by `note`)
            same(next(run), want[step], f"step {step}")
        before = _alive()
        deque(itertools.islice(run, MORE), maxlen=0)
        grown = _alive() - before
    assert not late
    assert {str(w.message) for w in given} <= {str(w.message) for w in expected}
    assert {r.kind.id for c in compiled for r in reasons(c)} == set(row.breaks)
    assert sum(map(graph_count, compiled)) == row.graphs
    assert grown <= 0, f"{grown} more tensors are alive"
