"""Graphs whose writes of some inputs do not count in the versions of these tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.torch_private import set_version_counter

Graph = Callable[[tuple[torch.Tensor, ...]], Sequence[Any]]


def preserve_input_counters(graph: Graph, uncounted: Sequence[int], counted: Sequence[int]) -> Graph:
    """`graph` with the counters of `uncounted` inputs unchanged by its writes, except by those of `counted` inputs."""
    if not uncounted:
        return graph

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        inputs = [tensors[i] for i in uncounted]
        versions = [t._version for t in inputs]
        # The graph's results are views with the versions that it leaves, so counters are compared before it runs.
        torch.autograd.graph.increment_version([tensors[i] for i in counted])
        kept = [(t, version) for t, version in zip(inputs, versions) if t._version == version]
        results = graph(tensors)
        set_version_counter(tuple(t for t, _ in kept), tuple(version for _, version in kept))
        return results

    return call
