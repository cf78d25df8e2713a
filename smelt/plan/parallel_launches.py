"""Launches side by side: neighbours in a plan that do not depend on one another become one piece of parallel work.

An optimiser's step is hundreds of small kernels. One after the other, each is too small for more than one thread, or pays
for waking them; merged they are shared among threads by their work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.cost_model import Costs
from smelt.plan.size_decisions import Decisions
from smelt.plan.steps import WORK, Alloc, BumpVersion, Launch, ParallelLaunch, Step
from smelt.shapes.expr import Size, ceil_div


@dataclass(frozen=True)
class Touched:
    """The roots that a launch reads and writes."""

    read: frozenset[int]
    written: frozenset[int]


@dataclass
class _Run:
    """Adjacent launches, with the allocations and version bumps between them."""

    costs: Costs
    decisions: Decisions
    original: list[Step] = field(default_factory=list)  # as they stood
    pending: list[Step] = field(default_factory=list)  # since the last launch
    launches: list[Launch] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def accepts(self, t: Touched) -> bool:
        return self.written.isdisjoint(t.read | t.written) and self.read.isdisjoint(t.written)

    def add(self, launch: Launch, t: Touched) -> None:
        self.original += [*self.pending, launch]
        self.pending = []
        self.launches.append(launch)
        self.read |= t.read
        self.written |= t.written

    def steps(self) -> list[Step]:
        merged = self._merged() if len(self.launches) > 1 else None
        if merged is None:
            return [*self.original, *self.pending]
        before = [s for s in self.original if not isinstance(s, Launch)]
        return [*before, merged, *self.pending]

    def _merged(self) -> ParallelLaunch | None:
        """The launches as one; None where each has enough for all threads, or all have too little."""
        decide = self.decisions
        chunks = self.costs.parallel_launch_chunks * self.costs.threads
        if all(decide.at_least(l.extent, chunks * l.grain) for l in self.launches):
            return None
        work = [decide.larger(WORK * l.extent // l.grain, 1) for l in self.launches]
        total: Size = 0
        for units in work:
            total = total + units
        if not decide.at_least(total, 2 * WORK):
            return None
        grain = decide.larger(ceil_div(total, self.costs.threads), WORK)
        return ParallelLaunch(tuple(self.launches), tuple(work), grain)


def merge_parallel_launches(
    steps: Sequence[Step], touched: Mapping[int, Touched], costs: Costs, decisions: Decisions | None = None
) -> list[Step]:
    """`steps` with independent launches merged. `touched`: the roots of those that may be, by position."""
    if costs.threads < 2:
        return list(steps)
    decisions = decisions or Decisions()
    result: list[Step] = []
    run = _Run(costs, decisions)
    for i, step in enumerate(steps):
        if isinstance(step, Launch) and i in touched:
            if not run.accepts(touched[i]):
                result += run.steps()
                run = _Run(costs, decisions)
            run.add(step, touched[i])
        elif isinstance(step, Alloc | BumpVersion) and run.launches:
            run.pending.append(step)
        else:
            result += run.steps()
            run = _Run(costs, decisions)
            result.append(step)
    return result + run.steps()
