"""The backend of `smelt.symbolic_trace`: it keeps the captured graph, and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.backends.explicit_numbers import with_explicit_numbers
from smelt.config import Config
from smelt.errors import SmeltError
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph
from smelt.graph.tensor_specs import empty_like_spec
from smelt.shapes.substitute import substitute
from smelt.tracing.record.traced import Traced


@dataclass(frozen=True)
class Recording:
    """The graph of one call, at the torch level with nodes for its numbers, and what stood for its inputs and outputs:
    objects to find in the arguments and in the result. Both are empty if the call needed no graph."""

    traced: Traced
    graph: Graph
    inputs: tuple[Any, ...]
    outputs: tuple[torch.Tensor | None, ...]


class Recorder:
    """A backend for one call."""

    takes_sizes = takes_data_sizes = runs_calls = True

    def __init__(self, level: str) -> None:
        self._level = level
        self._recording: Recording | None = None

    def __call__(self, traced: Traced, config: Config) -> Compiled:
        """The callable of a graph: it returns empty tensors."""
        torch_level = self._level == "torch"
        graph = with_explicit_numbers(traced, computes=True).graph if torch_level else traced.forward_graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            specs = [None if n is None else n.spec for n in graph.output.args[0]]
            outputs = tuple(
                None
                if spec is None
                else empty_like_spec(substitute(spec, traced.hints), spec.device).requires_grad_(
                    spec.requires_grad
                )
                for spec in specs
            )
            self._recording = Recording(traced, graph, tensors[: len(traced.inputs)], outputs)
            return outputs

        return call

    def recording(self) -> Recording:
        """The record of the call. Raises SmeltError if it was not captured."""
        if self._recording is None:
            raise SmeltError(
                "nothing was captured: the program computes nothing with tensors, or smelt is disabled in it"
            )
        return self._recording
