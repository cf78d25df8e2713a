"""Verification of the invariants of a plan: see `smelt.plan.steps`."""

from __future__ import annotations

from smelt.errors import VerificationError
from smelt.plan.arena_allocation import ALIGNMENT
from smelt.plan.plan_printer import print_step
from smelt.plan.steps import (
    Alloc,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    RunPlans,
    View,
    defines,
    inner_plans,
    launches,
    reads,
    span_bytes,
)
from smelt.shapes.expr import Size


def verify(plan: Plan) -> None:
    """Raises VerificationError naming the step that breaks an invariant of `smelt.plan.steps`."""
    held = range(plan.n_inputs + len(plan.constants))
    defined: set[int] = set()
    freed: set[int] = set()
    for i, step in enumerate(plan.steps):
        _verify_alone(plan, i)
        for r in reads(step):
            _require(r not in freed, plan, i, f"r{r} is freed here")
            _require(r in held or r in defined, plan, i, f"r{r} is not defined here")
        for r in defines(step):
            _require(r not in held and r not in defined, plan, i, f"r{r} is defined twice")
            _require(0 <= r < plan.n_registers, plan, i, f"r{r} is not a register")
            defined.add(r)
        if isinstance(step, Free):
            freed.update(step.regs)
    for out in plan.outputs:
        live = out is None or ((out in held or out in defined) and out not in freed)
        _require(live, plan, len(plan.steps), f"the output r{out} is not live at the end")
    _verify_arena(plan)
    for inner in inner_plans(plan):
        verify(inner)


def _verify_alone(plan: Plan, i: int) -> None:
    """Invariants of a single step."""
    step = plan.steps[i]
    if isinstance(step, Alloc | View):
        _require(len(step.shape) == len(step.stride), plan, i, "not as many strides as sizes")
        counted = [n for n in (*step.shape, *step.stride) if isinstance(n, int)]
        _require(all(n >= 0 for n in counted), plan, i, "a negative size or stride")
        fixed = len(counted) == 2 * len(step.shape)
        _require(
            isinstance(step, View) or step.arena is None or fixed, plan, i, "a symbolic size in the arena"
        )
    if isinstance(step, RunPlans):
        for inner in step.plans:
            _require(len(inner.takes) == inner.plan.n_inputs, plan, i, "an inner plan with other inputs")
            _require(not inner.plan.constants, plan, i, "an inner plan with constants")
            _require(all(k < len(step.operands) for k in inner.takes), plan, i, "no such operand")
        _require(len(step.layouts) == len(step.operands), plan, i, "not as many layouts as operands")
    if isinstance(step, ParallelLaunch):
        _require(len(step.work) == len(step.launches), plan, i, "not as many shares of work as launches")
        _verify_parallel_launch(plan, i, step)
    if isinstance(step, Launch):
        _require(not _parts(plan, step), plan, i, "a kernel for several launches that has one")
    for launch in launches((step,)):
        _require(all(map(_fits, launch.sizes)), plan, i, "a size of more than 64 bits")
        _require(
            not launch.sizes or not _parts(plan, launch),
            plan,
            i,
            "a kernel for several launches is given sizes",
        )


def _verify_parallel_launch(plan: Plan, i: int, step: ParallelLaunch) -> None:
    """Invariants of a parallel launch: on a GPU its launches share one function."""
    parts = max((_parts(plan, launch) for launch in step.launches), default=0)
    if parts:
        kernels = {(launch.kernel, len(launch.regs)) for launch in step.launches}
        _require(len(kernels) == 1, plan, i, "launches of several kernels cannot be one")
        _require(len(step.launches) <= parts, plan, i, f"more than {parts} launches")


def _fits(size: Size) -> bool:
    return not isinstance(size, int) or -(1 << 63) <= size < 1 << 63


def _parts(plan: Plan, launch: Launch) -> int:
    """The number of launches that one batched launch of its kernel may take; 0 if it is launched alone."""
    function = plan.kernels.get(launch.kernel)
    return function.block.parts if function is not None and function.block is not None else 0


def _verify_arena(plan: Plan) -> None:
    last = {r: i for i, step in enumerate(plan.steps) if not isinstance(step, Free) for r in reads(step)}
    root: dict[int, int] = {}  # arena register or raw view of one -> the allocation
    spans: dict[int, tuple[int, int, int]] = {}  # allocation -> begin, end, step
    for i, step in enumerate(plan.steps):
        if isinstance(step, Alloc) and step.arena is not None:
            end = step.arena + span_bytes(step.shape, step.stride, step.dtype)
            _require(
                step.arena % ALIGNMENT == 0 <= step.arena and end <= plan.arena_bytes,
                plan,
                i,
                "does not fit the arena",
            )
            root[step.out], spans[step.out] = step.out, (step.arena, end, i)
        elif isinstance(step, View) and step.src in root:
            _require(not step.user_visible, plan, i, "the user sees arena memory")
            root[step.out] = root[step.src]
        elif isinstance(step, Alloc) and step.over is not None:
            constant = 0 <= step.over - plan.n_inputs < len(plan.constants)
            _require(
                not constant and step.over not in root, plan, i, f"r{step.over} has no memory of its own"
            )
    for out in plan.outputs:
        _require(out not in root, plan, len(plan.steps), f"the output r{out} is in the arena")
    until = {r: begun for r, (_, _, begun) in spans.items()}
    written = _in_place(plan, root)
    for r, allocation in root.items():
        until[allocation] = max(until[allocation], last.get(r, -1))
    order = sorted(spans, key=lambda r: spans[r][0])
    for n, a in enumerate(order):
        for b in order[n + 1 :]:
            if spans[b][0] >= spans[a][1]:
                break
            apart = until[a] < written.get((a, b), spans[b][2]) or until[b] < written.get((b, a), spans[a][2])
            _require(apart, plan, spans[b][2], f"r{a} and r{b} overlap in the arena while both are live")


def _in_place(plan: Plan, root: dict[int, int]) -> dict[tuple[int, int], int]:
    """For each (allocation, allocation that reuses it), the step after the latter's first use, which may use both."""
    found: dict[tuple[int, int], int] = {}
    for i, step in enumerate(plan.steps):
        if isinstance(step, Alloc) and step.arena is not None and step.over is not None:
            first = next((k for k, s in enumerate(plan.steps[i:], i) if step.out in reads(s)), i)
            found[root[step.over], step.out] = first + 1
    return found


def _require(condition: bool, plan: Plan, step: int, what: str) -> None:
    if not condition:
        line = print_step(plan.steps[step]) if step < len(plan.steps) else "return"
        raise VerificationError(f"plan, step {step} ({line}): {what}")
