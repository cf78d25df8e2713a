"""A device as the compiler sees it: costs, code generation, and loading of plans.

`targets.factory` selects the devices of a graph; the factory then builds one `Target` for each graph, from the options. No
stage queries a device, a host or a number of threads otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from smelt import _native
from smelt.graph.ir import Graph, Node
from smelt.plan.plan_device import PlanDevice
from smelt.plan.plan_items import Item
from smelt.plan.plan_template import LaunchesAt, SymbolicLaunches
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import LoadSymbolic
from smelt.rewrites.attention.attention_rewrite import Choose
from smelt.schedule.schedule import Schedule


@dataclass(frozen=True)
class Target(PlanDevice):
    """A device for which graphs are compiled.

    Args:
        generate: replaces the kernels of a schedule, and the ATen calls that have generated code on the device, by launches.
        load: makes a plan callable on a tuple of its inputs.
        generate_symbolic: `generate` for a schedule with symbolic sizes; None where a device has code for fixed sizes only.
        load_symbolic: loads plans with symbolic sizes; None where `generate_symbolic` never returns `SymbolicLaunches`.
        channels_last: whether half-precision images are channels-last inside graphs that gain from it.
        attention: selects the device's kernel for the operands of an attention pattern; None: patterns stay as they are.
        warm_up: starts, for a graph and the nodes of its backward, what their first call would wait for.
    """

    generate: Callable[[Schedule], Sequence[Item]]
    load: Callable[[Plan], _native.Plan]
    generate_symbolic: Callable[[Schedule], SymbolicLaunches | LaunchesAt] | None = None
    load_symbolic: LoadSymbolic | None = None
    channels_last: bool = False
    attention: Choose | None = None
    warm_up: Callable[[Graph, Set[Node]], object] | None = None
