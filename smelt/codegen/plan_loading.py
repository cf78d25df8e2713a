"""Loading of plans: the machine code of their kernels is linked into this process."""

from __future__ import annotations

from collections.abc import Sequence

from smelt import _native, runtime
from smelt.codegen.llvm.link import address_of
from smelt.plan.executable_plan import executable, executable_template
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import Instances, SymbolicPlan
from smelt.shapes.expr import Sym, Values


def load(plan: Plan) -> _native.Plan:
    """Makes `plan` callable on a tuple of its inputs, with its kernels linked. `smelt.reset` frees the memory that the plan
    holds between calls. Raises PlanError for code that this processor cannot run."""
    return runtime.track(executable(plan, address_of))


def load_symbolic(plan: SymbolicPlan, syms: Sequence[Sym]) -> Instances:
    """Loads `plan` once; the function returned instantiates it for concrete sizes `syms`."""
    template = executable_template(plan, syms, address_of)

    def instance(values: Values) -> _native.Plan | None:
        loaded = template.at([values[sym] for sym in syms])
        return loaded and runtime.track(loaded)

    return instance
