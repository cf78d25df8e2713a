"""Programs that were found by looking for a difference between eager and compiled training; each stands for a cause."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import smelt
from tests.harness.training import both, gradients, leaf

# ------------------------------------------------------------------------------------------- hooks of saved tensors

PACKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it lies": lambda t: t.detach(),
    "dense": lambda t: t.detach().clone(memory_format=torch.contiguous_format),
    "column by column": lambda t: t.detach().t().contiguous().t(),
    "spread": lambda t: torch.stack([t.detach(), t.detach()], -1)[..., 0],
    "in double precision": lambda t: t.detach().double(),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(4, 4),
    "every second": lambda: torch.randn(4, 8)[:, ::2],
    "a row, expanded": lambda: torch.randn(4).expand(4, 4),
    "a column, expanded": lambda: torch.randn(4, 1).expand(4, 4),
}


@both()
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("packed", PACKED)
def test_what_is_unpacked_may_lie_otherwise(compile, packed, name):
    """The backward relies on the strides of what was saved; a hook gives back values only."""
    f, x, w = compile(lambda x, w: (x * w).sin() @ w.t()), INPUTS[name](), leaf(4, 4)
    with torch.autograd.graph.saved_tensors_hooks(PACKED[packed], lambda t: t.float()):
        y = f(x, w.t())
    y.sum().backward()
    return gradients(w)


@both()
def test_saved_tensors_that_do_not_lie_densely_go_to_the_cpu(compile):
    f, w = compile(lambda x, w: (x @ w).tanh()), leaf(4, 4)
    with torch.autograd.graph.save_on_cpu():
        y = f(torch.randn(4, 8)[:, ::2], w.t())
    y.sum().backward()
    return gradients(w)


# --------------------------------------------------------------------------------------- forward-mode differentiation


@both(whole=False)
def test_tangents_of_arguments_come_through(compile):
    """The graphs that are there already know nothing of tangents."""
    f, x, w = compile(lambda x, w: (x * w).sin()), leaf(3), leaf(3)
    f(x, w)
    f(x.detach(), w.detach())
    with forward_ad.dual_level():
        pairs = [
            (forward_ad.make_dual(x.detach(), torch.ones(3)), w.detach()),
            (forward_ad.make_dual(x, torch.ones(3)), w),
            (x, forward_ad.make_dual(w.detach(), torch.ones(3))),
        ]
        tangents = [forward_ad.unpack_dual(f(*pair)).tangent for pair in pairs]
    f(x, w).sum().backward()
    return [t.detach() for t in tangents], gradients(x, w)


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
