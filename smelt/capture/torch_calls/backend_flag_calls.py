"""Functions of torch that change settings of the process for a stretch (`graph/backend_flags.py`): they are called for
real, and what they changed is put back when the capture ends."""

from __future__ import annotations

from types import FunctionType

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls import library_reads, native_calls
from smelt.capture.semantics.values import context_managers
from smelt.capture.vm.vm import VM
from smelt.graph.backend_flags import SETTINGS


def _row(setter: FunctionType) -> None:
    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        context_managers.save_process_settings(vm, setter)
        library_reads.use_native_function(vm.env, setter)
        return native_calls.run_native(vm, setter, args, kwargs)


for _setter in SETTINGS:
    _row(_setter)
