"""Writes of inputs: a functional aten graph may end with `copy_` into its placeholders, and writes no other memory."""

from __future__ import annotations

import torch

from smelt.graph.ir import Graph, Node
from smelt.torch_private import OpOverload

WRITE_INPUT: OpOverload = torch.ops.aten.copy_.default  # target, new value


def input_writes(graph: Graph) -> list[Node]:
    """The nodes that write inputs; the first argument is the input, the second one its new value."""
    return [node for node in graph if node.target is WRITE_INPUT]
