"""Functions of torch on sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.number_semantics import is_number
from smelt.capture.vm.vm import VM
from smelt.torch_private import shape_as_tensor
from smelt.tracing.fake.fake_tensor import FakeTensor, fake_shape
from smelt.tracing.symbolic.numbers_in_containers import has_symbols


@function(torch.functional.broadcast_shapes)
def _broadcast_shapes(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The broadcast of symbolic shapes; torch itself raises the error for shapes that do not broadcast."""
    is_shapes = not kwargs and all(isinstance(a, (tuple, list)) or is_number(a) for a in args)
    shape = vm.call(polyfills.broadcast_shapes, args, {}) if is_shapes and has_symbols(list(args)) else None
    return run_native(vm, torch.functional.broadcast_shapes, args, kwargs) if shape is None else shape


@builtin(shape_as_tensor)
def _shape_as_tensor(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch._shape_as_tensor(tensor)`, the sizes of which are values of the graph."""
    tensor = args[0] if args else kwargs.get("self")
    if type(tensor) is not FakeTensor or tensor.subclass is not None:
        return run_native(vm, cast("Callable[..., object]", shape_as_tensor), args, kwargs)
    shape = list(fake_shape(tensor))
    return vm.call_native(torch.tensor, (shape,), {"dtype": torch.int64})
