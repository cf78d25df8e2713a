"""Plans for stored entries: that of the first call, and those that later calls need, for other sizes or a backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.config import Config
from smelt.errors import NeedsFixedSize, PlanError
from smelt.guards.stored_form import Unstorable
from smelt.plan.serialization import packed, plans_to_bytes
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.tracing.record.traced import MadePlan
from smelt.warm.entry_store import keep
from smelt.warm.stored_entry import StoredEntry, StoredPlan, constant_form

_CPU = torch.device("cpu")


def stored_plan(made: MadePlan) -> StoredPlan:
    """The stored form of a plan. Raises Unstorable."""
    plan = made.plan
    is_symbolic = isinstance(plan, SymbolicPlan)
    inner = plan.plan if is_symbolic else plan
    if inner.device != _CPU:
        raise Unstorable("its plan is for a GPU")
    try:
        libraries, (steps,) = plans_to_bytes([plan], tuple(made.values))
    except (PlanError, NeedsFixedSize) as error:
        raise Unstorable(str(error)) from None
    sizes = None if is_symbolic or not made.values else tuple(made.values.values())
    constants = [constant_form(tensor) for tensor in inner.constants]
    return StoredPlan(made.role, sizes, constants, packed(libraries), packed(steps))


@dataclass(frozen=True)
class AddPlans:
    """Adds the plans that this process makes to a stored entry. Plans without a stored form are made in each process."""

    key: str
    entry: StoredEntry
    config: Config

    def __call__(self, made: MadePlan) -> None:
        try:
            plan = stored_plan(made)
        except Unstorable:
            return
        content = StoredEntry(self.entry.data, self.entry.graphs, (plan,)).to_bytes()
        keep(self.key, content, self.config, is_new=False)
