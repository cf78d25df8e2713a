"""Executable plans: the form in which the native side reads plans, in this process or from bytes.

    spec   := inputs, registers, step*, outputs, arena bytes, release_gil, numbers, device, name
    step   := kind, its fields            a size is a number, or (slot,); a register is its index, -1 for none
    sizes  := symbols, instruction*, (slot, whether it is at least 0)*, (slot of bytes, begin, end)*, alignment

Both are tuples of tuples, numbers, texts and torch's enumerations; `plan/value_encoding.py` writes them as bytes. Launches
have the positions of kernels in `functions_of`, calls the names of operators. A step that runs plans has their specs and
which operands they take; with symbolic sizes also their intervals, as they share the slots of the plan around them. So the
spec of a plan is valid in every process, but for arguments without a form in bytes (generators, handles).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from smelt import _native
from smelt.errors import NeedsFixedSize, PlanError
from smelt.graph.ir import TensorSpec
from smelt.graph.object_handles import Handle, handles_in
from smelt.graph.pytree import leaves
from smelt.graph.subgraphs import Choice, LoopBackward
from smelt.graph.tensor_specs import static_sizes
from smelt.plan import profiler_names
from smelt.plan.arena_placement import Interval
from smelt.plan.machine_code import AddressOf, Function
from smelt.plan.size_program import SizeProgram
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    Reg,
    RunPlans,
    Subplan,
    View,
    inner_plans,
    kernel_names,
)
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.shapes.expr import Expr, Size, Sym, free_syms

Spec = tuple[Any, ...]  # a step for the native side: its kind, then its fields
Slotted = int | tuple[int]  # a number, or the slot of one


def executable(plan: Plan, address_of: AddressOf) -> _native.Plan:
    """The native plan: `native(inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]`. It keeps the machine code alive.

    Raises PlanError for a launch of a kernel that the plan does not hold, NeedsFixedSize for symbolic sizes, and the
    errors of `address_of` for code that cannot be linked on this machine.
    """
    return _native.Plan(spec_of(plan), *_surroundings(plan, address_of))


def executable_template(
    sized: SymbolicPlan, syms: Sequence[Sym], address_of: AddressOf
) -> _native.PlanTemplate:
    """`native.at(numbers of syms)` makes the plans of `sized`, or None if its conditions fail. Raises as `executable`."""
    return _native.PlanTemplate(*specs_of(sized, syms), *_surroundings(sized.plan, address_of))


def spec_of(plan: Plan) -> Spec:
    """The spec of a plan with fixed sizes. Raises as `executable`."""
    return _spec(plan, static_sizes)


def specs_of(sized: SymbolicPlan, syms: Sequence[Sym]) -> tuple[Spec, Spec]:
    """The spec and the sizes of a plan with symbolic sizes. Raises as `executable`."""
    program = SizeProgram(syms)

    slots = _Slots(program)
    spec = _spec(sized.plan, slots)
    conditions = tuple((program.slot(size), holds) for size, holds in sized.conditions)
    intervals = slots.intervals(sized.intervals)
    return spec, (program.n_syms, program.instructions, conditions, intervals, sized.alignment)


@dataclass(frozen=True)
class _Slots:
    """Writes symbolic sizes as slots of a program."""

    program: SizeProgram

    def __call__(self, sizes: tuple[Size, ...]) -> tuple[Slotted, ...]:
        return tuple(n if isinstance(n, int) else (self.program.slot(n),) for n in sizes)

    def intervals(self, intervals: Sequence[Interval]) -> Spec:
        return tuple((self.program.slot(i.nbytes), i.begin, i.end) for i in intervals)


WriteSizes = _Slots | Callable[[tuple[Size, ...]], tuple[int, ...]]  # the latter: `static_sizes`


def functions_of(plan: Plan) -> list[Function]:
    """The functions that a plan launches, then those of its inner plans, by position in its spec. Raises PlanError for a
    kernel that a plan does not hold."""
    functions = [plan.kernels[name] for name in _kernel_order(plan)]
    for inner in inner_plans(plan):
        functions += functions_of(inner)
    return functions


def _kernel_order(plan: Plan) -> list[str]:
    launched = sorted(kernel_names(plan))
    missing = [name for name in launched if name not in plan.kernels]
    if missing:
        raise PlanError(f"a plan without the code of {', '.join(missing)}")
    return launched


class _InnerSpecs:
    """Writes the specs of inner plans, which `add` takes in order. `first`: the position of the first of their kernels;
    `sizes`: how the plan around them writes its sizes."""

    def __init__(self, first: int, sizes: WriteSizes) -> None:
        self._next, self._sizes = first, sizes

    def add(self, inner: Subplan) -> Spec:
        first, self._next = self._next, self._next + len(functions_of(inner.plan))
        if inner.intervals is None:
            return _spec(inner.plan, static_sizes, first), inner.takes
        assert isinstance(self._sizes, _Slots), "a plan with fixed sizes has inner plans with fixed sizes"
        return _spec(inner.plan, self._sizes, first), inner.takes, self._sizes.intervals(inner.intervals)


@dataclass(frozen=True)
class _Writer:
    """Translates steps: the positions of kernels, the encoding of sizes, and inner plans."""

    kernels: Mapping[str, int]
    sizes: WriteSizes
    inner: _InnerSpecs


def _surroundings(plan: Plan, address_of: AddressOf) -> tuple[Any, ...]:
    """What a plan refers to outside of its spec: constants, kernels, and what owns their code and the program's kernels."""
    functions = functions_of(plan)
    return plan.constants, tuple(map(address_of, functions)), (*functions, *_handles(plan))


