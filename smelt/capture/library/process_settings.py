"""Functions of torch that change settings of the process for a stretch (`graph/process_settings.py`): they are called for
real, and what they changed is put back when the capture ends."""

from __future__ import annotations

from types import FunctionType

from smelt.capture.base.handlers import Args, Kwargs, function
from smelt.capture.machine.vm import VM
from smelt.capture.protocol import context_managers, library_reads, native_calls
from smelt.graph.process_settings import SETTINGS


def _row(setter: FunctionType) -> None:
    @function(setter)
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        context_managers.keep(vm, setter)
        library_reads.use_native(vm.outside, setter)
        return native_calls.run_native(vm, setter, args, kwargs)


for _setter in SETTINGS:
    _row(_setter)
