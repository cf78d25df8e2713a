"""What compiling a graph and building its plan need of a device. `targets.maker` makes one `Target` for each graph, from the
device of its tensors and the options; no stage asks for a device, a host or a number of threads otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch

from smelt import _native
from smelt.cost_model import Costs
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.plan.plan_items import Item
from smelt.plan.size_decisions import Decisions
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import LoadSized
from smelt.rewrites.attention.attention_rewrite import Choose
from smelt.schedule.schedule import Schedule
from smelt.shapes.expr import Size, Sym, ceil_div
from smelt.torch_private import OpOverload

ItemsAt = Callable[[Schedule, Mapping[Sym, int]], Sequence[Item]]


@dataclass(frozen=True)
class Decided:
    """A schedule's items with symbols in their sizes: `items` gives those for numbers, noting what is decided by these, and
    they are right for all that give the same answers."""

    items: Callable[[Decisions], Sequence[Item]]


@dataclass(frozen=True)
class Memory:
    """Where temporaries may live. `alignment`: of every arena offset, in bytes. `single`: temporaries may have
    memory of their own, where the arena would take more memory than is in use."""

    device: torch.device
    alignment: int
    single: bool = False

    def holds(self, spec: TensorSpec) -> bool:
        """Whether a tensor of `spec` may be in the arena."""
        return spec.device == self.device


@dataclass(frozen=True)
class Sharing:
    """How the items of a launch are shared among workers: `limit` of them at most, where it is not 0."""

    limit: int = 0

    def grain(self, extent: Size, least: Size, decisions: Decisions | None = None) -> Size:
        """Items that a worker takes at least. A share for each of `limit` workers keeps the others out."""
        decisions = decisions or Decisions()
        least = decisions.larger(least, 1)
        return decisions.larger(ceil_div(extent, self.limit), least) if self.limit else least


@dataclass(frozen=True)
class Target:
    """A device as the compiler sees it.

    Args:
        costs: what lowering, fusion and the plan weigh against each other.
        compile: a schedule's items with launches in place of its kernels, and of those ATen calls that are generated there.
        for_sizes: what gives the items of a schedule with symbols in its sizes: for answers, or at numbers, given the rest
            of the schedule at these; None: what `compile` gives is for all sizes.
        load: a plan made callable on a tuple of its inputs.
        load_sized: loads plans for numbers in place of symbols; None where items are never `Decided`.
        out_variant: the operator, if there is one, that computes what another does in memory given as `out`.
        memory: which temporaries may be in the arena, and how they are aligned.
        sharing: how a launch is cut into pieces.
        channels_last: whether images of half precision are laid out channels-last inside of graphs that gain from it.
        attention: which of its kernels takes the operands of attention that is written out; None: it is computed as written.
        warm_up: given a graph and its nodes of the backward, begins what their first call would wait for.
    """

    costs: Costs
    compile: Callable[[Schedule], Sequence[Item]]
    load: Callable[[Plan], _native.Plan]
    out_variant: Callable[[OpOverload], OpOverload | None]
    memory: Memory
    sharing: Sharing
    channels_last: bool = False
    attention: Choose | None = None
    warm_up: Callable[[Graph, Set[Node]], object] | None = None
    for_sizes: Callable[[Schedule], ItemsAt | Decided] | None = None
    load_sized: LoadSized | None = None
