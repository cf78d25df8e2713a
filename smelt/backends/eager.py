"""Backends that compile nothing: for finding out which stage an error comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.config import Config
from smelt.graph.module import GraphFunction
from smelt.trace.graphs import Traced

Compiled = Callable[[tuple[torch.Tensor, ...]], tuple[Any, ...]]


def eager(traced: Traced, config: Config) -> Compiled:
    """The torch-level graph as it is, gradients and all."""
    function = GraphFunction(traced.torch_graph)
    return lambda tensors: function(*tensors)


def aot_eager(traced: Traced, config: Config) -> Compiled:
    """The functional aten graph, operator by operator; where gradients are needed, the torch-level graph."""
    if traced.needs_grad:
        return eager(traced, config)
    function = GraphFunction(traced.aten_graph)
    return lambda tensors: function(*tensors)
