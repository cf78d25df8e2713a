"""One model in training, in a process of its own: prints one line of JSON.

    python -m benchmarks.one_training first "ResNet-50" smelt     seconds of the first step: forward, loss, backward
    python -m benchmarks.one_training steady "ResNet-50"          the rest, contestants side by side
    python -m benchmarks.one_training errors "ResNet-50"          errors of gradients against eager in float64

A step drops the gradients, runs the forward, takes the inner product of the first output with fixed random numbers as the
loss, and runs the backward. There is no optimizer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import smelt
from benchmarks import cold, errors, measure  # noqa: F401  (cold: first, its import sets caches)
from benchmarks.models import build, tensors
from benchmarks.saved import saved_bytes
from smelt import events

CONTESTANTS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda module: module,
    "torch.compile": torch.compile,
    "smelt": lambda module: smelt.compile(module, fullgraph=True),
}


class Training:
    """A model in train mode, its inputs, and the loss; `step(call)` is what is measured."""

    def __init__(self, name: str, double: bool = False) -> None:
        """`double`: in float64, with the numbers that float32 would have."""
        self.module, self.inputs = build(name)
        self.module.train()
        with torch.no_grad():
            like = self._result(self.module(**self.inputs))
        self.weights = torch.randn(like.shape, generator=torch.Generator().manual_seed(1))
        if double:
            self.module, self.inputs = errors.double_of(self.module), errors.in_double(self.inputs)
            self.weights = self.weights.double()

    def to(self, device: str) -> None:
        self.module, self.weights = self.module.to(device), self.weights.to(device)
        self.inputs = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in self.inputs.items()}

    @staticmethod
    def _result(output: Any) -> torch.Tensor:
        return tensors(output)[0]

    def step(self, call: Callable[..., Any]) -> torch.Tensor:
        self.module.zero_grad(set_to_none=True)
        loss = (self._result(call(**self.inputs)) * self.weights).sum()
        loss.backward()
        return loss.detach()

    def gradients(self, call: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Of one step, dropout drawn from seed 0, buffers put back; the loss is among them."""
        buffers = {k: v.clone() for k, v in self.module.named_buffers()}
        torch.manual_seed(0)
        found = {"loss": self.step(call)}
        found |= {k: p.grad.clone() for k, p in self.module.named_parameters() if p.grad is not None}
        for k, v in self.module.named_buffers():
            v.copy_(buffers[k])
        return found

    def saved(self, call: Callable[..., Any]) -> int:
        given = [*self.module.parameters(), *self.module.buffers(), *tensors(self.inputs)]
        return saved_bytes(lambda: call(**self.inputs), given)


def first(name: str, who: str) -> dict[str, Any]:
    """An eager step comes before, so that what torch itself sets up once is not counted."""
    training = Training(name)
    training.step(training.module)
    call = CONTESTANTS[who](training.module)
    stages: dict[str, float] = {}

    def listen(event: events.Event) -> None:
        if "seconds" in event.data:
            key = event.name if event.kind == "stage" else event.kind
            stages[key] = stages.get(key, 0.0) + event.data["seconds"]

    with events.subscribed(listen):
        start = time.perf_counter()
        training.step(call)
        seconds = time.perf_counter() - start
    return {"first_s": seconds, "stages_s": stages}


def _backward_graphs(loss: torch.Tensor) -> int:
    """How many nodes of torch.compile are behind `loss` in autograd's graph."""
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [n for n, _ in node.next_functions]
    return sum(node.name() == "CompiledFunctionBackward" for node in seen)


def steady(name: str, rivals: bool = True, budget_s: float = 12.0) -> dict[str, Any]:
    training = Training(name)
    calls = {
        who: make(training.module) for who, make in CONTESTANTS.items() if rivals or who != "torch.compile"
    }
    row: dict[str, Any] = {"graphs": {}, "saved_bytes": {"eager": training.saved(calls["eager"])}}
    seen: list[events.Event] = []
    for who in list(calls)[1:]:
        with events.subscribed(seen.append):
            training.step(calls[who])
        row["saved_bytes"][who] = training.saved(calls[who])
        if who == "smelt":
            graphs = [sum(e.kind == kind for e in seen) for kind in ("entry-installed", "backward-compiled")]
        else:
            backward = _backward_graphs(training._result(calls[who](**training.inputs)))
            graphs = [torch._dynamo.utils.counters["stats"]["unique_graphs"], backward]
        row["graphs"][who] = graphs
    row["kernels"] = {"smelt": sum(e.data.get("kernels", 0) for e in seen if e.kind == "plan")}
    row["call_s"] = measure.interleaved({w: lambda c=c: training.step(c) for w, c in calls.items()}, budget_s)
    return row


def gradient_errors(name: str, rivals: bool = True) -> dict[str, float]:
    """Of the loss and all gradients of one step, by contestant. torch.compile draws eager's random numbers for it."""
    torch._inductor.config.fallback_random = True
    exact = Training(name, double=True)
    want = exact.gradients(exact.module)
    training = Training(name)
    return {
        who: errors.of_gradients(errors.in_double(training.gradients(make(training.module))), want)
        for who, make in CONTESTANTS.items()
        if rivals or who != "torch.compile"
    }


def main() -> None:
    what, name, *rest = sys.argv[1:]
    rivals = "--no-rivals" not in rest
    rows: dict[str, Callable[[], dict[str, Any]]] = {
        "first": lambda: first(name, rest[0]),
        "steady": lambda: steady(name, rivals),
        "errors": lambda: {"error": gradient_errors(name, rivals)},
    }
    print(json.dumps(rows[what]()))


if __name__ == "__main__":
    main()
