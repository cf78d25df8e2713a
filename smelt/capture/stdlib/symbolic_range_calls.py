"""`range` of symbolic numbers (`tracing/symbolic/symbolic_ranges.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numpy_numbers import unwrap_numpy_numbers
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Int
from smelt.tracing.symbolic.symbolic_ranges import SymbolicRange, symbolic_range


@builtin(range)
def _range(vm: VM, args: Args, kwargs: Kwargs) -> object:
    args = [unwrap_numpy_numbers(a) for a in args]
    found = None if NUMBERS.isdisjoint(map(type, args)) else symbolic_range(args)
    if found is None and not kwargs and len(args) in (1, 2, 3):
        found = _unbacked_range(vm, args)
    return run_native(vm, range, args, kwargs) if found is None else found


def _unbacked_range(vm: VM, args: Sequence[object]) -> SymbolicRange | None:
    """`range(*args)` of an unbacked length, whose loop may be captured; None for another one."""
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    frame = vm.current_frame
    if (
        all(type(n) is int for n in args)
        or not vm.assumptions.captures_jumps
        or frame.code.names[frame.pc] != "GET_ITER"
    ):
        return None
    if type(step) is not int or step == 0 or not (_is_bound(vm, start) and _is_bound(vm, stop)):
        return None
    values = SymbolicRange(start, stop, step)
    return values if values.is_unbacked else None


def _is_bound(vm: VM, value: object) -> bool:
    """Whether a loop can compare the number: one that differs by branch is known in each of them."""
    if isinstance(value, NumberProxy):
        return value.kind is int and not vm.conditional_jumps.joined_numbers
    return type(value) in (int, Int)
