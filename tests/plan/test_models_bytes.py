"""The ten models, forwards and backwards: plans that travelled as bytes compute what the others compute, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from benchmarks.models import tensors
from smelt import _native
from smelt.codegen.load import load
from smelt.plan.bytes import from_bytes, to_bytes
from smelt.plan.steps import Plan
from smelt.targets import cpu
from tests.harness.models import MODELS


@pytest.fixture
def travelling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every plan goes through bytes before it is loaded; how many bytes each was."""
    sizes: list[int] = []

    def journey(plan: Plan) -> _native.Plan:
        data = to_bytes(plan)
        read = from_bytes(data)
        assert to_bytes(read) == data
        sizes.append(len(data))
        return load(read)

    monkeypatch.setattr(cpu, "load", journey)
    return sizes


def results(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """What the compiled model computes in evaluation, in training, and the gradients of a sum of squares."""
    found = []
    torch.manual_seed(1)  # for dropout
    with torch.no_grad():
        found += tensors(smelt.compile(model.eval(), fullgraph=True)(**inputs))
    out = [t for t in tensors(smelt.compile(model.train(), fullgraph=True)(**inputs)) if t.requires_grad]
    loss: Any = sum(t.square().mean() for t in out)
    model.zero_grad()
    loss.backward()
    return found + [t.detach() for t in out] + [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    want = results(copy.deepcopy(model), inputs)
    sizes = request.getfixturevalue("travelling")
    got = results(model, inputs)
    assert len(sizes) >= 3  # in evaluation, forward, backward
    assert len(want) == len(got) > 2
    for w, g in zip(want, got):
        assert torch.equal(w, g)
