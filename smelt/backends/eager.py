"""Backends that compile nothing: for finding out which stage an error comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.config import Config
from smelt.errors import Unsupported
from smelt.graph.module import GraphFunction
from smelt.reasons import NEEDS_AUTOGRAD, Reason
from smelt.trace.graphs import Traced

Compiled = Callable[[tuple[torch.Tensor, ...]], tuple[Any, ...]]


def eager(traced: Traced, config: Config) -> Compiled:
    """The torch-level graph as it is, gradients and all."""
    function = GraphFunction(traced.torch_graph)
    return lambda tensors: function(*tensors)


def aot_eager(traced: Traced, config: Config) -> Compiled:
    """The functional aten graph, operator by operator. Inference only: raises Unsupported where gradients are needed."""
    if traced.needs_grad:
        raise Unsupported(Reason(NEEDS_AUTOGRAD, ""))
    function = GraphFunction(traced.aten_graph)
    return lambda tensors: function(*tensors)
