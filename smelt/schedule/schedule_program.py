"""From a lowered program to a schedule: choose units, group them into kernels, order the groups, build the items."""

from __future__ import annotations

import heapq
from collections import defaultdict

from smelt.cost_model import Costs
from smelt.graph.operator_effects import is_effectful
from smelt.graph.pytree import leaves
from smelt.loops.lazy_tensor import Extern, Program, Scan, Tensor
from smelt.schedule.build_schedule import build_schedule
from smelt.schedule.fusion import Fit, Group, Refusal, alone, fit, join, unprofitable
from smelt.schedule.inlining import Unit, base, choose_units
from smelt.schedule.schedule import Schedule
from smelt.schedule.sibling_fusion import Pairs, pairs
from smelt.schedule.split_reductions import split_reductions


def fuse(program: Program, costs: Costs, join: bool = True) -> Schedule:
    """The schedule of `program`. `join` False: one kernel for each operator."""
    program = split_reductions(program, costs)
    units = choose_units(program, costs, join)
    grouping = Grouping(costs, join)
    for step in units.steps:
        grouping.add(step)
    siblings = pairs(grouping.groups, costs) if join else {}
    return build_schedule(
        program, units, ordered(grouping.groups, siblings), tuple(grouping.refusals), costs, siblings
    )


class Grouping:
    """Groups under construction. Units arrive in program order, so only later units join a group."""

    def __init__(self, costs: Costs, join: bool) -> None:
        self.costs, self.join = costs, join
        self.groups: list[Group] = []
        self.writer: dict[Tensor, Group] = {}
        self.readers: dict[Tensor, list[Group]] = defaultdict(list)
        self.refusals: list[str] = []
        self.effects: set[int] = set()  # the latest ATen call that does more than give results
        self.raising: set[int] = set()  # the latest ATen call that may raise

    def add(self, step: Unit | Extern) -> None:
        """Put a unit into the best group that accepts it, or into one of its own. An ATen call always gets its own."""
        if isinstance(step, Extern):
            self.add_extern(step)
            return
        parents = self.parents(step)
        joins = self.join and not isinstance(step.tensor.definition, Scan)
        group = self.home(step, parents) if joins else None
        if group is None:
            group = alone(step, len(self.groups))
            self.groups.append(group)
        written = [step.tensor] if step.insert is None else [step.tensor, step.insert.target]
        self.settle(group, parents - {group.id}, [t for t, _ in step.reads], written)

    def add_extern(self, extern: Extern) -> None:
        """Add an ATen call. It runs after what it reads; if it writes its arguments, after their readers and after
        calls that may raise. Calls that may raise keep program order: the first to raise is eager's, and later ones
        may rely on earlier checks, such as those of indices that would stop a GPU."""
        group = Group(len(self.groups), (), extern=extern, last=extern.order)
        self.groups.append(group)
        arguments = [base(t) for t in leaves([extern.args, extern.kwargs], Tensor)]
        parents = {self.writer[t].id for t in arguments if t in self.writer}
        if extern.op._schema.is_mutable:
            parents |= {g.id for t in arguments for g in self.readers[t]} | self.raising
        if is_effectful(extern.op):  # random numbers are drawn in program order
            parents |= self.effects
            self.effects = {group.id}
        if extern.raises:
            parents |= self.raising
            self.raising = {group.id}
        written = arguments if extern.op._schema.is_mutable else []
        self.settle(group, parents, arguments, [*written, *(r for r in extern.results if r is not None)])

    def parents(self, unit: Unit) -> set[int]:
        """Groups that must precede the unit: producers of what it reads; for an overwritten input, its readers and its
        previous writer, and all groups that may raise, since a call that raises must not have written (so that it can
        be replayed)."""
        found = {self.writer[t].id for t, _ in unit.reads if t in self.writer}
        if unit.target is not None:
            found |= {g.id for g in self.readers[unit.target]} | self.raising
            found |= {self.writer[unit.target].id} if unit.target in self.writer else set()
        return found

    def home(self, unit: Unit, parents: set[int]) -> Group | None:
        """The nearest group that the unit may and should join."""
        related = dict.fromkeys(sorted(parents, reverse=True))
        for tensor, _ in unit.reads:
            related.update(dict.fromkeys(g.id for g in self.readers[tensor][-2:]))
        for id in list(related)[: self.costs.candidates]:
            group = self.groups[id]
            if not group.fusible:
                continue
            found = self.cycle(group, parents) or fit(group, unit)
            if isinstance(found, Fit):
                unwise = unprofitable(group, unit, found, self.costs)
                if unwise is None:
                    join(group, unit, found)
                    return group
                found = Refusal(unwise)
            self.refusals.append(f"{unit.tensor.name} with {group.units[-1].tensor.name}: {found.reason}")
        return None

    def cycle(self, group: Group, parents: set[int]) -> Refusal | None:
        """Whether a producer of the unit runs after the group."""
        for id in parents:
            if id != group.id and self.groups[id].after >> group.id & 1:
                return Refusal("what it needs is computed after the other")
        return None

    def settle(self, group: Group, parents: set[int], reads: list[Tensor], writes: list[Tensor]) -> None:
        """Record the dependencies, reads and writes of a group."""
        group.parents |= parents
        after = group.after
        for id in parents:
            after |= 1 << id | self.groups[id].after
        if after != group.after:
            group.after = after
            for other in self.groups:
                if other.after >> group.id & 1:
                    other.after |= after
        for tensor in reads:
            if group not in self.readers[tensor]:
                self.readers[tensor].append(group)
        for tensor in writes:
            self.writer[tensor] = group


def ordered(groups: list[Group], siblings: Pairs) -> list[Group]:
    """Groups in topological order, otherwise in program order of their last unit. Of two groups that are `siblings`,
    the first directly follows the second."""
    first = {g.id: siblings.get(g.id, g.id) for g in groups}
    parts: dict[int, list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.id in siblings):
        parts[first[group.id]].append(group)
    parents = {id: {first[p] for g in part for p in g.parents} - {id} for id, part in parts.items()}
    last = {id: max(g.last for g in part) for id, part in parts.items()}
    unfinished_parents = {id: len(found) for id, found in parents.items()}
    children: dict[int, list[int]] = defaultdict(list)
    for id in parts:
        for parent in parents[id]:
            children[parent].append(id)
    ready = [(last[id], id) for id in parts if not parents[id]]
    heapq.heapify(ready)
    result: list[Group] = []
    while ready:
        _, id = heapq.heappop(ready)
        result += parts[id]
        for child in children[id]:
            unfinished_parents[child] -= 1
            if unfinished_parents[child] == 0:
                heapq.heappush(ready, (last[child], child))
    assert len(result) == len(groups), "fusion made a cycle"
    return result
