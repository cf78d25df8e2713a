"""Whole training steps inside of the compiled function: forward, backward, and every optimizer of torch.

What is compared: the loss, parameters, gradients (which there are, too), all of an optimizer's state. In float64, so that no
optimizer magnifies how sums are rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler

import smelt
from tests.harness.agreement import check_no_failure
from tests.harness.catalogue import observe_world, program
from tests.harness.snapshot import difference


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    target = torch.linspace(0, 1, 18, dtype=torch.float64).reshape(6, 3)
    return [(torch.linspace(-1, 1 + i, 24, dtype=torch.float64).reshape(6, 4), target) for i in range(count)]


def training(
    make: Callable[[Any], optim.Optimizer], finish: Callable[..., object] = lambda *given: None
) -> Any:
    """A factory: steps of the optimizer that `make` makes of the parameters. `finish(optimizer)` gives what is called after
    each."""

    def factory() -> Any:
        model = network()
        optimizer = make(list(model.parameters()))
        after = finish(optimizer)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if after is not None:
                after()
            return loss.detach()

        return step, batches(), lambda: (model, [p.grad for p in model.parameters()], optimizer.state_dict())

    return factory


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD maximize": lambda p: optim.SGD(p, 0.1, maximize=True),
    "Adam amsgrad": lambda p: optim.Adam(p, 0.1, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda p: optim.AdamW(p, 0.1),
    "AdamW foreach": lambda p: optim.AdamW(p, 0.1, foreach=True, maximize=True),
    "AdamW fused": lambda p: optim.AdamW(p, 0.1, fused=True),
    "Adam, rate in a tensor": lambda p: optim.Adam(p, torch.tensor(0.1)),
    "NAdam": lambda p: optim.NAdam(p, 0.1, decoupled_weight_decay=True, weight_decay=0.1),
    "RAdam": lambda p: optim.RAdam(p, 0.1),
    "Adamax": lambda p: optim.Adamax(p, 0.1),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, 0.1),
    "RMSprop": lambda p: optim.RMSprop(p, 0.1, centered=True, momentum=0.9),
    "Rprop": lambda p: optim.Rprop(p, 0.1),
    "ASGD": lambda p: optim.ASGD(p, 0.1),
    "Muon": lambda p: optim.Muon([q for q in p if q.ndim == 2], 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    """One graph: of the first call, where there are no gradients to drop and state is made, and of all others."""
    program(graphs=1, later=1)(training(OPTIMIZERS[name]))()


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler(name: str) -> None:
    """No break."""

    def after(optimizer: optim.Optimizer) -> Callable[[], None]:
        step: Callable[[], None] = SCHEDULERS[name](optimizer).step
        return step

    later = (
        2 if name in ("OneCycleLR", "SequentialLR") else 1
    )  # the momentum, or the kind of schedule, changes
    program(graphs=1, later=later)(training(lambda p: optim.SGD(p, 0.1, momentum=0.9), after))()


@program(graphs=1, later=1)
def test_step_of_an_optimizer_and_its_scheduler() -> Any:
    model = network()
    optimizer = optim.AdamW(model.parameters(), 0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def step() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()

    return step, [()] * 4, lambda: (model, [p.grad for p in model.parameters()], optimizer.state_dict())


def test_lbfgs() -> None:
    """It reads numbers of tensors all the time: right, in many graphs."""

    def factory() -> Any:
        model = network()
        optimizer = optim.LBFGS(model.parameters(), 0.5, max_iter=3)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return step, batches(), lambda: (model, optimizer.state_dict())

    same_in_any_number_of_graphs(factory)


@pytest.mark.parametrize("foreach", [True, False])
def test_adafactor(foreach: bool) -> None:
    """Its step sizes are numbers read from tensors."""
    same_in_any_number_of_graphs(training(lambda p: optim.Adafactor(p, 0.1, foreach=foreach)))


def test_sparse_adam() -> None:
    """Sparse gradients are left to eager."""

    def factory() -> Any:
        table = nn.Embedding(10, 3, sparse=True)
        optimizer = optim.SparseAdam(table.parameters(), 0.1)

        def step(rows: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = table(rows).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        calls = [(torch.tensor([1, 2, 2, i]),) for i in range(3)]
        return step, calls, lambda: (table.weight.detach(), optimizer.state_dict())

    same_in_any_number_of_graphs(factory)


def test_grad_scaler() -> None:
    """Whether a step is taken is read from a tensor."""

    def factory() -> Any:
        model = network()
        optimizer = optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(model(x), y)).backward()
            scaler.unscale_(optimizer)
            total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return total

        calls = batches(4)
        calls[1] = (calls[1][0], calls[1][1] * float("inf"))
        return step, calls, lambda: (model, scaler.state_dict())

    same_in_any_number_of_graphs(factory)


def same_in_any_number_of_graphs(factory: Callable[[], Any]) -> None:
    """Runs a catalogue program, whatever is captured of it. A failure of smelt itself is an error all the same."""
    compiled: list[Any] = []

    def compile(fn: Any) -> Any:
        compiled.append(smelt.compile(fn))
        return compiled[0]

    worlds = [[o.facts for o in observe_world(factory, how)] for how in (lambda fn: fn, compile)]
    for number, (want, got) in enumerate(zip(*worlds, strict=True)):
        problem = difference(got, want, 1e-7, 1e-7)
        assert problem is None, f"call {number}: {problem}"
    check_no_failure(compiled[0])
