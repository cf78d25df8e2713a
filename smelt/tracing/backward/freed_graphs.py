"""Results whose autograd graph the program has freed, by `backward()` or `torch.autograd.grad` without `retain_graph`.

Such a result requires grad, as in eager, but differentiating it raises an error. So it has no tangent in the joint
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smelt.tracing.backward.autograd_graph import reachable_edges
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.backward.shared_saves import saved_by
from smelt.tracing.fake.fake_tensor import FakeTensor

_FREED = "Trying to backward through the graph a second time"  # the start of torch's message


@dataclass(frozen=True)
class FreedValue:
    """Value `value` of a joint graph, whose graph is freed. It was computed from these inputs and these other
    values."""

    value: int
    inputs: tuple[int, ...]
    values: tuple[int, ...]


def freed_values(
    values: Sequence[FakeTensor], inputs: Sequence[FakeTensor], first_history: dict[int, Any]
) -> tuple[FreedValue, ...]:
    """Those of `values` that can no longer be differentiated, in the order of their computation. Raises
    NotDifferentiable for a value whose graph was freed in part."""
    by_edge = {(v.grad_fn, v.output_nr): i for i, v in enumerate(values) if v.grad_fn is not None}
    outside = {node for node in first_history.values() if node is not None}
    found = []
    for (start, _), i in by_edge.items():
        edges = reachable_edges((start,), outside)
        freed = {node for node in (start, *(n for n, _ in edges)) if node not in outside and _is_freed(node)}
        if not freed:
            continue
        remaining = reachable_edges((start,), outside | freed)
        if by_edge.keys() & remaining or any(n in outside or hasattr(n, "variable") for n, _ in remaining):
            raise refuse("a part of the graph of a result was freed")
        nodes = {n for n, _ in edges}
        leaves = {id(n.variable) for n in nodes if hasattr(n, "variable")}
        sources = (k for k, f in enumerate(inputs) if id(f) in leaves or first_history.get(id(f)) in nodes)
        found.append(FreedValue(i, tuple(sources), tuple(by_edge[e] for e in edges & by_edge.keys())))
    # autograd numbers its nodes on creation
    return tuple(sorted(found, key=lambda s: values[s.value].grad_fn._sequence_nr()))  # type: ignore[union-attr]


def _is_freed(node: Any) -> bool:
    """Whether an autograd node has released its saved tensors."""
    try:
        saved_by(node)
    except RuntimeError as error:
        return str(error).startswith(_FREED)
    return False
