"""What building a plan needs to know of a device: costs, memory for temporaries, work sharing, `out=` overloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smelt.cost_model import Costs
from smelt.graph.ir import TensorSpec
from smelt.plan.size_decisions import Decisions
from smelt.shapes.expr import Size, ceil_div
from smelt.torch_private import OpOverload


@dataclass(frozen=True)
class Memory:
    """The memory of temporaries. `alignment`: of every arena offset, in bytes. `single`: a temporary may have an allocation
    of its own where the arena would take more memory than is in use."""

    device: torch.device
    alignment: int
    single: bool = False

    def holds(self, spec: TensorSpec) -> bool:
        """Whether a tensor of `spec` may be in the arena."""
        return spec.device == self.device


@dataclass(frozen=True)
class Sharing:
    """How workers share the items of a launch: `limit` workers at most, where it is not 0."""

    limit: int = 0

    def grain(self, extent: Size, least: Size, decisions: Decisions | None = None) -> Size:
        """The least number of items that a worker takes. Equal shares for `limit` workers leave the others without work."""
        decisions = decisions or Decisions()
        least = decisions.larger(least, 1)
        return decisions.larger(ceil_div(extent, self.limit), least) if self.limit else least


@dataclass(frozen=True)
class PlanDevice:
    """A device as the plan builder sees it.

    Args:
        costs: the cost model of the device, which lowering and fusion use as well.
        out_variant: the `out=` overload that computes what an operator computes, or None.
        memory: which temporaries may be in the arena, and their alignment.
        sharing: how workers share a launch.
    """

    costs: Costs
    out_variant: Callable[[OpOverload], OpOverload | None]
    memory: Memory
    sharing: Sharing
