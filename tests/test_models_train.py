"""The ten benchmark models in train mode, tiny: 20 steps with SGD and with AdamW go where eager's go.

The tolerances are those of float32 sums taken in another order, carried through 20 steps: LOSS relative to the loss, MOVED
relative to how far the parameter that moved most has moved (at least FLOOR). AdamW's `eps` is above the rounding errors of
gradients, or it would make whole steps of gradients that are exactly zero but for rounding (of biases before a batch norm,
and of keys).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from benchmarks.models import tensors
from smelt import events
from smelt.report.inspect import graph_count, reasons
from tests.harness.models import MODELS

STEPS = 20
LOSS = 2e-5
MOVED = 1e-3

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3, eps=1e-4),
}


def loss_of(output: object) -> torch.Tensor:
    """Of the first output, towards a fixed wave, so that nothing that a norm divides out is all of the loss."""
    found = next(t for t in tensors(output) if t.requires_grad)
    wave = torch.arange(found.numel(), dtype=found.dtype).sin().view(found.shape)
    return (found - wave).square().mean()


def train(call: Callable[..., Any], model: nn.Module, inputs: dict[str, Any], optimizer: Any) -> list[float]:
    """The losses of the steps."""
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call(**inputs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    compiled, backwards = smelt.compile(twin), []

    def listen(event: events.Event) -> None:
        if event.kind in ("backward-compiled", "no-joint-graph"):
            backwards.append(event.kind)

    for make_optimizer in OPTIMIZERS.values():
        for m in (model, twin):
            m.load_state_dict(start)
            m.zero_grad()
        want = train(model, model, inputs, make_optimizer(model.parameters()))
        state = torch.get_rng_state()
        with events.subscribed(listen):
            got = train(compiled, twin, inputs, make_optimizer(twin.parameters()))
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(got, want, rtol=LOSS, atol=0)
        assert want[-1] < want[0]
        same_state(twin, model, start)
    assert not reasons(compiled) and graph_count(compiled) == 1
    assert backwards == ["backward-compiled"]


def same_state(got: nn.Module, want: nn.Module, start: dict[str, torch.Tensor]) -> None:
    """Parameters, buffers and which parameters have a gradient."""
    for (path, p), q in zip(want.named_parameters(), got.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None), path
    for kind in ("named_parameters", "named_buffers"):
        tensors = zip(getattr(want, kind)(), getattr(got, kind)(), strict=True)
        pairs = {path: (t.detach(), other.detach()) for (path, t), (_, other) in tensors if path in start}
        moved = max(((t - start[path]).abs().max().item() for path, (t, _) in pairs.items()), default=0.0)
        for path, (t, other) in pairs.items():
            torch.testing.assert_close(other, t, rtol=0, atol=MOVED * moved, msg=lambda m: f"{path}: {m}")
