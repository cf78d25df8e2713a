"""Functions of torch on sizes alone."""

from __future__ import annotations

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.number_semantics import is_number
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numbers_in_containers import has_symbols


@function(torch.functional.broadcast_shapes)
def _broadcast_shapes(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The broadcast of symbolic shapes; torch itself raises the error for shapes that do not broadcast."""
    is_shapes = not kwargs and all(isinstance(a, (tuple, list)) or is_number(a) for a in args)
    shape = vm.call(polyfills.broadcast_shapes, args, {}) if is_shapes and has_symbols(list(args)) else None
    return run_native(vm, torch.functional.broadcast_shapes, args, kwargs) if shape is None else shape
