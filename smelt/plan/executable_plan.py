"""Executable plans: addresses for kernels, numbers or slots for sizes, and the form in which the native side reads
steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from smelt import _native
from smelt.errors import NeedsFixedSize, PlanError
from smelt.graph.object_handles import Handle, handles_in
from smelt.graph.pytree import leaves
from smelt.graph.tensor_specs import static_sizes
from smelt.plan import profiler_names
from smelt.plan.machine_code import AddressOf
from smelt.plan.size_program import SizeProgram, Slot
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    Reg,
    View,
    kernel_names,
)
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.shapes.expr import Expr, Size, Sym, free_syms

Addresses = Mapping[str, int | _native.DeviceKernel]  # by symbol
Spec = tuple[Any, ...]  # a step for the native side: its kind, then its fields


def executable(plan: Plan, address_of: AddressOf) -> _native.Plan:
    """The native plan: `native(inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]`. It keeps the machine code alive.

    Raises PlanError for a launch of a kernel that the plan does not hold, NeedsFixedSize for symbolic sizes, and the
    errors of `address_of` for code that cannot be linked on this machine.
    """
    return _native.Plan(_spec(plan, _Writer(_addresses(plan, address_of), static_sizes)))


def executable_template(
    sized: SymbolicPlan, syms: Sequence[Sym], address_of: AddressOf
) -> _native.PlanTemplate:
    """`native.at(numbers of syms)` makes the plans of `sized`, or None if its conditions fail. Raises as `executable`."""
    program = SizeProgram(syms)

    def slots(sizes: tuple[Size, ...]) -> tuple[int | Slot, ...]:
        return tuple(n if isinstance(n, int) else Slot(program.slot(n)) for n in sizes)

    spec = _spec(sized.plan, _Writer(_addresses(sized.plan, address_of), slots))
    conditions = tuple((program.slot(size), holds) for size, holds in sized.conditions)
    intervals = tuple((program.slot(i.nbytes), i.begin, i.end) for i in sized.intervals)
    sizes = program.n_syms, program.instructions, conditions, intervals, sized.alignment
    return _native.PlanTemplate(spec, sizes)


@dataclass(frozen=True)
class _Writer:
    """Translates steps: the addresses of kernels, and the encoding of sizes."""

    addresses: Addresses
    sizes: Callable[[tuple[Size, ...]], tuple[int | Slot, ...]]


def _addresses(plan: Plan, address_of: AddressOf) -> Addresses:
    launched = kernel_names(plan)
    missing = launched - plan.kernels.keys()
    if missing:
        raise PlanError(f"a plan without the code of {', '.join(sorted(missing))}")
    return {symbol: address_of(plan.kernels[symbol]) for symbol in launched}


def _spec(plan: Plan, writer: _Writer) -> Spec:
    return (
        plan.n_inputs,
        plan.n_registers,
        plan.constants,
        tuple(_SPECS[type(step)](step, writer) for step in plan.steps),
        tuple(map(_register, plan.outputs)),
        plan.arena_bytes,
        plan.release_gil,
        (*plan.kernels.values(), *_inner_graphs(plan)),
        plan.numbers,
        plan.device,
        profiler_names.of_graph(plan),
    )


def _inner_graphs(plan: Plan) -> list[Handle]:
    """The callables of higher-order operators, which the native plan keeps alive."""
    return [handle for step in plan.steps if isinstance(step, Aten) for handle in handles_in(step.args)]


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
    return "launch", writer.addresses[s.kernel], *items, elsewhere, tuple(sizes), profiler_names.of_launch(s)


def _parallel_launch(s: ParallelLaunch, writer: _Writer) -> Spec:
    *ends, grain = writer.sizes((*accumulate(s.work), s.grain))
    parts = tuple(_launch(launch, writer) for launch in s.launches)
    return "parallel", parts, tuple(ends), grain, profiler_names.parallel_launch_name(s)


def _aten(s: Aten, writer: _Writer) -> Spec:
    schema = s.op._schema
    args = tuple(_argument(s, i, a.name, writer) for i, a in enumerate(schema.arguments))
    outs = tuple(map(_register, s.outs))
    expect = tuple(e and (writer.sizes(e.shape), writer.sizes(e.stride), e.dtype) for e in s.expect)
    name = profiler_names.of_call(s)
    return "aten", schema.name, schema.overload_name, args, outs, expect, s.user_visible, name


_SPECS: dict[type, Callable[[Any, _Writer], Spec]] = {
    Alloc: _alloc,
    View: _view,
    Launch: _launch,
    ParallelLaunch: _parallel_launch,
    Aten: _aten,
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
    return ("const", int(value) if isinstance(value, Handle) else value)


def _sized(value: Any, writer: _Writer) -> Spec:
    """A size, or a list of sizes, as ("sized", value with placeholders, ((position in the list or 0, slot), ...))."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    positions = [i for i, item in enumerate(items) if isinstance(item, Expr)]
    if leaves([item for item in items if not isinstance(item, Expr)], Expr):
        raise NeedsFixedSize(f"sizes within {value}", frozenset().union(*map(free_syms, leaves(value, Expr))))
    slots = tuple(zip(positions, writer.sizes(tuple(items[i] for i in positions)), strict=True))
    sample = 1 if items is not value else [1 if isinstance(item, Expr) else item for item in items]
    return ("sized", sample, slots)
