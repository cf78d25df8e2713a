"""What autograd must see happen outside of a compiled graph's nodes: writes of inputs, and results that are views.

What other results are computed from is taken between the nodes (`steps`): theirs lead to it. All else comes after them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import map_nodes
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace_outputs import OutputSource


def apply_epilogue(values: Compiled, joint: Joint, grad: bool) -> Compiled:
    """`values` gives the joint graph's; the callable returned writes inputs and gives the outputs of the trace.

    `grad`: whether the caller's grad mode is on (it is guarded); a function may turn it on inside.
    """
    results, flags = joint.results, joint.flags
    taken = {t.written for t in joint.epilogue}
    writes = [(primal, value) for primal, value in joint.writes if value not in taken]
    plain = all(not r.steps and r.kind == "value" and not r.retained for r in results)
    plain = plain and not joint.writes and not flags
    if plain and grad and [r.index for r in results] == list(range(joint.n_outputs)):
        return values

    def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        with torch.enable_grad():
            flags.enable(inputs)
            made = values(inputs)
            for primal, value in writes:
                inputs[primal].copy_(made[value])
            flags.apply(inputs)
            return tuple(_take(r, _looked_at(r, inputs, made, joint.n_outputs)) for r in results)

    return call


EpilogueStep = tuple[int, list[tuple[str, int]], Callable[..., Any], int]


def steps(joint: Joint) -> list[EpilogueStep]:
    """For `_native.Differentiable`: how `joint.epilogue` are made, one after the other, views that one operator gives at once.
    After how many nodes; of what: ("input", place), or ("output", place), where what was taken before follows the outputs;
    the function of that; how many tensors it gives."""
    found = []
    numbered = enumerate(joint.epilogue, joint.n_outputs)
    for _, views in itertools.groupby(numbered, lambda pair: (pair[1].node, pair[1].source.call or pair[0])):
        (i, taken), *others = views
        nodes = sum(cut < joint.n_outputs for cut in joint.cuts[: joint.cuts.index(i)])
        source = taken.source
        place = source.index + (joint.n_outputs if source.kind == "taken" else 0)
        operands = [("input" if source.kind == "input" else "output", place)]
        make: Callable[..., Any] = functools.partial(_take, source)
        if taken.written is not None:
            operands.append(("output", taken.written))
            make = torch.Tensor.copy_
        elif source.call is not None:
            items = [t.source.steps[-1].item for t in (taken, *(t for _, t in others))]
            make = functools.partial(_take_items, source.call, items)
        found.append((nodes, operands, make, 1 + len(others)))
    return found


def _take_items(call: OutputSource, items: Sequence[int | None], base: Any) -> list[Any]:
    given = _take(call, base)
    return [given[item] for item in items if item is not None]


def _looked_at(result: OutputSource, inputs: Sequence[Any], made: Sequence[Any], n_outputs: int) -> Any:
    if result.kind == "input":
        return inputs[result.index]
    return made[result.index + (n_outputs if result.kind == "taken" else 0)]


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
