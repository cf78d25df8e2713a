"""Writes of inputs: a functional aten graph may end with `copy_` into its placeholders, and writes no other memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.graph.ir import Graph, Node
from smelt.torch_private import OpOverload

WRITE_INPUT: OpOverload = torch.ops.aten.copy_.default  # target, new value


def input_writes(graph: Graph) -> list[Node]:
    """The nodes that write inputs; the first argument is the input, the second one its new value."""
    return [node for node in graph if node.target is WRITE_INPUT]


def _copy_inputs(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.clone() for t in tensors]


_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("copy_inputs(Tensor[] tensors) -> Tensor[]")
_library.impl("copy_inputs", _copy_inputs, "CompositeExplicitAutograd")
# Copies written inputs that overlap each other, in one step before all writes of them.
COPY_INPUTS: OpOverload = torch.ops.smelt.copy_inputs.default
