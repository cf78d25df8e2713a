"""A graph in float64: the reference for results of eager and compiled code.

Random numbers are those that the graph draws; operators that look at the bits of numbers, or that have no float64
kernel, compute in the graph's dtypes.

With `noise`, each input and each operator's result is perturbed at random by its dtype's rounding error: the results
then differ by as much as rounding may change them, wherever it happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph import torch_settings
from smelt.graph.graph_interpreter import step
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import map_leaves
from smelt.torch_private import OpOverload

_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128} | dict.fromkeys(
    (torch.float16, torch.bfloat16, torch.float32), torch.float64
)
_ROUNDED = frozenset({*_WIDE, torch.float64, torch.complex128})


def run_wide(
    graph: Graph, inputs: Sequence[Any], noise: torch.Generator | None = None
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The results in float64, and the inputs afterwards; the passed inputs are not written."""
    values: dict[Node, Any] = {}
    with torch_settings.beneath_autograd():
        held = [_copied(value) for value in inputs]
        if noise is not None:
            held = [_noisy(v, p.spec, noise) for v, p in zip(held, graph.placeholders, strict=True)]
        values.update(zip(graph.placeholders, held, strict=True))
        for node in graph.nodes[len(held) :]:
            if node.op == "output":
                return tuple([None if n is None else values[n] for n in node.args[0]]), tuple(held)
            values[node] = _rounded(_wide_step(graph, node, values), node, noise)
    raise ValueError("the graph has no output node")


def _copied(value: Any) -> Any:
    wide = _widened(value)
    return wide.clone() if wide is value and isinstance(value, torch.Tensor) else wide


def _wide_step(graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
    target = node.target
    does = effects(target) if isinstance(target, OpOverload) else None
    if does is None or not (does.random or (does.view and "dtype" in does.names)):  # a view of bits
        args, kwargs = map_leaves((node.args, node.kwargs), torch.dtype, lambda d: _WIDE.get(d, d))
        wide = replace(node, args=args, kwargs=kwargs)
        try:
            return map_leaves(step(graph, wide, values), torch.Tensor, _widened)
        except Exception as error:
            if does is not None and does.writes:
                raise NotImplementedError(f"{target} in float64") from error
    narrow = {n: _narrowed(values[n], n.spec) for n in argument_nodes(node)}
    return map_leaves(step(graph, node, narrow), torch.Tensor, _widened)


def _rounded(value: Any, node: Node, noise: torch.Generator | None) -> Any:
    target = node.target
    if noise is None or not isinstance(target, OpOverload) or effects(target).view or effects(target).writes:
        return value
    if isinstance(value, (list, tuple)) and isinstance(node.spec, tuple):
        return [_noisy(v, s, noise) for v, s in zip(value, node.spec, strict=True)]
    return _noisy(value, node.spec, noise)


def _noisy(value: Any, spec: Any, noise: torch.Generator) -> Any:
    if not isinstance(spec, TensorSpec) or spec.dtype not in _ROUNDED or not isinstance(value, torch.Tensor):
        return value
    amount = 2 * torch.rand(value.shape, generator=noise, dtype=torch.float64).to(value.device) - 1
    return value * (1 + torch.finfo(spec.dtype).eps * amount)


def _widened(value: Any) -> Any:
    return value.to(_WIDE.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value


def _narrowed(value: Any, spec: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(spec, TensorSpec):
        return value.to(spec.dtype)
    if isinstance(spec, tuple) and isinstance(value, (list, tuple)):
        return [_narrowed(v, s) for v, s in zip(value, spec, strict=True)]
    return value
