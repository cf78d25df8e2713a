"""Handlers of torch's functions that create jagged nested tensors (`smelt.tracing.record.nested_tensors`)."""

from __future__ import annotations

from types import FunctionType

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.vm.vm import VM
from smelt.torch_private import NESTED_FUNCTIONS


def _creates(fn: FunctionType) -> None:
    @function(fn)
    def create(vm: VM, args: Args, kwargs: Kwargs) -> object:
        vm.trace.nested.prepare()
        return run_native(vm, fn, args, kwargs)


for _fn in NESTED_FUNCTIONS:
    _creates(_fn)
