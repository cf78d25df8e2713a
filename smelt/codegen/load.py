"""Plans into this process."""

from __future__ import annotations

from smelt import _native, runtime
from smelt.codegen.llvm.link import address_of
from smelt.plan.executable import executable
from smelt.plan.steps import Plan


def load(plan: Plan) -> _native.Plan:
    """`plan` made callable on a tuple of its inputs, its kernels linked. `smelt.reset` frees the memory that it keeps
    between calls. Raises PlanError for code that this processor cannot run."""
    return runtime.track(executable(plan, address_of))
