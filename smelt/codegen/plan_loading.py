"""Plans into this process."""

from __future__ import annotations

from collections.abc import Sequence

from smelt import _native, runtime
from smelt.codegen.llvm.link import address_of
from smelt.plan.executable_plan import executable, executable_template
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import Instances, SizedPlan
from smelt.shapes.expr import Sym, Values


def load(plan: Plan) -> _native.Plan:
    """`plan` made callable on a tuple of its inputs, its kernels linked. `smelt.reset` frees the memory that it keeps
    between calls. Raises PlanError for code that this processor cannot run."""
    return runtime.track(executable(plan, address_of))


def load_sized(plan: SizedPlan, syms: Sequence[Sym]) -> Instances:
    """What does the same of the plans for numbers in place of `syms`."""
    native = executable_template(plan, syms, address_of)

    def instance(values: Values) -> _native.Plan | None:
        made = native.at([values[sym] for sym in syms])
        return made and runtime.track(made)

    return instance
