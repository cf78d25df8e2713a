"""`range(n)` of a size that changes (`tracing/sym_rows.py`)."""

from __future__ import annotations

from smelt.capture.base.handlers import Args, Kwargs, builtin
from smelt.capture.machine.vm import VM
from smelt.capture.protocol.native_calls import run_native
from smelt.tracing.numpy_ints import numbers_in
from smelt.tracing.sym_numbers import NUMBERS
from smelt.tracing.sym_rows import symbolic_range


@builtin(range)
def _range(vm: VM, args: Args, kwargs: Kwargs) -> object:
    args = [numbers_in(a) for a in args]
    found = None if NUMBERS.isdisjoint(map(type, args)) else symbolic_range(args)
    return run_native(vm, range, args, kwargs) if found is None else found
