"""Results of a joint graph that are views, taken where autograd sees them as views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.trace.joint import Result

Compiled = Callable[[tuple[Any, ...]], Sequence[Any]]


def take_results(values: Compiled, results: Sequence[Result], n_values: int, grad: bool) -> Compiled:
    """`values` gives the joint graph's; the callable returned gives the outputs of the trace.

    `grad`: whether the caller's grad mode is on (it is guarded); a function may turn it on inside.
    """
    plain = (
        [r.index for r in results if r.kind == "value"] == list(range(n_values)) == list(range(len(results)))
    )
    if plain and grad:
        return values

    def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        with torch.enable_grad():
            made = values(inputs)
            return tuple(_take(r, made, inputs) for r in results)

    return call


def _take(result: Result, values: Sequence[Any], inputs: tuple[Any, ...]) -> Any:
    base = (inputs if result.kind == "view_of_input" else values)[result.index]
    if result.kind == "value":
        return base
    if result.detached:
        base = base.detach()
    return base.as_strided(result.shape, result.stride, base.storage_offset() + result.offset)
