"""Programs that were found by looking for a difference between eager and compiled training; each stands for a cause."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from tests.parity.training import both, gradients, leaf

# ------------------------------------------------------------------------------------------------- checkpoints


@both(ahead=False)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_updates_statistics_twice(compile, reentrant):
    """Once more when it runs again in the backward, as eager does."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    f, found = compile(lambda x: checkpoint(model, x, use_reentrant=reentrant)), []
    for _ in range(2):
        x = leaf(5, 4)
        y = f(x)
        found.append([b.clone() for b in model.buffers()])
        y.sum().backward()
        found.append([b.clone() for b in model.buffers()] + gradients(x, *model.parameters()))
    return found


# ---------------------------------------------------------------------------------------- what a first call keeps


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "one graph": lambda x, w: x * w,
}


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["one graph", "an argument of an unknown kind"])
def test_the_first_call_keeps_no_argument(backend: str, grad: bool, name: str) -> None:
    """Not in cycles of the capture either, which only the collector would free."""
    f = smelt.compile(CALLS.get(name, CALLS["one graph"]), backend=backend)
    x, w = leaf(3, 3), leaf(3, 3)
    if name not in CALLS:
        w = torch.randn(3, 3, dtype=torch.complex64).conj()
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled(grad):
            y = f(x, w)
        references = [weakref.ref(t) for t in (x, w, y)]
        del x, w, y
        assert [r() for r in references] == [None] * 3
    finally:
        gc.enable()