def _spec(plan: Plan, sizes: WriteSizes, first: int = 0) -> Spec:
    """`first`: the position of the plan's first kernel."""
    names = _kernel_order(plan)
    positions = {name: i for i, name in enumerate(names, first)}
    writer = _Writer(positions, sizes, _InnerSpecs(first + len(names), sizes))
    return (
        plan.n_inputs,
        plan.n_registers,
        tuple(_SPECS[type(step)](step, writer) for step in plan.steps),
        tuple(map(_register, plan.outputs)),
        plan.arena_bytes,
        plan.release_gil,
        plan.numbers,
        plan.device,
        profiler_names.of_graph(plan),
    )


def _handles(plan: Plan) -> list[Handle]:
    own = [handle for step in plan.steps if isinstance(step, Aten) for handle in handles_in(step.args)]
    return [*own, *(handle for inner in inner_plans(plan) for handle in _handles(inner))]


def _register(index: int | None) -> int:
    return -1 if index is None else index


def _alloc(s: Alloc, writer: _Writer) -> Spec:
    layout = writer.sizes(s.shape), writer.sizes(s.stride), s.dtype, s.device
    return "alloc", s.out, *layout, _register(s.arena), _register(s.over)


def _view(s: View, writer: _Writer) -> Spec:
    layout = writer.sizes(s.shape), writer.sizes(s.stride), *writer.sizes((s.offset,))
    return "view", s.out, s.src, *layout, s.user_visible


def _launch(s: Launch, writer: _Writer) -> Spec:
    elsewhere = _register(None if s.device is None else s.device.index)
    extent, grain, *sizes = writer.sizes((s.extent, s.grain, *s.sizes))
    items = s.regs, extent, grain, s.by_value
    return "launch", writer.kernels[s.kernel], *items, elsewhere, tuple(sizes), profiler_names.of_launch(s)


def _parallel_launch(s: ParallelLaunch, writer: _Writer) -> Spec:
    *ends, grain = writer.sizes((*accumulate(s.work), s.grain))
    parts = tuple(_launch(launch, writer) for launch in s.launches)
    return "parallel", parts, tuple(ends), grain, profiler_names.parallel_launch_name(s)


def _aten(s: Aten, writer: _Writer) -> Spec:
    schema = s.op._schema
    args = tuple(_argument(s, i, a.name, writer) for i, a in enumerate(schema.arguments))
    outs = tuple(map(_register, s.outs))
    expect = _layouts(s.expect, writer)
    name = profiler_names.of_call(s)
    return "aten", schema.name, schema.overload_name, args, outs, expect, s.user_visible, name


def _layouts(specs: Sequence[TensorSpec | None], writer: _Writer) -> Spec:
    return tuple(e and (writer.sizes(e.shape), writer.sizes(e.stride), e.dtype) for e in specs)


def _run_plans(s: RunPlans, writer: _Writer) -> Spec:
    plans = tuple(map(writer.inner.add, s.plans))
    carried = 0 if isinstance(s.rule, Choice) else s.rule.carried
    tangents = s.rule.tangents if isinstance(s.rule, LoopBackward) else 0
    outs = tuple(map(_register, s.outs))
    layouts = _layouts(s.layouts, writer), _layouts(s.expect, writer)
    condition = _register(s.condition)
    return (
        "plans",
        s.rule.name,
        carried,
        plans,
        condition,
        s.operands,
        outs,
        *layouts,
        tangents,
        profiler_names.of_rule(s),
    )


_SPECS: dict[type, Callable[[Any, _Writer], Spec]] = {
    Alloc: _alloc,
    View: _view,
    Launch: _launch,
    ParallelLaunch: _parallel_launch,
    Aten: _aten,
    RunPlans: _run_plans,
    BumpVersion: lambda s, writer: ("bump", s.regs),
    Free: lambda s, writer: ("free", s.regs),
}


def _argument(step: Aten, position: int, name: str, writer: _Writer) -> Spec:
    """One argument as ("reg", r), ("list", (r or -1, ...)), ("const", value), ("default",) or in the form of `_sized`."""
    if position < len(step.args):
        value = step.args[position]
    elif name in step.kwargs:
        value = step.kwargs[name]
    else:
        return ("default",)
    if isinstance(value, Reg):
        return ("reg", value.index)
    if isinstance(value, (tuple, list)) and any(isinstance(v, Reg) for v in value):
        return ("list", tuple(-1 if v is None else v.index for v in value))
    if leaves(value, Expr):
        return _sized(value, writer)
    return ("const", value)


def _sized(value: Any, writer: _Writer) -> Spec:
    """A size, or a list of sizes, as ("sized", value with placeholders, ((position in the list or 0, slot), ...))."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    positions = [i for i, item in enumerate(items) if isinstance(item, Expr)]
    if leaves([item for item in items if not isinstance(item, Expr)], Expr):
        raise NeedsFixedSize(f"sizes within {value}", frozenset().union(*map(free_syms, leaves(value, Expr))))
    slots = tuple(zip(positions, writer.sizes(tuple(items[i] for i in positions)), strict=True))
    sample = 1 if items is not value else [1 if isinstance(item, Expr) else item for item in items]
    return ("sized", sample, slots)
