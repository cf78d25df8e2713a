"""Plans for stored entries: that of the first call, and those that later calls need, for other sizes or a backward."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.backends.unbacked_subgraphs import devices_of
from smelt.codegen.triton import link
from smelt.config import Config
from smelt.errors import NeedsFixedSize, PlanError
from smelt.guards.stored_form import Unstorable
from smelt.plan.machine_code import Library
from smelt.plan.serialization import packed, plans_to_bytes
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.runtime import disk_cache
from smelt.targets.cuda import cannot_be_replayed
from smelt.tracing.record.traced import MadePlan
from smelt.warm.entry_store import keep
from smelt.warm.stored_entry import StoredEntry, StoredPlan, constant_form


def stored_plan(made: MadePlan, config: Config) -> StoredPlan:
    """The stored form of a plan that was compiled under `config`. Raises Unstorable."""
    plan = made.plan
    is_symbolic = isinstance(plan, SymbolicPlan)
    inner = plan.plan if is_symbolic else plan
    gpus = {device.index for device in devices_of(made.graph) if device.type != "cpu"}

    def machine_code(library: Library) -> tuple[bytes, ...]:
        [image] = library.objects
        return (link.machine_code(image, min(gpus), disk_cache.store(config)),)

    try:
        libraries, (steps,) = plans_to_bytes([plan], tuple(made.values), machine_code)
    except (PlanError, NeedsFixedSize) as error:
        raise Unstorable(str(error)) from None
    sizes = None if is_symbolic or not made.values else tuple(made.values.values())
    constants = [constant_form(tensor) for tensor in inner.constants]
    replays = config.cuda_graphs and len(gpus) == 1 and cannot_be_replayed(inner) is None
    return StoredPlan(made.role, sizes, constants, packed(libraries), packed(steps), replays)


@dataclass(frozen=True)
class AddPlans:
    """Adds the plans that this process makes to a stored entry. Plans without a stored form are made in each process."""

    key: str
    entry: StoredEntry
    config: Config

    def __call__(self, made: MadePlan) -> None:
        if self.entry.data["graph"]["sizes"] and not made.values:
            return  # made for one set of sizes, which the plan does not record
        try:
            plan = stored_plan(made, self.config)
        except Unstorable:
            return
        content = StoredEntry(self.entry.data, self.entry.graphs, (plan,)).to_bytes()
        keep(self.key, content, self.config, is_new=False)
