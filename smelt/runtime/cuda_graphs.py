"""Capture of plans into CUDA graphs, at the request of `_native.Plan` (native/plan/graphs.h)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch

from smelt import _native

log = logging.getLogger("smelt")


Tensors = tuple[torch.Tensor | None, ...]


MOST = 32  # graphs that instances of a plan for many sizes have together, each with memory of its own


class Replay:
    """Replays a graph and keeps it alive."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph = graph

    def __call__(self) -> None:
        self.graph.replay()


@dataclass(frozen=True)
class Capture:
    """`capture(inputs, copied)`: see `_native.Plan.use_graphs`. `alive`: all captures of this plan, and of the plans
    that share its limit on the number of graphs."""

    plan: Callable[[], _native.Plan | None]  # which owns this, so it is not kept alive
    alive: weakref.WeakSet[Replay] = field(default_factory=weakref.WeakSet)

    def __call__(
        self, inputs: Tensors, copied: tuple[bool, ...]
    ) -> tuple[Callable[[], None], Tensors, Tensors] | None:
        """(the function that replays the graph, static tensors of the copied inputs, results), or None, with a log
        line that says why, if the plan does something that a graph cannot."""
        plan = self.plan()
        assert plan is not None
        why_not = "there are as many as there may be" if len(self.alive) >= MOST else _refused(inputs, copied)
        if why_not is None:
            static_inputs = tuple(
                _static_copy(x) if x is not None and copy else None for x, copy in zip(inputs, copied)
            )
            graph_inputs = tuple(x if static is None else static for x, static in zip(inputs, static_inputs))
            graph = torch.cuda.CUDAGraph()
            try:
                # A pool of its own: what another graph gave must not lie where this one computes.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    results = cast(Tensors, plan(graph_inputs))  # type: ignore[arg-type]
                if all(r is None or r.device.type == "cuda" for r in results):
                    replay = Replay(graph)
                    self.alive.add(replay)
                    return replay, static_inputs, results
                why_not = "a result is on the CPU"
            except RuntimeError as error:
                why_not = str(error).partition("\n")[0]
        log.warning("smelt: a plan is not captured as a CUDA graph: %s", why_not)
        return None


def _refused(inputs: Tensors, copied: tuple[bool, ...]) -> str | None:
    for x, copy in zip(inputs, copied):
        if x is not None and x.device.type != "cuda":
            return "an input is on the CPU"
        if x is not None and copy and any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape)):
            return "an input that changes its address has elements that share memory"
    return None


def _static_copy(x: torch.Tensor) -> torch.Tensor:
    """A static tensor with the layout of `x`, into which inputs are copied."""
    with torch.no_grad():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
