"""Outputs that cannot be differentiated, because the function has done so itself and freed their graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.graph.graph_callable import Compiled
from smelt.torch_private import DelayedError
from smelt.tracing.backward.freed_graphs import FreedValue

_SECOND_TIME = (
    b"Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    b"freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    b"retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    b"after calling backward."
)


def mark_freed(values: Compiled, freed: Sequence[FreedValue]) -> Compiled:
    """`values`, with a history for those in `freed` that raises autograd's error. Its edges lead to everything that
    the value was computed from, so that any gradient through it raises."""
    if not freed:
        return values
    histories = [(s, DelayedError(_SECOND_TIME, 1 + len(s.inputs) + len(s.values))) for s in freed]

    def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        results = list(values(inputs))
        for s, history in histories:
            results[s.value], *_ = history(
                results[s.value], *(inputs[i] for i in s.inputs), *(results[i] for i in s.values)
            )
        return tuple(results)

    return call
