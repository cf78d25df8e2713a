"""Steps of one optimizer over one set of parameters, in a process of its own: prints one line of JSON.

    python -m benchmarks.one_optimizer first AdamW "20 M elements" smelt     seconds of the first two steps
    python -m benchmarks.one_optimizer steady AdamW "20 M elements"          the rest, contestants side by side

The first step makes the state, the second is the one that all others repeat. Gradients are fixed numbers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

import smelt
from benchmarks import cold, errors, measure  # noqa: F401  (cold: first, its import empties caches)
from smelt import events

SHAPES = {
    "20 M elements": [(768, 768)] * 24 + [(768,)] * 24 + [(2048, 2048), (768, 2048)],
    "200 small": [(64, 64)] * 50 + [(64,)] * 150,
}
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD momentum": lambda p, **how: optim.SGD(p, 0.01, momentum=0.9, **how),
    "Adam": lambda p, **how: optim.Adam(p, 1e-3, **how),
    "AdamW": lambda p, **how: optim.AdamW(p, 1e-3, **how),
}
EAGER: dict[str, dict[str, bool]] = {
    "eager": {},
    "eager foreach": {"foreach": True},
    "eager fused": {"fused": True},
}


class Stepping:
    """Parameters with gradients, and an optimizer; `step` is what is measured. `make` compiles it."""

    def __init__(self, name: str, parameters: str, make: Callable[[Any], Any], **how: bool) -> None:
        torch.manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(shape) * 0.02) for shape in SHAPES[parameters]]
        for p in self.parameters:
            p.grad = torch.randn_like(p) * 0.01
        self.optimizer = OPTIMIZERS[name](self.parameters, **how)
        self.step = make(self.optimizer.step)


def _eager(step: Any) -> Any:
    return step


def _graph_once(graph: Callable[..., Any], examples: Any) -> Callable[..., Any]:
    """A backend whose graph runs at its first call; later calls give the same again."""
    results: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not results:
            results.append(graph(*inputs))
        return results[0]

    return run


def first(name: str, parameters: str, who: str) -> dict[str, float]:
    """An eager step comes before, so that what torch itself sets up once is not counted."""
    Stepping(name, parameters, _eager).step()
    stepping = Stepping(name, parameters, {"smelt": smelt.compile, "torch.compile": torch.compile}[who])
    start = time.perf_counter()
    stepping.step()
    stepping.step()
    return {"first_s": time.perf_counter() - start}


def steady(name: str, parameters: str, rivals: bool = True, budget_s: float = 10.0) -> dict[str, Any]:
    seen: list[events.Event] = []
    contestants = {who: Stepping(name, parameters, _eager, **how) for who, how in EAGER.items()}
    if rivals:
        contestants["torch.compile"] = Stepping(name, parameters, torch.compile)
    contestants["smelt"] = Stepping(name, parameters, smelt.compile)
    contestants["smelt fused"] = Stepping(name, parameters, smelt.compile, fused=True)
    want = contestants["eager"]
    error = {}
    for who, stepping in contestants.items():
        with events.subscribed(lambda e: seen.append(e) if e.kind == "plan" and who == "smelt" else None):
            stepping.step()
            stepping.step()
        error[who] = errors.of_lists(stepping.parameters, want.parameters)
    empty = Stepping(name, parameters, lambda step: smelt.compile(step, backend=_graph_once))
    empty.step()
    empty.step()
    return {
        "error": error,
        "kernels": [e.data["kernels"] for e in seen],
        "step_s": measure.interleaved({who: s.step for who, s in contestants.items()}, budget_s),
        "without_graph_s": measure.interleaved({"smelt": empty.step}, 1.0)["smelt"],
    }


def main() -> None:
    what, name, parameters, *rest = sys.argv[1:]
    row = first(name, parameters, rest[0]) if what == "first" else steady(name, parameters, not rest)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
