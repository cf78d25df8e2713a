"""The ten models, forwards and backwards: plans that travelled as bytes compute what the others compute, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.sweep_plans import journey, results
from smelt import _native
from smelt.plan.steps import Plan
from smelt.targets import cpu
from tests.harness.models import MODELS


@pytest.fixture
def travelling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every plan goes through bytes before it is loaded; how many bytes each was."""
    sizes: list[int] = []

    def load(plan: Plan) -> _native.Plan:
        native, size = journey(plan)
        sizes.append(size)
        return native

    monkeypatch.setattr(cpu, "load", load)
    return sizes


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
