"""Translation of a schedule's items to steps: an allocation before the first write, a Free after the last use, offsets
in the arena.

Buffer i of the schedule is register i of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.graph.subgraphs import RUNS, Loop
from smelt.graph.user_kernel_calls import RUN_KERNEL
from smelt.ops.node_builders import CLONE
from smelt.ops.registry import REGISTRY
from smelt.plan.arena_allocation import with_arena, with_intervals
from smelt.plan.buffer_reuse import replaced
from smelt.plan.buffer_roots import Roots, references, used
from smelt.plan.inplace_kernels import in_place
from smelt.plan.machine_code import CompiledKernel, Function
from smelt.plan.parallel_launches import Touched, merge_parallel_launches
from smelt.plan.plan_device import PlanDevice
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.plan.register_liveness import with_frees
from smelt.plan.row_views import ROW_VIEW, with_row_views
from smelt.plan.schema_aliases import is_foreign, returns_alias, written_values
from smelt.plan.size_decisions import Decisions
from smelt.plan.steps import (
    CPU,
    Alloc,
    Aten,
    BumpVersion,
    Launch,
    ParallelLaunch,
    Plan,
    Reg,
    RunPlans,
    Step,
    View,
    launches,
)
from smelt.plan.subplans import Subplans
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.schedule.schedule import BufRef, ExternItem, Schedule, ViewItem
from smelt.shapes.expr import Size, static

# Calls whose results on the CPU are the same in every replay of a CUDA graph.
SAME_IN_REPLAYS = frozenset({torch.ops.smelt.philox_in_memory.default})

# Calls that write their first argument and do nothing else; those in place of functional ones are made by `ops/lowering.py`.
OVERWRITE = frozenset({WRITE_INPUT, *(f["in_place"] for _, f in REGISTRY.declared() if "in_place" in f)})


def build_plan(
    schedule: Schedule, items: Sequence[Item], device: PlanDevice, numbers: tuple[int, ...] = ()
) -> Plan:
    """The plan that runs `schedule` on `device`.

    Args:
        items: those of `schedule`, with launches in place of kernels.
        numbers: the indices of the inputs that are Python numbers.
    """
    plan, roots = _unplaced(schedule, items, device, Decisions(), numbers)
    may_use_arena = partial(roots.may_use_arena, memory=device.memory)
    steps, nbytes = with_arena(plan.steps, may_use_arena, roots.nbytes, device.memory, schedule.donated)
    return replace(plan, steps=steps, arena_bytes=nbytes)


def build_symbolic_plan(
    schedule: Schedule,
    items: Sequence[Item],
    device: PlanDevice,
    decisions: Decisions,
    numbers: tuple[int, ...] = (),
) -> SymbolicPlan:
    """The plan of a schedule with symbolic sizes, valid for the sizes of `decisions` and all others with the same outcomes.
    The outcomes that `decisions` has recorded before count as well."""
    plan, roots = _unplaced(schedule, items, device, decisions, numbers)
    may_use_arena = partial(roots.may_use_arena, memory=device.memory)
    steps, intervals = with_intervals(plan.steps, may_use_arena, roots.nbytes, schedule.donated)
    conditions = tuple(decisions.conditions.items())
    return SymbolicPlan(replace(plan, steps=steps), conditions, intervals, device.memory.alignment)


def _unplaced(
    schedule: Schedule,
    items: Sequence[Item],
    device: PlanDevice,
    decisions: Decisions,
    numbers: tuple[int, ...],
) -> tuple[Plan, Roots]:
    """The plan without an arena."""
    schedule, items = in_place(schedule, items)
    items = with_row_views(schedule, items)
    roots = Roots(schedule, items, decisions)
    writer = _Writer(schedule, roots, device, items)
    for position, item in enumerate(items):
        writer.add(position, item)
    merged = merge_parallel_launches(writer.steps, writer.touched, device.costs, decisions)
    steps = with_frees(merged, range(roots.n_inputs, roots.n_held), writer.outputs)
    plan = Plan(
        n_inputs=roots.n_inputs,
        constants=schedule.constants,
        n_registers=writer.n_registers,
        steps=tuple(steps),
        outputs=writer.outputs,
        release_gil=_is_long(steps, roots, device.costs.gil_bytes),
        kernels=writer.kernels,
        device=device.memory.device,
        on_host=device.memory.device != CPU and _is_on_host(schedule),
        title=schedule.title,
        numbers=numbers,
    )
    return plan, roots


def _is_on_host(schedule: Schedule) -> bool:
    """Whether a step computes on the CPU and its result may differ from run to run."""
    same = {
        out
        for item in schedule.items
        if isinstance(item, ExternItem) and item.op in SAME_IN_REPLAYS
        for out in item.outs
    }
    return any(
        b.spec.device == CPU for i, b in enumerate(schedule.buffers) if b.kind != "input" and i not in same
    )


def _is_long(steps: Sequence[Step], roots: Roots, gil_bytes: int) -> bool:
    """Whether running these steps takes long enough to let other Python threads run meanwhile."""
    if any(isinstance(step, Aten | RunPlans) for step in steps):
        return True
    touched: Size = 0
    for launch in launches(steps):
        for register in launch.regs:
            touched = touched + roots.nbytes(register)
    return roots.decisions.at_least(touched, gil_bytes + 1)


class _Writer:
    """Translates items to steps. An allocation precedes the step that first writes the buffer."""

    def __init__(self, schedule: Schedule, roots: Roots, device: PlanDevice, items: Sequence[Item]) -> None:
        self.roots = roots
        self._over: dict[int, int] = {}  # result -> the operand whose memory it reuses
        last = {roots.root(b): position for position, item in enumerate(items) for b in used(item)}
        self._dying: dict[int, list[int]] = {}  # roots, by the item that is the last to use them
        for root, position in last.items():
            self._dying.setdefault(position, []).append(root)
        self._position = 0  # of the item that is added
        self.device = device
        self.steps: list[Step] = []
        self.kernels: dict[str, Function] = {}  # by symbol
        self._symbols: dict[tuple[str, Function], str] = {}
        self.touched: dict[int, Touched] = {}  # by position of a kernel's launch
        self.n_registers = len(schedule.buffers)
        self._fresh: dict[int, int] = {}  # constant -> the register of this call's own copy
        self._defined = set(range(roots.n_held))
        for constant in range(roots.n_inputs, roots.n_held):
            if roots.is_retained(constant):
                self._copy_constant(constant)
        self.outputs = tuple(None if o is None else self.register(o) for o in schedule.outputs)
        self._returned = set(self.outputs)

    def add(self, position: int, item: Item) -> None:
        self._position = position
        _ITEMS[type(item)](self, item)

    def register(self, buffer: int) -> int:
        return self._fresh.get(buffer, buffer)

    def spec(self, buffer: int) -> TensorSpec:
        return self.roots.buffers[buffer].spec

    def allocate(self, buffer: int) -> None:
        if buffer not in self._defined:
            self._defined.add(buffer)
            s = self.spec(buffer)
            self.steps.append(
                Alloc(buffer, s.shape, s.stride, s.dtype, s.device, over=self._over.get(buffer))
            )

    def _copy_constant(self, constant: int) -> None:
        """Allocates a copy per call for a constant that the user can reach, as eager does."""
        register = self.n_registers
        self.n_registers += 1
        self._fresh[constant] = register
        self.steps.append(Aten(CLONE, (Reg(constant),), {}, (register,), "constant that is returned"))

    def launch(self, item: LaunchItem) -> None:
        self._prepare((item,))
        if self.roots.decisions.is_zero(item.code.extent):
            return
        if item.joins:
            self.touched[len(self.steps)] = self._touched(item)
        self.steps.append(self._launch(item))

    def parallel_launch(self, item: ParallelLaunchItem) -> None:
        self._prepare(item.parts)
        parts = tuple(map(self._launch, item.parts))
        if len({self.kernels[part.kernel] for part in parts}) == 1:  # whatever each was called
            parts = tuple(replace(part, kernel=parts[0].kernel) for part in parts)
        blocks = tuple(-(-static(part.code.extent) // static(part.code.grain)) for part in item.parts)
        self.steps.append(ParallelLaunch(parts, blocks, 1))

    def _prepare(self, items: Sequence[LaunchItem]) -> None:
        """Allocates the buffers that the items write first, and bumps the versions of inputs that they write."""
        written = []
        if any(item.in_place for item in items):
            uses = [(item.buffers, item.in_place) for item in items]
            self._over |= replaced(uses, self._dying.get(self._position, ()), self.roots)
        for buffer, role in (pair for item in items for pair in zip(item.buffers, item.roles)):
            if role != "in":
                self.allocate(buffer)
                if self.roots.root(buffer) < self.roots.n_inputs:
                    written.append(self.roots.root(buffer))
        if written:
            self.steps.append(BumpVersion(tuple(dict.fromkeys(written))))

    def _launch(self, item: LaunchItem) -> Launch:
        code = item.code
        regs = tuple(map(self.register, item.buffers))
        grain = self.device.sharing.grain(code.extent, code.grain, self.roots.decisions)
        return Launch(
            self._symbol(code),
            regs,
            code.extent,
            grain,
            item.note,
            item.by_value,
            self._elsewhere(item),
            code.sizes,
        )

    def _elsewhere(self, item: LaunchItem) -> torch.device | None:
        """The GPU of the launch, if it is not the target's."""
        if item.code.function.block is None:
            return None
        device = next(self.spec(b).device for b, role in zip(item.buffers, item.roles) if role != "in")
        return None if device == self.device.memory.device else device

    def _symbol(self, code: CompiledKernel) -> str:
        """The name of the kernel, with a number appended if other code has that name."""
        key = code.name, code.function
        if key not in self._symbols:
            symbol, n = code.name, 0
            while symbol in self.kernels:
                n += 1
                symbol = f"{code.name}_{n}"
            self.kernels[symbol], self._symbols[key] = code.function, symbol
        return self._symbols[key]

    def _touched(self, item: LaunchItem) -> Touched:
        used = [(self.roots.root(b), role) for b, role in zip(item.buffers, item.roles)]
        return Touched(
            frozenset(b for b, role in used if role != "out"),
            frozenset(b for b, role in used if role != "in"),
        )

    def view(self, item: ViewItem) -> None:
        of_input = self.roots.root(item.src) < self.roots.n_inputs
        visible = item.user_visible or (of_input and item.out in self._returned)
        self._defined.add(item.out)
        self.steps.append(
            View(item.out, self.register(item.src), item.shape, item.stride, item.offset, visible)
        )

    def extern(self, item: ExternItem) -> None:
        args, kwargs = self.arguments(item.args), self.arguments(item.kwargs)
        variant = self.device.out_variant(item.op)
        if variant is not None and item.outs[0] is not None:
            self.allocate(item.outs[0])
            kwargs["out"] = Reg(item.outs[0])
            self.steps.append(Aten(variant, args, kwargs, (None,), item.note))
            return
        self._defined.update(o for o in item.outs if o is not None)
        if item.op in RUNS:
            return self._run_plans(item)
        expect = self._expected(item)
        visible = is_foreign(item.op) or returns_alias(item.op) or self._writes_input(item)
        if item.op in (
            RUN_KERNEL,
            ROW_VIEW,
        ):  # whose writes autograd never hears of, in eager either; not returned
            visible = False
        if self._overwrites_input(item):  # beneath autograd, which is told what is written, as of a kernel
            self.steps.append(BumpVersion((args[0].index,)))
            visible = False
        self.steps.append(Aten(item.op, args, kwargs, item.outs, item.note, expect, visible))

    def _expected(self, item: ExternItem) -> tuple[TensorSpec | None, ...]:
        return tuple(self.spec(o) if o in self.roots.by_pointer else None for o in item.outs)  # type: ignore[arg-type]

    def _run_plans(self, item: ExternItem) -> None:
        handle, tensors = item.args
        inner: Subplans = handle.inner  # type: ignore[attr-defined]
        operands = [self.register(ref.id) for ref in tensors]  # type: ignore[attr-defined]
        condition = None if isinstance(inner.rule, Loop) else operands.pop(0)
        self.steps.append(
            RunPlans(
                inner.rule,
                inner.within(self.roots.decisions),
                condition,
                tuple(operands),
                inner.layouts,
                item.outs,
                item.note,
                self._expected(item),
            )
        )

    def arguments(self, value: Any) -> Any:
        """`value` with registers in place of buffers."""
        return map_leaves(value, BufRef, lambda ref: Reg(self.register(ref.id)))

    def _overwrites_input(self, item: ExternItem) -> bool:
        """Whether the call only overwrites an input, or a part of it."""
        writes = item.op in OVERWRITE and item.outs == (None,)
        return writes and item.args[0].id < self.roots.n_inputs  # type: ignore[attr-defined]

    def _writes_input(self, item: ExternItem) -> bool:
        targets = references(written_values(item.op, item.args, item.kwargs))
        return any(self.roots.root(b) < self.roots.n_inputs for b in targets)


_ITEMS: dict[type, Callable[[_Writer, Any], None]] = {
    LaunchItem: _Writer.launch,
    ParallelLaunchItem: _Writer.parallel_launch,
    ViewItem: _Writer.view,
    ExternItem: _Writer.extern,
}
