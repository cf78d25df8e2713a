"""Two training steps of a model, eager and compiled, on copies that start alike: what they leave is compared.

A step drops the gradients, runs the forward in train mode, takes an inner product with fixed random numbers as the loss (the
first step: of the first output that has a gradient; the second: of all), and runs the backward. Compared are outputs,
gradients of the parameters, buffers, and the state of the random generators: dropout must draw eager's numbers, and as many.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import nn

import smelt
from benchmarks import errors
from smelt import events

TOLERANCE = 1e-4  # of the largest magnitude of a tensor
GRADIENT_TOLERANCE = 1e-3
FLOOR = 1e-3  # of buffers: below it, they are zero but for rounding


class NotComparable(Exception):
    """Eager itself does not train the model, or not twice in the same way."""


@dataclass(frozen=True)
class Left:
    """What a step leaves."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    generators: tuple[Any, ...]
    seconds: float  # of CPU time
    backward: int  # graphs compiled for the backward


def compare(model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What `model` was compiled to, and errors, graphs, CPU seconds of the first step. It is left in train mode. Raises
    NotComparable."""
    model.train()
    want = _eager(model, inputs)
    seen: list[events.Event] = []
    trained = copy.deepcopy(model)
    compiled = smelt.compile(trained)
    with events.subscribed(seen.append):
        got = train(trained, compiled, inputs)
    found: dict[str, Any] = {**difference(got, want)}
    if found["gradients"] > GRADIENT_TOLERANCE or max(found["outputs"], found["buffers"]) > TOLERANCE:
        found.update(_beside_float64(model, inputs, smelt=got, eager=want))
    if not agrees(found) and difference(_eager(model, inputs), want) != NONE:
        raise NotComparable("eager is not deterministic")
    return compiled, {
        **found,
        "backward": got[0].backward,
        "no_joint": [str(e.data["reason"].detail) for e in seen if e.kind == "no-joint-graph"],
        "first_s": {"eager": round(want[0].seconds, 3), "smelt": round(got[0].seconds, 3)},
    }


def agrees(found: dict[str, Any]) -> bool:
    """Within the tolerances, or as far from float64 as eager is (twice as far at most)."""
    if found["generators"] > TOLERANCE:
        return False
    if found["buffers"] > TOLERANCE and not no_worse(found.get("buffers_float64", "not compared")):
        return False
    if found["outputs"] <= TOLERANCE and found["gradients"] <= GRADIENT_TOLERANCE:
        return True
    return no_worse(found["float64"])


def no_worse(beside: dict[str, float] | str) -> bool:
    """Errors against float64: smelt's at most twice eager's, and eager's are not all of the value."""
    return isinstance(beside, dict) and beside["smelt"] <= 2 * beside["eager"] < 1


def _eager(model: nn.Module, inputs: dict[str, Any]) -> list[Left]:
    trained = copy.deepcopy(model)
    try:
        return train(trained, trained, inputs)
    except Exception as error:
        raise NotComparable(f"eager: {type(error).__name__}: {error}") from error


def train(model: nn.Module, call: Callable[..., Any], inputs: dict[str, Any]) -> list[Left]:
    """What each step leaves; `call` is `model` or what it was compiled to."""
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    return [_step(model, call, copy.deepcopy(inputs), most) for most in (1, None)]


def _step(model: nn.Module, call: Callable[..., Any], inputs: dict[str, Any], most: int | None) -> Left:
    """`most`: how many outputs the loss is made of."""
    model.zero_grad(set_to_none=True)
    seen: list[events.Event] = []
    start = time.process_time()
    with events.subscribed(seen.append):
        outputs = list(tensors(call(**inputs)))
        _loss(outputs, most).backward()
    seconds = time.process_time() - start
    return Left(
        [t.detach().clone() for t in outputs],
        {k: p.grad for k, p in model.named_parameters() if p.grad is not None},
        {k: b.clone() for k, b in model.named_buffers()},
        (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())),
        seconds,
        sum(e.kind == "backward-compiled" for e in seen),
    )


def _loss(outputs: list[torch.Tensor], most: int | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    used = [t for t in outputs if t.is_floating_point() and t.requires_grad][:most]
    terms = [(t * torch.randn(t.shape, generator=generator).to(t.dtype)).sum() for t in used]
    if not terms:
        raise ValueError("no output has a gradient")
    return torch.stack([t.double() for t in terms]).sum()


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors(v)


# --------------------------------------------------------------------------------------------------- differences

NONE = {"outputs": 0.0, "gradients": 0.0, "buffers": 0.0, "generators": 0.0}


def difference(got: list[Left], want: list[Left]) -> dict[str, float]:
    """The largest relative difference of the steps; infinite where shapes, dtypes or what there is differ."""
    worst = dict(NONE)
    for a, b in zip(got, want, strict=True):
        found = {
            "outputs": errors.largest(dict(enumerate(a.outputs)), dict(enumerate(b.outputs))),
            "gradients": errors.of_gradients(a.gradients, b.gradients),
            "buffers": errors.largest(a.buffers, b.buffers, FLOOR),  # means that are zero but for rounding
            "generators": 0.0 if a.generators == b.generators else float("inf"),
        }
        worst = {k: max(v, worst[k]) for k, v in found.items()}
    return worst


def _beside_float64(model: nn.Module, inputs: dict[str, Any], **who: list[Left]) -> dict[str, Any]:
    """How far the outputs and gradients of each are from eager in float64, and how far its buffers: of a model that
    multiplies rounding errors, eager is as far as smelt."""
    trained = errors.double_of(model)
    try:
        exact = [_all_double(left) for left in train(trained, trained, errors.in_double(inputs))]
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:100]
        return {"float64": why, "buffers_float64": why}
    apart = {name: difference([_all_double(left) for left in steps], exact) for name, steps in who.items()}
    return {
        "float64": {name: max(found["outputs"], found["gradients"]) for name, found in apart.items()},
        "buffers_float64": {name: found["buffers"] for name, found in apart.items()},
    }


def _all_double(left: Left) -> Left:
    doubled = {what: errors.in_double(getattr(left, what)) for what in ("outputs", "gradients", "buffers")}
    return replace(left, **doubled)
