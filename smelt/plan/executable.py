"""Plans made executable: addresses for kernels, numbers for sizes, and the form in which the native side reads steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smelt import _native
from smelt.errors import PlanError
from smelt.graph.handle import Handle, handles_in
from smelt.graph.specs import static_sizes
from smelt.plan.code import AddressOf
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    Plan,
    Reg,
    Together,
    View,
    kernel_names,
)

Addresses = Mapping[str, int | _native.DeviceKernel]  # by symbol
Spec = tuple[Any, ...]  # a step for the native side: its kind, then its fields


def executable(plan: Plan, address_of: AddressOf) -> _native.Plan:
    """What runs `plan`: `native(inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]`. It keeps the machine code alive.

    Raises PlanError for a launch of a kernel that the plan does not hold, NeedsFixedSize for symbolic sizes, and what
    `address_of` raises for code that cannot be linked here.
    """
    launched = kernel_names(plan)
    missing = launched - plan.kernels.keys()
    if missing:
        raise PlanError(f"a plan without the code of {', '.join(sorted(missing))}")
    addresses = {symbol: address_of(plan.kernels[symbol]) for symbol in launched}
    spec = (
        plan.n_inputs,
        plan.n_registers,
        plan.constants,
        tuple(_SPECS[type(step)](step, addresses) for step in plan.steps),
        tuple(map(_register, plan.outputs)),
        plan.arena_bytes,
        plan.release_gil,
        (*plan.kernels.values(), *_inner_graphs(plan)),
        plan.numbers,
        plan.device,
    )
    return _native.Plan(spec)


def _inner_graphs(plan: Plan) -> list[Handle]:
    """What calls of operators of higher order run, which the native plan keeps alive."""
    return [handle for step in plan.steps if isinstance(step, Aten) for handle in handles_in(step.args)]


def _register(index: int | None) -> int:
    return -1 if index is None else index


def _alloc(s: Alloc, addresses: Addresses) -> Spec:
    return (
        "alloc",
        s.out,
        static_sizes(s.shape),
        static_sizes(s.stride),
        s.dtype,
        s.device,
        _register(s.arena),
        _register(s.over),
    )


def _view(s: View, addresses: Addresses) -> Spec:
    return (
        "view",
        s.out,
        s.src,
        static_sizes(s.shape),
        static_sizes(s.stride),
        *static_sizes((s.offset,)),
        s.user_visible,
    )


def _launch(s: Launch, addresses: Addresses) -> Spec:
    elsewhere = _register(None if s.device is None else s.device.index)
    extent, *sizes = static_sizes((s.extent, *s.sizes))
    return ("launch", addresses[s.kernel], s.regs, extent, s.grain, s.by_value, elsewhere, tuple(sizes))


def _together(s: Together, addresses: Addresses) -> Spec:
    return ("together", tuple(_launch(launch, addresses) for launch in s.launches), s.work, s.grain)


def _aten(s: Aten, addresses: Addresses) -> Spec:
    schema = s.op._schema
    args = tuple(_argument(s, i, a.name) for i, a in enumerate(schema.arguments))
    outs = tuple(map(_register, s.outs))
    expect = tuple(e and (static_sizes(e.shape), static_sizes(e.stride), e.dtype) for e in s.expect)
    return ("aten", schema.name, schema.overload_name, args, outs, expect, s.user_visible)


def _bump(s: BumpVersion, addresses: Addresses) -> Spec:
    return ("bump", s.regs)


def _free(s: Free, addresses: Addresses) -> Spec:
    return ("free", s.regs)


_SPECS: dict[type, Callable[[Any, Addresses], Spec]] = {
    Alloc: _alloc,
    View: _view,
    Launch: _launch,
    Together: _together,
    Aten: _aten,
    BumpVersion: _bump,
    Free: _free,
}


def _argument(step: Aten, position: int, name: str) -> Spec:
    """One argument as ("reg", r), ("list", (r or -1, ...)), ("const", value) or ("default",)."""
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
    return ("const", int(value) if isinstance(value, Handle) else value)
