"""The mutation and view epilogue: writes of inputs and views among results, which autograd must see outside of a
compiled graph's nodes.

Tensors that other results are computed from are created between the autograd nodes (`epilogue_steps`). All others are
created after the last node.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import map_nodes
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace_outputs import VIEWED, OutputSource, ViewStep


def apply_epilogue(values: Compiled, joint: Joint, grad: bool) -> Compiled:
    """A callable that writes inputs and returns the outputs of the trace, given `values`, which returns those of the
    joint graph.

    `grad`: whether the caller's grad mode is on (it is guarded); a function may turn it on inside.
    """
    results, flags = joint.results, joint.flags
    in_steps = {t.written for t in joint.epilogue}
    writes = [(primal, value) for primal, value in joint.writes if value not in in_steps]
    is_plain = all(not r.steps and r.kind == "value" and not r.retained for r in results)
    is_plain = is_plain and not joint.writes and not flags
    if is_plain and grad and [r.index for r in results] == list(range(joint.n_outputs)):
        return values
    shared, sources = _split_at_shared_views(results)
    first = [_derivation(start, source, joint.n_outputs) for start, source in shared]
    rest = [_derivation(start, source, joint.n_outputs) for start, source in sources]

    def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        with torch.enable_grad():
            flags.enable(inputs)
            outputs = values(inputs)
            for primal, value in writes:
                inputs[primal].copy_(outputs[value])
            flags.apply(inputs)
            views: list[Any] = []
            for derive in first:
                views.append(derive(inputs, outputs, views))
            return tuple([derive(inputs, outputs, views) for derive in rest])

    return call


def _derivation(start: int | None, source: OutputSource, n_outputs: int) -> Callable[..., Any]:
    """A function of the inputs, the outputs of the graph and the shared views, in grad mode, which derives `source` from
    the shared view `start`, if any."""
    derive = _deriver(source)
    if start is not None:
        return lambda inputs, outputs, views: derive(views[start])
    at = source.index + (n_outputs if source.kind == "epilogue" else 0)
    if source.kind == "input":
        return lambda inputs, outputs, views: derive(inputs[at])
    return lambda inputs, outputs, views: derive(outputs[at])


_Split = list[tuple[int | None, OutputSource]]


def _split_at_shared_views(results: Sequence[OutputSource]) -> tuple[_Split, _Split]:
    """The views, and the calls of several results, that several of `results` start from, and the results. With each: the
    index of the shared view that it starts from, if any, and the rest of its derivation. What is shared is created once, as
    in eager: the gradients of its views are added before its own derivative runs."""

    def key(source: OutputSource, n: int) -> tuple[Any, ...]:
        calls = tuple((step.call, step.item) for step in source.steps[:n])
        return source.kind, source.index, source.detached, source.no_grad, calls

    index: dict[tuple[Any, ...], int] = {}
    shared: _Split = []

    def split(source: OutputSource) -> tuple[int | None, OutputSource]:
        for n in reversed(range(1, len(source.steps))):
            if uses[key(source, n)] > 1:
                if key(source, n) not in index:
                    view = split(replace(source, steps=source.steps[:n], retained=False))
                    index[key(source, n)] = len(shared)
                    shared.append(view)
                return index[key(source, n)], replace(source, steps=source.steps[n:], detached=False)
        return None, source

    results = [replace(r, steps=tuple(_calls_and_items(r.steps))) for r in results]
    uses = Counter(key(r, n) for r in results for n in range(1, len(r.steps)))
    return shared, [split(r) for r in results]


def _calls_and_items(steps: Sequence[ViewStep]) -> Iterator[ViewStep]:
    """The steps, where a call of several results and the choice of one are two: the views of one call share it."""
    for step in steps:
        yield replace(step, item=None)
        if step.item is not None:
            yield replace(step, op=None)


EpilogueStep = tuple[int, list[tuple[str, int]], Callable[..., Any], int]


def epilogue_steps(joint: Joint) -> list[EpilogueStep]:
    """For `_native.Differentiable`, the steps that create `joint.epilogue` in order, with the views of one operator in one
    step. A step: the number of autograd nodes before it; its operands, ("input", index) or ("output", index), where earlier
    epilogue tensors follow the outputs; a function of the operands; the number of tensors that it returns."""
    steps = []
    numbered = enumerate(joint.epilogue, joint.n_outputs)
    for _, views in itertools.groupby(
        numbered, lambda pair: (pair[1].node, pair[1].source.multi_output_call or pair[0])
    ):
        (i, tensor), *others = views
        n_nodes = sum(cut < joint.n_outputs for cut in joint.cuts[: joint.cuts.index(i)])
        source = tensor.source
        index = source.index + (joint.n_outputs if source.kind == "epilogue" else 0)
        operands = [("input" if source.kind == "input" else "output", index)]
        create: Callable[..., Any] = functools.partial(_derive, source)
        if tensor.written is not None:
            operands.append(("output", tensor.written))
            create = torch.Tensor.copy_
        elif source.multi_output_call is not None:
            items = [t.source.steps[-1].item for t in (tensor, *(t for _, t in others))]
            create = functools.partial(_derive_items, source.multi_output_call, items)
        steps.append((n_nodes, operands, create, 1 + len(others)))
    return steps


def _derive_items(call: OutputSource, items: Sequence[int | None], base: Any) -> list[Any]:
    results = _derive(call, base)
    return [results[item] for item in items if item is not None]


def _derive(result: OutputSource, base: Any) -> Any:
    with torch.enable_grad():
        return _deriver(result)(base)


def _deriver(result: OutputSource) -> Callable[[Any], Any]:
    """A function of the tensor that `result` is derived from, in grad mode."""
    calls = [call for step in result.steps for call in _calls(step)]

    def derive(base: Any) -> Any:
        if result.detached:
            base = base.detach()
        for call in calls:
            base = call(base)
        if result.retained:
            base.retain_grad()
        return base

    return torch.no_grad()(derive) if result.no_grad else derive


def _calls(step: ViewStep) -> Iterator[Callable[[Any], Any]]:
    """The functions of the step's source, and of the results of its call, one after the other."""
    op, (first, *rest), kwargs = step.op, step.args or (None,), step.kwargs
    if op is not None and first is VIEWED:
        yield lambda base: op(base, *rest, **kwargs)
    elif op is not None:
        yield lambda base: op(*map_nodes(step.args, lambda n: base), **map_nodes(kwargs, lambda n: base))
    if step.item is not None:
        yield operator.itemgetter(step.item)
