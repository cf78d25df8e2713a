"""What autograd must see happen outside of a compiled graph's node: writes of inputs, and results that are views."""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.graph_function import Compiled
from smelt.graph.ir import map_nodes
from smelt.trace.joint import Joint
from smelt.trace.outputs import OutputSource


def take_outputs(values: Compiled, joint: Joint, grad: bool) -> Compiled:
    """`values` gives the joint graph's; the callable returned writes inputs and gives the outputs of the trace.

    `grad`: whether the caller's grad mode is on (it is guarded); a function may turn it on inside.
    """
    results, writes, flags = joint.results, joint.writes, joint.flags
    plain = all(not r.steps and r.kind == "value" and not r.retained for r in results)
    plain = plain and not writes and not flags
    if plain and grad and [r.index for r in results] == list(range(joint.n_outputs)):
        return values

    def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        with torch.enable_grad():
            flags.begin(inputs)
            made = values(inputs)
            for primal, value in writes:
                inputs[primal].copy_(made[value])
            flags.finish(inputs)
            return tuple(_take(r, (inputs if r.kind == "input" else made)[r.index]) for r in results)

    return call


def _take(result: OutputSource, base: Any) -> Any:
    if result.detached:
        base = base.detach()
    with torch.set_grad_enabled(not result.no_grad):
        for step in result.steps:
            seen = base
            args, kwargs = (map_nodes(a, lambda n: seen) for a in (step.args, step.kwargs))  # noqa: B023
            base = step.op(*args, **kwargs)
            if step.item is not None:
                base = base[step.item]
    if result.retained:
        base.retain_grad()
    return base
