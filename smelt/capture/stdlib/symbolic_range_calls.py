"""`range(n)` of a symbolic size (`tracing/symbolic/symbolic_ranges.py`)."""

from __future__ import annotations

from smelt.capture.base.call_handlers import Args, Kwargs, builtin
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numpy_numbers import unwrap_numpy_numbers
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import symbolic_range


@builtin(range)
def _range(vm: VM, args: Args, kwargs: Kwargs) -> object:
    args = [unwrap_numpy_numbers(a) for a in args]
    found = None if NUMBERS.isdisjoint(map(type, args)) else symbolic_range(args)
    return run_native(vm, range, args, kwargs) if found is None else found
